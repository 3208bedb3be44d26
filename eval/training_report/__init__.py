"""The picture of a run: one self-contained HTML page with curves, tables and trajectories."""

from eval.training_report.page import write_report

__all__ = ["write_report"]
