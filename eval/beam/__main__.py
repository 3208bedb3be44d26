"""``python -m eval.beam``: a memory system on BEAM, in one of its four sizes, offline or with models.

Exit code 0; 1 if something broke or was missing in the data (it is counted, the rest is kept); 2 for bad input.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from eval import runner
from eval.beam import scores
from eval.beam.data import ABILITIES, BATCH_TURNS, EVENT_ORDERING, BeamConfig, read_data
from eval.benchmark import Benchmark, JudgeSpec, Report, Results, Timeline, TimelineStep, gold_evidence
from eval.evidence import EvidenceFinder
from eval.judge import QUESTION_FIELDS
from eval.records import QuestionRecord
from eval.scores import drawn_over
from eval.systems.base import StoreKey, System

RUBRIC, ORDER = "rubric", "order"
NO_LINE = "none"
MOST_LINES = 60
"""Lines of an answer in which events are looked for; later ones count as wrong."""


class Beam(Benchmark[BeamConfig]):
    """A timeline for each chat: one store, the whole chat, then all questions."""

    name = "BEAM"
    config_type = BeamConfig
    search_state = "latest"
    answer_prompt = "answer_beam"
    tables = (scores.table,)
    layouts = scores.LAYOUTS
    values = scores.VALUES

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
            RUBRIC: JudgeSpec("judge_beam_rubric", QUESTION_FIELDS, tuple(scores.CREDIT)),
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
            numbered = enumerate(scores.answer_lines(answer)[:MOST_LINES], start=1)
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
            scores=scores.run_scores(results.questions, config),
            headline=(scores.SCORE, f"recall@{max(config.cutoffs)}"),
            judged_by=dict.fromkeys((scores.SCORE, scores.STRICT), RUBRIC),
            problems=data.problems,
            order=ABILITIES,
        )


if __name__ == "__main__":
    runner.command(Beam, "beam")
