"""Whether a passage holds a memory point, told without a language model.

A memory point is a sentence of the annotators; the dialogue says the same in other words. The point is linked to the turns
of its session that its words come from (`deltamem.text.sources`). A passage then holds the point

* if one of the turns that the passage comes from is linked to the point, for systems that know where a passage comes from
  (turns themselves, memories of DeltaMem);
* else if it contains at least `LEAST_WORDS` of the content words of the point, the person's name left out.

The first rule does not ask for the annotators' words, which turns often lack: of the 172 points that questions are about in
the one complete user that is public, all can be linked, and only 66% have a turn with 70% of their words. It credits a
memory for the turn that it was made of, whatever became of it. The second is for systems that give nothing but text; numbers
by the two rules are not to be compared, so the summary says which one was used. Points that cannot be linked to any turn are
counted and not scored, whatever the system.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import lru_cache

from deltamem.sessions import Turn
from deltamem.text.sources import SourceFinder
from deltamem.text.words import content_stems
from eval.halumem.loader import HalumemSession, MemoryPoint, User
from eval.systems.protocol import Passage

LEAST_WORDS = 0.7
"""Share of a point's content words that a passage without sources must contain."""


class PointFinder:
    """Links the memory points of one user to turns, and finds them among passages."""

    def __init__(self, user: User) -> None:
        """Take the user; sessions are taken apart when one of their points is asked for."""
        self._user = user
        self._name = content_stems(user.name)
        self._finder = lru_cache(maxsize=None)(self._make_finder)
        self._homes: dict[str, list[tuple[HalumemSession, MemoryPoint]]] = defaultdict(list)
        for session in user.sessions:
            for point in session.points:
                self._homes[point.text].append((session, point))

    def turns(self, text: str, session: int) -> tuple[str, ...]:
        """The turns that a memory point comes from.

        Args:
            text: The point, as it stands in the sessions.
            session: Number of the session after which it is asked for; later ones do not count.

        Returns:
            Ids of turns in order; empty if no session holds the point, or no turn its words.
        """
        found: list[str] = []
        for home, point in self._homes.get(text, ()):
            if home.number <= session:
                # Of an update the words that its session is the first to say.
                numbers = self._finder(home.number).turns(text, " ".join(point.originals))
                found += (home.dialogue.turns[number - 1].id for number in numbers)
        return tuple(found)

    def rank(self, text: str, turns: Sequence[str], passages: Sequence[Passage]) -> int | None:
        """Rank from 1 of the first passage that holds a point; None if none does.

        Args:
            text: The point.
            turns: What it is linked to.
            passages: Best first.
        """
        sought = content_stems(text) - self._name
        for rank, passage in enumerate(passages, start=1):
            if passage.sources:
                held = not set(turns).isdisjoint(passage.sources)
            else:
                held = bool(sought) and len(sought & content_stems(passage.text)) >= LEAST_WORDS * len(sought)
            if held:
                return rank
        return None

    def passage(self, text: str, session: HalumemSession) -> Passage:
        """A memory point as a passage of the session that says it last, as known after a session."""
        homes = [home for home, _ in self._homes.get(text, ()) if home.number <= session.number]
        time = max((home.dialogue.time for home in homes), default=session.dialogue.time)
        return Passage(text, time, self.turns(text, session.number))

    def _make_finder(self, number: int) -> SourceFinder:
        dialogue = self._user.sessions[number].dialogue
        turns = [Turn("user" if turn.role == "user" else "assistant", turn.text) for turn in dialogue.turns]
        return SourceFinder(turns, self._user.name)


def gold_passages(user: User) -> dict[str, list[Passage]]:
    """The memory points that questions rest on, and the new texts of updated points, as passages by what is searched for.

    Args:
        user: The user.

    Returns:
        By text of the question or of the updated point; a question that is asked twice has the evidence of both.
    """
    finder = PointFinder(user)
    found: dict[str, dict[str, Passage]] = defaultdict(dict)
    for session in user.sessions:
        for question in session.questions:
            for text in question.evidence:
                found[question.text][text] = finder.passage(text, session)
        for point in session.points:
            if point.searched:
                found[point.text][point.text] = finder.passage(point.text, session)
    return {sought: list(passages.values()) for sought, passages in found.items()}
