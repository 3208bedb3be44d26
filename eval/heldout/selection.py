"""Which sessions are evaluated: the same ones for the same seed, spread over people."""

from __future__ import annotations

import random
from collections.abc import Iterable
from itertools import chain, zip_longest

from deltamem.sessions import LabelledSession


def select(sessions: Iterable[LabelledSession], n: int, seed: int = 0) -> list[LabelledSession]:
    """Choose sessions so that every person contributes as evenly as possible.

    People and the sessions of each are shuffled; then one session of each person is taken in turn.

    Args:
        sessions: The candidates.
        n: How many to choose; all of them if there are fewer.
        seed: Decides the choice. A larger n with the same seed keeps the sessions of a smaller one.

    Returns:
        The chosen sessions, ordered by person and session index.
    """
    by_person: dict[str, list[LabelledSession]] = {}
    for session in sessions:
        by_person.setdefault(session.session.person_id, []).append(session)
    # Sorted first, so that the order of the file does not matter.
    people = [sorted(of_person, key=lambda item: item.session_index) for _, of_person in sorted(by_person.items())]
    generator = random.Random(seed)
    for of_person in people:
        generator.shuffle(of_person)
    generator.shuffle(people)
    in_turn = (session for session in chain.from_iterable(zip_longest(*people)) if session is not None)
    chosen = [session for session, _ in zip(in_turn, range(n), strict=False)]
    return sorted(chosen, key=lambda item: (item.session.person_id, item.session_index))
