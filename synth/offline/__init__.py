"""The offline writer: short, varied sessions from pools of words. No model, no network, deterministic."""

from synth.offline.writer import OfflineConfig, offline_writer

__all__ = ["OfflineConfig", "offline_writer"]
