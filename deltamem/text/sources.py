"""Which turns of a session a memory text comes from."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from deltamem.sessions import Turn
from deltamem.text.words import content_stems

# The person states the facts and the assistant repeats them, often in more of the memory's own words.
_USER_BONUS = 1.5
# Below these shares a match is chance: of all words looked for, and of the matched weight for each further turn.
_LEAST_WORDS = 0.25
_LEAST_GAIN = 0.15


class SourceFinder:
    """Finds the turns of one session that memory texts come from; the turns are taken apart once."""

    def __init__(self, dialogue: Sequence[Turn], person_name: str) -> None:
        """Take the turns apart.

        Args:
            dialogue: The session's turns.
            person_name: How memories name the person. The name does not count, since people do not name themselves.
        """
        self._bonus = [_USER_BONUS if turn.role == "user" else 1.0 for turn in dialogue]
        self._stems = [content_stems(turn.content) for turn in dialogue]
        self._name = content_stems(person_name)

    def turns(self, text: str, before: str, limit: int = 3) -> tuple[int, ...]:
        """The turns that a memory text comes from.

        Greedy cover: the turn whose words cover most of the text comes first, then the one that covers most of the rest. A
        word weighs more the fewer turns contain it; where the new words leave a choice, the whole text decides.

        Args:
            text: The memory's text.
            before: Its text before the session, empty for a new memory. Only words that are new count, if there are any.
            limit: Turns to return at most.

        Returns:
            Numbers of turns from 1, ascending; empty if hardly anything matches.
        """
        stems = content_stems(text) - self._name
        sought = (stems - content_stems(before)) or stems
        spoken = [found & stems for found in self._stems]
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
                (gain * bonus, len(found), -number)
                for number, (gain, bonus, found) in enumerate(zip(gains, self._bonus, spoken, strict=True))
            ]
            best = -max(ranks)[2]
            if gains[best] < _LEAST_GAIN * total:
                break
            chosen.append(best + 1)
            missing -= turns[best]
        return tuple(sorted(chosen))
