"""Which questions of a benchmark are asked: whole conversations or users, and a stratified sample of the questions.

Both are drawn with the seed of the run, and a wider choice holds a narrower one, so that a run can be widened later.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import Annotated, TypeVar

from pydantic import BeforeValidator, Field, PositiveInt

from deltamem.errors import DeltaMemError
from eval.protocols import shown
from eval.records import QuestionRecord

Item = TypeVar("Item")


def _ids(value: object) -> object:
    """Ids that look like numbers come as numbers."""
    return [str(one) for one in value] if isinstance(value, list) else value


Groups = Annotated[PositiveInt | Annotated[list[str], Field(min_length=1)] | None, BeforeValidator(_ids)]
"""Type of a configuration key that chooses conversations or users: how many, drawn with the seed, or which."""


def chosen_groups(ids: Sequence[str], wanted: int | Sequence[str] | None, key: str, seed: int) -> list[str]:
    """Those of all `ids` that the configuration key wants, in their own order: so many at random, or which; all if None.

    Raises:
        DeltaMemError: If an id does not exist, or there are not so many; lists those that exist.
    """
    if wanted is None:
        return list(ids)
    if isinstance(wanted, int):
        if wanted > len(ids):
            raise DeltaMemError(f"{key}={wanted}, but the data has only {len(ids)}: {', '.join(ids)}")
        chosen = set(_shuffled(ids, f"{key} {seed}")[:wanted])
    elif unknown := [name for name in wanted if name not in ids]:
        raise DeltaMemError(f"{key} names {unknown[0]!r}, which the data does not have; there are: {', '.join(ids)}")
    else:
        chosen = set(wanted)
    return [name for name in ids if name in chosen]


def stratified(questions: Sequence[QuestionRecord], limit: int | None, seed: int) -> list[QuestionRecord]:
    """Draw a sample of questions in which each category has its share, in the order of the questions.

    Shares are rounded by the largest remainder, at least one question each if the limit allows that. The questions of a
    category are taken in turn from the groups (conversations, users), which are in random order.
    """
    if limit is None or limit >= len(questions):
        return list(questions)
    members: dict[str, list[int]] = defaultdict(list)
    for position, question in enumerate(questions):
        members[question.category].append(position)
    shares = _shares({name: len(positions) for name, positions in members.items()}, limit)
    drawn: set[int] = set()
    for name, positions in members.items():
        by_group: dict[str, list[int]] = defaultdict(list)
        for position in _shuffled(positions, f"{name} {seed}"):
            by_group[questions[position].group].append(position)
        order = _shuffled(list(by_group), f"groups of {name} {seed}")
        rounds = chain.from_iterable(zip_longest(*(by_group[one] for one in order)))
        drawn.update([position for position in rounds if position is not None][: shares[name]])
    return [questions[position] for position in sorted(drawn)]


def sample_note(asked: int, total: int, chosen: Mapping[str, object]) -> str | None:
    """How a sample was drawn, for the name of the data: the keys that chose it; None if all questions are asked."""
    how = ", ".join(f"{key}={shown(value)}" for key, value in chosen.items() if value is not None)
    return f"{asked:,} of {total:,} questions ({how})" if asked < total and how else None


def _shares(counts: Mapping[str, int], limit: int) -> dict[str, int]:
    """How many of each category; they add up to the limit, which is below the sum of the counts."""
    total = sum(counts.values())
    ideal = {name: limit * count / total for name, count in counts.items()}
    least = 1 if limit >= len(counts) else 0
    shares = {name: max(least, int(exact)) for name, exact in ideal.items()}
    while sum(shares.values()) < limit:
        shares[max(shares, key=lambda name: ideal[name] - shares[name])] += 1
    while sum(shares.values()) > limit:  # the small ones were given one each
        shares[max((name for name in shares if shares[name] > 1), key=lambda name: shares[name] - ideal[name])] -= 1
    return shares


def _shuffled(values: Sequence[Item], seed: str) -> list[Item]:
    return random.Random(seed).sample(values, len(values))
