"""BEAM's scores: rubrics judged item by item, the order of events by Kendall's tau-b, recall of messages, their table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from eval.beam.data import ABILITIES, EVENT_ORDERING, BeamConfig
from eval.compare.layout import ALL, Variant, columns_of
from eval.compare.layout import Table as PaperTable
from eval.judge import CORRECT, WRONG
from eval.records import AnswerRecord, QuestionRecord
from eval.scores import AskedValue, Value, drawn_over, metric_scores, retrieval_values
from eval.summary import Summary, counted, score_cells, score_table

SCORE, STRICT = "score", "score_strict"

CREDIT = {CORRECT: 1.0, "partial": 0.5, WRONG: 0.0}
"""Labels of the judge of rubric items, and what they count."""


def answer_lines(text: str) -> list[str]:
    """The lines of an answer that are not blank."""
    return [line.strip() for line in text.splitlines() if line.strip()]


def order_score(found: Sequence[int | None], lines: int) -> float:
    """How well an answer orders the events, from 0 to 1: tau-b of the official code, moved from [-1, 1] to [0, 1].

    Lines are matched in turn with the first event that is named in them and not matched yet. Then both orders, that of the
    events and that of the lines, are ranked over all events and all lines without an event; what one of them lacks is ranked
    last in it, with equal ranks.

    Args:
        found: For each event, in the right order, the line from 0 that names it; None if none does.
        lines: Lines of the answer.
    """
    from scipy.stats import kendalltau

    if not lines:
        return 0.0
    left = list(range(len(found)))
    said: list[tuple[str, int]] = []
    for line in range(lines):
        event = next((one for one in left if found[one] == line), None)
        if event is not None:
            left.remove(event)
        said.append(("line", line) if event is None else ("event", event))
    events = [("event", number) for number in range(len(found))]
    every = list(dict.fromkeys([*events, *said]))
    ranks = [{one: rank for rank, one in enumerate(order)} for order in (events, said)]
    if len(every) == 1:
        return 1.0  # one event in one line has no order, and is right
    tau = kendalltau(*([own.get(one, len(every)) for one in every] for own in ranks), variant="b").statistic
    return float(tau + 1) / 2


def run_scores(questions: Sequence[QuestionRecord], config: BeamConfig) -> dict[str, dict[str, Any]]:
    """All scores by metric and ability.

    ``score``: the mean of the rubric's items, or the order of events; ``score_strict`` gives nothing for an item that is
    shown in part, as the official code does, against the paper; ``recall@k`` and ``mrr`` of the messages.
    """
    values: dict[str, Value] = {**VALUES, **retrieval_values(config.cutoffs)}
    return metric_scores(questions, values, resamples=config.resamples, seed=config.seed, order=ABILITIES)


def _value(credit: Mapping[str, float]) -> AskedValue:
    """Each item is a part of the score of an answer, the order of events is one part."""

    def parts(record: QuestionRecord) -> list[tuple[float | None, bool]]:
        if record.category == EVENT_ORDERING:
            return [part for answer in record.answers for part in _ordered(answer)]
        return [
            (None if verdict.label is None else credit.get(verdict.label, 0.0), answer.silent)
            for answer in record.answers
            for verdict in answer.verdicts.values()
        ]

    return AskedValue(parts)


VALUES: Mapping[str, AskedValue] = {SCORE: _value(CREDIT), STRICT: _value({**CREDIT, "partial": 0.0})}
"""What a question is worth by the scores of the judges."""


def _ordered(answer: AnswerRecord) -> Iterator[tuple[float | None, bool]]:
    runs: dict[str, list[str | None]] = {}
    for name, verdict in answer.verdicts.items():
        runs.setdefault(name.partition("#")[2], []).append(verdict.label)
    for labels in runs.values():
        found = [int(label) - 1 if label and label.isdigit() else None for label in labels]
        yield None if None in labels else order_score(found, len(answer_lines(answer.text or ""))), answer.silent


def table(summary: Summary) -> Table:
    """Scores in percent, one row an ability, as there are ten of them; each with its interval."""
    intervals = drawn_over(summary.questions.groups, "chat")
    caption = f"95% intervals: {intervals}. Recall: whether the text of a passage still holds what was said."
    title = f"{summary.version.partition(':')[0]}, {summary.system}: %"
    view = score_table(title, caption, summary.scores, corner="questions")
    for name, count in counted(summary).items():
        cells = (score_cells(summary, metric, {name: count})[0] for metric in summary.scores)
        view.add_row(f"{name.replace('_', ' ')} {count}", *(cell.replace("\n", " ") for cell in cells))
    return view


LAYOUTS = (
    PaperTable(
        "abilities as in its paper",
        columns_of(dict.fromkeys((*ABILITIES, ALL)), {"score": ""}),
        (Variant("", {"score": "score"}), Variant("partly met counts as not met", {"score": "score_strict"})),
        id="beam",
        note="Sizes are apart from each other: compare rows of one size alone.",
    ),
)
"""As papers have them."""
