"""Sessions, answers and operations of assisted episodes, as their tests write them."""

from __future__ import annotations

import json
from datetime import datetime

from deltamem.assisted import AssistedConfig, AssistedEpisode
from deltamem.episode import Finished
from deltamem.sessions import Session, Turn

TIME = datetime(2026, 4, 5, 20, 1)
OPEN = AssistedConfig(support=0)


def session(*said: tuple[str, str], person: str = "Ann") -> Session:
    return Session("ann", person, TIME, tuple(Turn(role, text) for role, text in said), "s1")  # type: ignore[arg-type]


def user(*texts: str, person: str = "Ann") -> Session:
    return session(*(("user", text) for text in texts), person=person)


def listed(*facts: str) -> str:
    return json.dumps({"facts": [{"line": 1, "fact": fact} for fact in facts]}, ensure_ascii=False)


def finished(said: Session, *facts: str, config: AssistedConfig = OPEN) -> AssistedEpisode:
    episode = AssistedEpisode(said, (), config)
    assert episode.read(listed(*facts)) == Finished()
    return episode


def operations(episode: AssistedEpisode) -> list[tuple[str, str, str | None]]:
    return [(each.event.value, each.text, each.target_memory_id) for each in episode.trajectory.operations or ()]


def kept(said: Session, *facts: str) -> list[str]:
    """Which facts of an answer become memories under the default configuration."""
    return [text for _, text, _ in operations(finished(said, *facts, config=AssistedConfig()))]
