"""Evaluation: held-out sessions, public benchmarks, metrics and reports."""
