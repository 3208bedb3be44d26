"""One person: the graph of its units, what they are told, and how operations and states follow from them."""

from synth.person.assembly import labelled_sessions, replay
from synth.person.graph import write_person

__all__ = ["labelled_sessions", "replay", "write_person"]
