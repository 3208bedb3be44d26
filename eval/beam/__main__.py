"""``python -m eval.beam``: a memory system on BEAM, in one of its four sizes, offline or with models.

Exit code 0; 1 if something broke or was missing in the data (it is counted, the rest is kept); 2 for bad input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from rich.table import Table

from eval import runner
from eval.beam.data import ABILITIES, BATCH_TURNS, EVENT_ORDERING, BeamConfig, read_data
from eval.benchmark import Benchmark, JudgeSpec, Report, Results, Timeline, TimelineStep, gold_evidence
from eval.compare.layout import ALL, Variant, columns_of
from eval.compare.layout import Table as PaperTable
from eval.evidence import EvidenceFinder
from eval.judge import CORRECT, QUESTION_FIELDS, WRONG
from eval.records import AnswerRecord, QuestionRecord
from eval.scores import AskedValue, Value, drawn_over, metric_scores, retrieval_values
from eval.summary import Summary, counted, score_cells, score_table
from eval.systems.base import StoreKey, System

RUBRIC, ORDER = "rubric", "order"
NO_LINE = "none"
MOST_LINES = 60
"""Lines of an answer in which events are looked for; later ones count as wrong."""


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
    title = f"{summary.version.partition(':')[0]}, {summary.label()}: %"
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


class Beam(Benchmark[BeamConfig]):
    """A timeline for each chat: one store, the whole chat, then all questions."""

    name = "BEAM"
    config_type = BeamConfig
    search_state = "latest"
    answer_prompt = "answer_beam"
    tables = (table,)
    layouts = LAYOUTS
    values = VALUES

    def __init__(self, config: BeamConfig) -> None:
        self.config = config
        self.data = read_data(config)
        self.k = config.k
        self._questions = {one.record.key: one for chat in self.data.asked for one in chat.questions}
        self._finder = lru_cache(maxsize=config.stores_at_once)(self._find_in)

    @classmethod
    def judges(cls, config: BeamConfig) -> Mapping[str, JudgeSpec]:
        """One for the items of rubrics, which is measured as a judge of answers, and one that finds an event among lines."""
        lines = (NO_LINE, *map(str, range(1, MOST_LINES + 1)))
        return {
            RUBRIC: JudgeSpec("judge_beam_rubric", QUESTION_FIELDS, tuple(CREDIT)),
            ORDER: JudgeSpec("judge_beam_order", ("question", "gold", "lines"), lines, calibrated=False),
        }

    def data_hashes(self) -> dict[str, str | None]:
        """Of each file."""
        return {f"data_sha256 {number}": sha256 for number, sha256 in enumerate(self.data.hashes.values(), start=1)}

    def timelines(self, system: System) -> list[Timeline]:
        """One for each chat that is asked about."""
        return [
            Timeline(
                (StoreKey(chat.id, "the user", BATCH_TURNS),),
                (TimelineStep((chat.sessions,), tuple(question.record for question in chat.questions)),),
            )
            for chat in self.data.asked
        ]

    def evidence(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """By chat and question."""
        records = (question.record for question in self._questions.values())
        return gold_evidence((record.group, record.question, record.evidence) for record in records)

    def finder(self, question: QuestionRecord) -> EvidenceFinder:
        """Of the chat."""
        return self._finder(question.group)

    def _find_in(self, chat: str) -> EvidenceFinder:
        return EvidenceFinder.of(next(one.sessions for one in self.data.asked if one.id == chat))

    def judge_fields(self, question: QuestionRecord, answer: str) -> dict[str, dict[str, str]]:
        """Once for each item of the rubric."""
        judge, key, shown = RUBRIC, "answer", answer
        if question.category == EVENT_ORDERING:
            numbered = enumerate(answer_lines(answer)[:MOST_LINES], start=1)
            judge, key, shown = ORDER, "lines", "\n".join(f"{number}: {line}" for number, line in numbered)
        return {
            f"{judge}/{number}": {"question": question.question, "gold": item, key: shown}
            for number, item in enumerate(self._questions[question.key].rubric, start=1)
        }

    def report(self, results: Results) -> Report:
        """Scores by ability."""
        config, data = self.config, self.data
        return Report(
            benchmark=f"{self.name} {config.size.upper()}",
            protocol={
                "k": config.k,
                "stores": "one a chat; a session is a main question of the user with all that follows from it",
                "cutoffs": sorted(set(config.cutoffs)),
                "batch_turns": BATCH_TURNS,
                "judges": "each item of a rubric: correct 1, partial 0.5, wrong 0; our own words",
                "event_ordering": "(tau-b + 1) / 2 of the lines of the answer, as the official report has it; the judge is "
                "asked once an event for the line that names it, officially about each pair; blank lines do not count",
                "evidence": "the messages of source_chat_ids, for updates and contradictions those of both statements",
                "intervals": f"95%, {drawn_over(len({one.group for one in results.questions}), 'chat')}",
            },
            data=data.description(),
            scores=run_scores(results.questions, config),
            headline=(SCORE, f"recall@{max(config.cutoffs)}"),
            judged_by=dict.fromkeys((SCORE, STRICT), RUBRIC),
            problems=data.problems,
            order=ABILITIES,
        )


if __name__ == "__main__":
    runner.command(Beam, "beam")
