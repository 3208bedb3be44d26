"""The picture of a run: one self-contained HTML page with curves, tables and trajectories."""

from eval.report.build import write_report

__all__ = ["write_report"]
