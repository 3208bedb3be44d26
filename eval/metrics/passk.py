"""Success over repeated trials of a task."""

from __future__ import annotations

from math import comb


def pass_at_k(n: int, c: int, k: int) -> float:
    """Chance that at least one of k trials passes: ``1 - C(n-c, k) / C(n, k)`` (PROTOCOLS.md 5.6; Chen et al. 2021).

    The k trials are drawn without replacement from the n that were run, which makes the estimate unbiased.

    Args:
        n: Trials that were run.
        c: Trials that passed.
        k: Trials that are drawn, from 1 to n.

    Raises:
        ValueError: If the numbers do not fit together.
    """
    _check(n, c, k)
    return 1 - comb(n - c, k) / comb(n, k)


def pass_hat_k(n: int, c: int, k: int) -> float:
    """Chance that all of k trials pass, Pass^k: ``C(c, k) / C(n, k)`` (PROTOCOLS.md 5.6; Yao et al. 2024).

    Args:
        n: Trials that were run.
        c: Trials that passed.
        k: Trials that are drawn, from 1 to n.

    Raises:
        ValueError: If the numbers do not fit together.
    """
    _check(n, c, k)
    return comb(c, k) / comb(n, k)


def _check(n: int, c: int, k: int) -> None:
    if not (0 <= c <= n and 1 <= k <= n):
        raise ValueError(f"{c} of {n} trials passed, {k} drawn; expected 0 <= c <= n and 1 <= k <= n")
