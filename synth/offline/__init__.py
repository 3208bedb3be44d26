"""The offline writer: people from templates and pools of words. No model, no network, deterministic."""

from synth.offline.writer import OfflineWriter, answer

__all__ = ["OfflineWriter", "answer"]
