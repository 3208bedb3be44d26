"""How far training data are from the talk that a memory meets: ``python -m eval.transfer.distance DATA``.

The same figures for a data set of ``python -m synth`` and for each suite of ``python -m eval.transfer`` whose file is there.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median, quantiles

from deltamem.config import composed, run_plain, validated
from deltamem.errors import DeltaMemError
from deltamem.memory import Event
from deltamem.sessions import read_sessions
from deltamem.text import MONTHS, WEEKDAYS, content_stems, words
from eval.transfer.data import SUITES, TransferConfig, TransferPerson, read_people

_SAMPLE = 300
"""Sessions of a data set that its distance is measured by."""
_SAME_WORDS = 27_000
"""Words of the owners in which types and rows of four are counted, as both grow with the amount of text."""
_STANDS = 0.8
"""Share of a label's content stems that make it stand in a turn."""
_CARRIES = 0.34
"""Share of a label's content stems from which a turn of the owner is counted as carrying it."""
_EMOTION = frozenset(
    """afraid amazed angry annoyed anxious ashamed awful bored calm cheerful comfort confident confused cry cried
    delighted depressed desperate disappointed disappointing down dread embarrassed emotional excited exciting
    exhausted fear feel feeling feelings fed felt frustrated frustrating fun furious glad grateful grief guilty
    happy happier happiness hate heartbroken helpless hope hopeful hopeless hurt inspired inspiring jealous joy
    laugh lonely love loved loving mad miserable miss moved nervous overwhelmed overwhelming painful panic peace
    peaceful proud regret relief relieved sad scared scary shame shocked shy sorry stress stressed stressful
    surprised tears tense terrible terrified thankful thrilled tired touched uneasy unhappy upset worried worry""".split()  # noqa: SIM905
)
_CLOCK = re.compile(r"\b\d{1,2}(?::\d\d| ?[ap]\.?m\b| o.clock)|\b(?:half|quarter) past\b", re.IGNORECASE)
_MONEY = re.compile(r"[$€£]\s?\d|\b\d+ (?:dollars|euros|pounds|bucks|quid)\b", re.IGNORECASE)
_RELATIVE = re.compile(
    r"\b(?:yesterday|today|tonight|tomorrow|last (?:night|week|month|year|weekend|summer|winter|spring|fall|autumn|\w+day)|"
    r"next (?:week|month|year|weekend|summer|winter|\w+day)|this (?:week|month|year|weekend|\w+day|morning|evening)|"
    r"\w+ (?:days?|weeks?|months?|years?) ago|in (?:a|two|three|four|six) (?:days|weeks?|months?))\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class CountedSession:
    """A session as it is counted: who says what (True: the owner), and what a memory should hold of it."""

    turns: tuple[tuple[bool, str], ...]
    labels: tuple[str, ...]

    @property
    def own(self) -> list[str]:
        """What the owner says, turn by turn."""
        return [text for mine, text in self.turns if mine]


def talk_of_data(path: Path) -> Iterator[CountedSession]:
    """The sessions of a data set of ``python -m synth``; labels are what they add or change.

    Raises:
        DeltaMemError: If the file is missing or cannot be read.
    """
    for labelled in read_sessions(path):
        turns = tuple((turn.role == "user", turn.content) for turn in labelled.session.dialogue)
        yield CountedSession(turns, tuple(one.text for one in labelled.operations if one.event is not Event.NONE))


def talk_of_person(person: TransferPerson) -> Iterator[CountedSession]:
    """The sessions of somebody in a benchmark; labels are the points about them."""
    for session in person.sessions:
        turns = tuple((turn.role == "user", turn.text) for turn in session.dialogue.turns)
        yield CountedSession(turns, session.points)


def distances(sessions: Sequence[CountedSession]) -> dict[str, float]:
    """Figures of talk and labels; shares are in [0, 1], rates per 1,000 words of the owner.

    Args:
        sessions: Some sessions, at least one with words of its owner.

    Returns:
        By name, in the order of the table.
    """
    own = [text for talk in sessions for text in talk.own if text.strip()]
    lengths = [len(text.split()) for text in own]
    spoken = [word.casefold() for text in own for word in words(text)]
    some = spoken[:_SAME_WORDS]
    fours = list(zip(*(some[shift:] for shift in range(4)), strict=False))
    thousands = len(spoken) / 1_000
    labels = [(talk, label) for talk in sessions for label in talk.labels]
    best = [_best_turn(label, talk.own) for talk, label in labels]
    answers = [_answers(label, talk) for talk, label in labels]
    carrying, turns = 0, 0
    for talk in sessions:
        stems = [content_stems(text) for text in talk.own]
        turns += len(stems)
        wanted = [content_stems(label) for label in talk.labels]
        carrying += sum(any(own and len(said & own) >= _CARRIES * len(own) for own in wanted) for said in stems)
    text = "\n".join(own)
    return {
        "words of an owner's turn, median": median(lengths),
        "words of an owner's turn, 9 of 10 at most": quantiles(lengths, n=10)[-1] if len(lengths) > 1 else lengths[0],
        "turns of a session": sum(len(talk.turns) for talk in sessions) / len(sessions),
        "memories per 100 words of the owner": 100 * len(labels) / max(len(spoken), 1),
        "turns of the owner that carry a memory": carrying / max(turns, 1),
        "words of emotion": sum(word in _EMOTION for word in spoken) / thousands,
        "weekdays and clock times": (sum(w in WEEKDAYS for w in spoken) + len(_CLOCK.findall(text))) / thousands,
        "sums of money": len(_MONEY.findall(text)) / thousands,
        "different words in 27,000": float(len(set(some))),
        "rows of four words that come once": len(set(fours)) / max(len(fours), 1),
        "labels that stand in one turn": sum(share >= _STANDS for share in best) / max(len(best), 1),
        "words of a label in its best turn, mean": sum(best) / max(len(best), 1),
        "labels told in an answer to a question": sum(answers) / max(len(answers), 1),
        "turns with a relative date": sum(bool(_RELATIVE.search(one)) for one in own) / len(own),
        "labels with a number or a month": sum(_dated(label) for _, label in labels) / max(len(labels), 1),
    }


def known_words(data: Iterable[CountedSession], target: Sequence[CountedSession]) -> float:
    """Share of the content stems of a target, each counted as often as it is said, that are in the data at all."""
    known: set[str] = set()
    for talk in data:
        for _, text in talk.turns:
            known |= content_stems(text)
    said = [stem for talk in target for _, text in talk.turns for stem in content_stems(text)]
    return sum(stem in known for stem in said) / max(len(said), 1)


def markdown(columns: Mapping[str, Sequence[CountedSession]], data: str) -> str:
    """The table of some columns; the last row says how much of each the column `data` knows."""
    found = {name: distances(sessions) for name, sessions in columns.items()}
    rows = [["", *columns], ["---", *["---:"] * len(columns)]]
    for measure in next(iter(found.values())):
        rows.append([measure, *(f"{of[measure]:,.2f}".rstrip("0").rstrip(".") for of in found.values())])
    known = [f"{known_words(columns[data], sessions):.2f}" for sessions in columns.values()]
    rows.append([f"content words that {data} knows", *known])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def sample(path: Path, most: int) -> list[CountedSession]:
    """Sessions of a data set, evenly spread over it, at most so many."""
    found = list(islice(talk_of_data(path), 20_000))
    step = max(len(found) // most, 1)
    return found[::step][:most]


def _best_turn(label: str, own: Sequence[str]) -> float:
    stems = content_stems(label)
    return max((len(stems & content_stems(text)) for text in own), default=0) / max(len(stems), 1)


def _answers(label: str, talk: CountedSession) -> bool:
    """Whether the turn that says most of a label answers a question of the other side."""
    stems = content_stems(label)
    places = [place for place, (mine, _) in enumerate(talk.turns) if mine]
    if not places:
        return False
    best = max(places, key=lambda place: len(stems & content_stems(talk.turns[place][1])))
    return best > 0 and not talk.turns[best - 1][0] and talk.turns[best - 1][1].rstrip().endswith("?")


def _dated(label: str) -> bool:
    return any(word[0].isdigit() or word.casefold() in MONTHS for word in words(label))


def distance(given: Sequence[str]) -> int:
    """Print how far a data set of ``python -m synth`` is from each file of a benchmark that is there."""
    if len(given) != 1:
        raise DeltaMemError("name the folder of one data set: python -m eval.transfer.distance DATA")
    path = Path(given[0])
    columns = {path.name: sample(path / "sessions.jsonl" if path.is_dir() else path, _SAMPLE)}
    for suite in SUITES:
        config = composed("transfer", [f"suites=[{suite}]", "conversations=null", "system=copy_all"])
        try:
            people = read_people(validated(config, TransferConfig)).people
        except DeltaMemError as error:
            print(error, file=sys.stderr)
            continue
        columns[suite] = [talk for person in people for talk in talk_of_person(person)]
    print(markdown(columns, path.name))
    return 0


if __name__ == "__main__":
    run_plain(lambda: distance(sys.argv[1:]))
