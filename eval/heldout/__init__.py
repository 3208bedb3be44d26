"""Scores any policy on sessions of people that it was not trained on."""

from eval.heldout.evaluate import HeldoutResult, evaluate, evaluate_async
from eval.heldout.selection import select

__all__ = ["HeldoutResult", "evaluate", "evaluate_async", "select"]
