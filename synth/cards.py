"""Cards that vary what a language model writes: topics of events, the user's voice, a second speaker, a stray line.

The program draws them from the seed and passes them in the tasks, so the same seed asks for the same life.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from deltamem.config import StrictModel
from synth.pools import Deck, packaged
from synth.records import Domain, EventSlot, Line, Voice

Card = Annotated[Line, Field(min_length=3)]
CardList = Annotated[tuple[Card, ...], Field(min_length=1)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Manners(StrictModel):
    none: Share
    cards: CardList


class _Shared(StrictModel):
    share: Share
    cards: CardList


class Cards(StrictModel):
    """The file ``cards.yaml``."""

    topics: dict[Domain, CardList]
    registers: CardList
    manners: _Manners
    languages: _Shared
    guests: _Shared
    interference: _Shared

    def with_topics(self, slots: Sequence[EventSlot], rng: random.Random) -> tuple[EventSlot, ...]:
        """Slots with a topic each; no topic comes twice before all of its domain have come."""
        decks = {domain: Deck(rng, self.topics[domain]) for domain in self.topics}
        return tuple(
            slot.model_copy(update={"topic": decks[slot.domain].draw()}) if slot.domain in decks else slot for slot in slots
        )

    def voice(self, of_person: random.Random, of_session: random.Random, guests: Iterable[str]) -> Voice:
        """How the user writes in a session.

        `of_person` draws what stays the same over a life and begins anew for each session, `of_session` the rest; `guests`
        might type.
        """
        style = of_person.choice(self.registers)
        language = _sometimes(self.languages, of_person)
        manner = "" if of_session.random() < self.manners.none else of_session.choice(self.manners.cards)
        interference = _sometimes(self.interference, of_session)
        purpose = _sometimes(self.guests, of_session)
        names = sorted(guests)
        guest = of_session.choice(names) if names and purpose else ""
        return Voice(
            style=style,
            manner=manner,
            language=language,
            guest=guest,
            guest_purpose=purpose if guest else "",
            interference=interference,
        )


def _sometimes(cards: _Shared, rng: random.Random) -> str:
    # Both are drawn each time, so that another share changes no later draw.
    chance, card = rng.random(), rng.choice(cards.cards)
    return card if chance < cards.share else ""


load_cards = packaged(Path(__file__).with_name("cards.yaml"), Cards)
