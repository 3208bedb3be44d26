"""Scores of CAME-Bench: answers as sets, recall of evidence, what a perfect reader makes of it, lazy policies, the table."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from rich.table import Table

from eval.compare.layout import ALL, Variant, columns_of
from eval.compare.layout import Table as PaperTable
from eval.records import QuestionRecord, judge_name
from eval.scores import AskedValue, Value, answer_value, metric_scores, retrieval_values, search_value
from eval.summary import Summary, category_table
from papers.stitch.came.data import CameData
from papers.stitch.came.reader import LogReader
from papers.stitch.came.records import TYPES, CameQuestion, ClosedWorld

F1, PRECISION, RECALL = "answer_f1", "answer_precision", "answer_recall"
READER_F1 = "reader_f1"
JUDGED_F1, JUDGED_PRECISION, JUDGED_RECALL = "judged_f1", "judged_precision", "judged_recall"
SINGLE, COUNT = "lenient", "count"
"""The judges: whether a single answer is right, and how many candidates of a set are."""
MOST = 60
"""Candidates of an answer that are counted, far more than any question has."""
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth")

_VALUES = {
    "price": re.compile(r"\$\d+"),
    "time": re.compile(r"\b\d\d:\d\d\b"),
    "deposit": re.compile(r"(?<![\d.])\d+%"),
    "figure": re.compile(r"(?<![\d.])\d+\.\d%"),
}


class SetScore(NamedTuple):
    """How a set of answers compares with the gold set."""

    precision: float
    recall: float
    f1: float


def set_score(predicted: Collection[object], gold: Collection[object]) -> SetScore:
    """Precision, recall and F1 of sets, section A.3; an empty prediction has none of them."""
    right = len(set(predicted) & set(gold))
    if not right:
        return SetScore(0.0, 0.0, 0.0)
    precision, recall = right / len(set(predicted)), right / len(set(gold))
    return SetScore(precision, recall, 2 * precision * recall / (precision + recall))


def candidates(answer: str) -> list[str]:
    """What an answer lists, each with at least a letter or digit; at most `MOST`."""
    parts = (part.strip(" \t-*•.") for part in re.split(r"[,;\n]+|\band\b", answer))
    return [part for part in parts if re.search(r"\w", part)][:MOST]


def _judged(measure: int) -> AskedValue:
    """Precision, recall or F1 of answers by the judges (listings 11 and 12), by its place in a `SetScore`."""

    def parts(record: QuestionRecord) -> list[tuple[float | None, bool]]:
        gold = len(candidates(record.gold or ""))
        found: list[tuple[float | None, bool]] = []
        for answer in record.answers:
            given = len(candidates(answer.text or ""))
            for name, verdict in answer.verdicts.items():
                worth: float | None = verdict.worth
                if worth and judge_name(name) == COUNT and verdict.label is not None:
                    # No more than there are: a judge that cannot count must not raise a score above 1
                    right = min(int(verdict.label), given, gold)
                    worth = set_score(range(given), range(given - right, given - right + gold))[measure]
                found.append((worth, answer.silent))
        return found

    return AskedValue(parts)


JUDGED: Mapping[str, AskedValue] = {
    name: _judged(place) for place, name in enumerate((JUDGED_PRECISION, JUDGED_RECALL, JUDGED_F1))
}
"""What a question is worth by the judges."""


class Resolver:
    """Finds what an answer names: entities of the world, by full name or first word, or values of one kind."""

    def __init__(self, world: ClosedWorld) -> None:
        self._by_stem = {entity.name.split()[0].casefold(): entity.name for entity in world.entities}

    def names(self, text: str) -> list[str]:
        """All entities that are named, each as often as it is."""
        found = (self._by_stem.get(word.casefold()) for word in re.findall(r"[^\W\d_]+", text))
        return [name for name in found if name is not None]

    def answers(self, question: CameQuestion, text: str) -> set[str]:
        """The set that an answer comes to. What the question itself names does not count."""
        if question.kind in _VALUES:
            return set(_VALUES[question.kind].findall(text))
        return set(self.names(text)) - ({question.arguments["entity"]} if "entity" in question.arguments else set())


def _options(question: CameQuestion, world: ClosedWorld) -> list[str]:
    kinds = {"place": ("accommodation", "restaurant", "attraction")}.get(question.kind, (question.kind,))
    return [entity.name for entity in world.entities if entity.kind in kinds]


def lazy_policies(data: CameData) -> dict[str, float]:
    """Mean F1 of answers that need no memory: everything of the kind that was ever said, or what was said most often."""
    said: dict[str, Counter[str]] = {}
    for name, trajectory in data.trajectories.items():
        resolver, text = Resolver(data.worlds[trajectory.world]), Counter[str]()
        for session in trajectory.sessions:
            for turn in session.turns:
                text.update(resolver.names(turn.text))
                for pattern in _VALUES.values():
                    text.update(pattern.findall(turn.text))
        said[name] = text
    scores: dict[str, list[float]] = {"everything": [], "most_frequent": []}
    for record in data.asked:
        question = data.questions[record.key]
        counts = said[question.trajectory]
        if question.kind in _VALUES:
            kind = [value for value in counts if _VALUES[question.kind].fullmatch(value)]
        else:
            kind = [name for name in _options(question, data.world_of(question)) if counts[name]]
        best = max(kind, key=lambda one: (counts[one], one), default="")
        scores["everything"].append(set_score(kind, question.answers).f1)
        scores["most_frequent"].append(set_score([best], question.answers).f1)
    return {name: sum(values) / len(values) for name, values in scores.items()}


def run_scores(
    data: CameData,
    questions: Sequence[QuestionRecord],
    found: Callable[[QuestionRecord], Iterable[str] | None],
    *,
    cutoffs: Iterable[int],
    resamples: int,
    seed: int,
) -> dict[str, dict[str, Any]]:
    """All scores by metric and type of question.

    ``judged_f1``, ``judged_precision``, ``judged_recall``: by the judges, where answers are judged; ``answer_f1``,
    ``answer_precision``, ``answer_recall``: of the set that an answer names; ``recall@k``: share of the evidence among the
    sources of the first k passages; ``reader_f1``: of what the log says if only the turns that were found are known, which
    is what retrieval allows a perfect reader.
    """

    def read(record: QuestionRecord) -> float | None:
        turns = found(record)
        if turns is None:
            return None
        question = data.questions[record.key]
        said, known = data.logs[question.trajectory].operation_of, set(turns)
        reader = LogReader(done for turn, done in said.items() if turn in known)
        return set_score(reader.answer(question, ORDINALS), question.answers).f1

    values: dict[str, Value] = {**JUDGED, **{name: answer_value(name) for name in (F1, PRECISION, RECALL)}}
    values |= {READER_F1: search_value(read), **retrieval_values(cutoffs)}
    return metric_scores(questions, values, order=TYPES, resamples=resamples, seed=seed)


def table(summary: Summary) -> Table:
    """Scores by type of question."""
    return category_table(
        summary, "recall: of evidence among the sources of passages; reader_f1: a perfect reader of what was found"
    )


LAYOUTS = (
    PaperTable(
        "as in Table 1 of the STITCH paper",
        columns_of({ALL: None}, {"precision": "P", "recall": "R", "f1": "F1", "reader": "F1 of a perfect reader"}),
        tuple(
            Variant(label, {name: f"{by}_{name}" for name in ("precision", "recall", "f1")} | {"reader": "reader_f1"})
            for label, by in (("judged", "judged"), ("by the names that answers hold", "answer"))
        ),
        id="came",
        note="Published rows are of the paper's own data: sizes and types of questions are alike; words, "
        "worlds and models are not. Compare rows of one size alone.",
    ),
)
"""As papers have them."""
