"""Which turns of a session a memory text comes from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from deltamem.sessions import Turn
from deltamem.words import content_stems

# The person states the facts and the assistant repeats them, often in more of the memory's own words.
_USER_BONUS = 1.5
# Below these shares a match is chance: of all words looked for, and of the matched weight for each further turn.
_LEAST_WORDS = 0.25
_LEAST_GAIN = 0.15


def source_turns(text: str, before: str, dialogue: Sequence[Turn], *, person_name: str, limit: int = 3) -> tuple[int, ...]:
    """Find the turns that a memory text comes from.

    Greedy cover: the turn whose words cover most of the text comes first, then the one that covers most of the rest. A
    word weighs more the fewer turns contain it; where the new words leave a choice, the whole text decides. The person's
    name does not count, since people do not name themselves.

    Args:
        text: The memory's text.
        before: Its text before the session, empty for a new memory. Only words that are new count, if there are any.
        dialogue: The session's turns.
        person_name: How memories name the person.
        limit: Turns to return at most.

    Returns:
        Numbers of turns from 1, ascending; empty if hardly anything matches.
    """
    stems = content_stems(text) - content_stems(person_name)
    sought = (stems - content_stems(before)) or stems
    spoken = [content_stems(turn.content) & stems for turn in dialogue]
    turns = [found & sought for found in spoken]
    frequency = Counter(word for found in turns for word in found)
    if len(frequency) < max(1.0, _LEAST_WORDS * len(sought)):
        return ()
    weight = {word: math.log1p(len(turns) / count) for word, count in frequency.items()}
    # Sorted sums: the order of a set of strings differs between processes, and so would the last bit of a sum.
    total = sum(sorted(weight.values()))
    missing = set(frequency)
    chosen: list[int] = []
    while missing and len(chosen) < limit:
        gains = [sum(sorted(weight[word] for word in found & missing)) for found in turns]
        ranks = [
            (gain * (_USER_BONUS if turn.role == "user" else 1.0), len(found), -number)
            for number, (gain, turn, found) in enumerate(zip(gains, dialogue, spoken, strict=True))
        ]
        best = -max(ranks)[2]
        if gains[best] < _LEAST_GAIN * total:
            break
        chosen.append(best + 1)
        missing -= turns[best]
    return tuple(sorted(chosen))
