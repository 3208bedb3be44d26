"""The picture of a run: one self-contained HTML page with curves, tables and trajectories."""
