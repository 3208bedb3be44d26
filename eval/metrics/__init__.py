"""The numbers: lexical scores, ranks, intervals, repeated trials, curves. Pure functions, no benchmark's data format."""

from eval.metrics.curves import CumulativePoint, cumulative_accuracy
from eval.metrics.intervals import Interval, bootstrap_interval, wilson_interval
from eval.metrics.lexical import abstains, bleu1, locomo_f1, set_f1, token_set_f1
from eval.metrics.passk import pass_at_k, pass_hat_k
from eval.metrics.ranks import recall_at, reciprocal_rank

__all__ = [
    "CumulativePoint",
    "Interval",
    "abstains",
    "bleu1",
    "bootstrap_interval",
    "cumulative_accuracy",
    "locomo_f1",
    "pass_at_k",
    "pass_hat_k",
    "recall_at",
    "reciprocal_rank",
    "set_f1",
    "token_set_f1",
    "wilson_interval",
]
