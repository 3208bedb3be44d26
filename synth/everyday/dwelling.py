"""Talk about what has just been stated: hopes, thanks, advice and the same once more. It adds nothing to remember.

Without it, whoever learns from statements learns that all plain sentences are facts.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping, Sequence

from synth.everyday.scenes import SceneFact, draw, phrases
from synth.everyday.statements import StatedLabel, statements

_LOWERED = re.compile(r"^(?:My|The|An?|At|In|On|With|Since|After|Before|For|That|It|There)\b(?!')")
"""A word with which a statement begins that has no capital after a colon; ``It's`` and ``That's`` are whole sentences."""
_TURNS = (1, 4)
_SENTENCES = (1, 3)
_ECHOED = 0.5
"""Share of facts with a recall that the assistant repeats."""
_SAID_AGAIN = 0.4
"""Share of what is talked about so that the owner says once more."""


def dwelt_on(
    rng: random.Random, said: str, told: Sequence[tuple[SceneFact, StatedLabel]], values: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    """Exchanges in which facts are stated, with `said`, and talked about; one perhaps again, in other words if it can."""
    rules, facts = phrases(), [fact for fact, _ in told]
    hopeful = rules["dwelt_hopefully"] if all(fact.kind == "plan" for fact in facts) else ()
    lines = [*rules["dwelt"], *rules["dwelt_answering"], *hopeful]
    rng.shuffle(lines)
    turns = [[draw(rng, [lines.pop()], {}) for _ in range(rng.randint(*_SENTENCES))] for _ in range(rng.randint(*_TURNS))]
    if rng.random() < _SAID_AGAIN:
        fact, stated = rng.choice(told)
        others = [one.said for one in statements(fact) if one.label != stated.label]
        words = _LOWERED.sub(lambda word: word[0].lower(), draw(rng, others or [stated.said], values))
        again = draw(rng, rules["restated"], {"said": words})
        turn = rng.choice(turns)
        turn.insert(rng.randrange(len(turn) + 1), again)
    first = [said, draw(rng, rules["dwelt"], {})] if rng.random() < 0.5 else [said]
    recalls = [fact.recall for fact in facts if fact.recall]
    echo = draw(rng, rules["echoed"], {"recall": draw(rng, [rng.choice(recalls)], values)}) if recalls else ""
    yield " ".join(first), _replied(rng, echo if rng.random() < _ECHOED else "")
    for own in turns:
        yield " ".join(own), _replied(rng)


def _replied(rng: random.Random, heard: str = "") -> str:
    """What an assistant says to it: what it has `heard`, up to three pieces of advice, and an invitation to go on."""
    rules = phrases()
    advice = [draw(rng, [line], {}) for line in rng.sample(rules["advised"], rng.randint(0, 3))]
    return " ".join([heard or draw(rng, rules["heard_out"], {}), *advice, draw(rng, rules["asked_on"], {})])
