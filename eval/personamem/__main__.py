"""``python -m eval.personamem system=naive_rag``: a memory system on PersonaMem v1.

Exit code 0; 1 if something broke or was missing in the data (it is counted, the rest is kept); 2 for bad input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from eval import runner
from eval.benchmark import Benchmark, Report, Results, Timeline, TimelineStep, gold_evidence
from eval.evidence import EvidenceFinder
from eval.personamem import scores
from eval.personamem.data import (
    BATCH_TURNS,
    FIRST_DAY,
    LABELS,
    PersonaHistory,
    PersonaMemConfig,
    in_order,
    question_record,
    read_data,
    record_key,
)
from eval.records import PassageRecord, QuestionRecord
from eval.scores import drawn_over
from eval.summary import Summary
from eval.systems.base import System

_LOST = {"context_missing": "their context is not in", "end_out_of_range": "their end index is not within their context in"}


class PersonaMem(Benchmark[PersonaMemConfig]):
    """A timeline for each context: one store, and each question when exactly the messages before it are ingested."""

    name = "PersonaMem"
    config_type = PersonaMemConfig
    search_state = "exact"
    answer_prompt = "answer_personamem"
    answer_fields = ("context", "question", "options")
    tables = (scores.table,)
    layouts = scores.LAYOUTS
    labels = LABELS
    values = scores.VALUES

    def __init__(self, config: PersonaMemConfig) -> None:
        self.config = config
        self.data = read_data(config)
        self.k = config.k
        self._samples = {sample.record.key: sample for history in self.data.histories for sample in history.samples}
        self._histories = {sample.record.key: history for history in self.data.histories for sample in history.samples}
        self._finder = lru_cache(maxsize=None)(_finder)
        self._keys = [record_key(question) for question in self.data.selected]

    def data_hashes(self) -> dict[str, str | None]:
        """Of both files."""
        return {"questions_sha256": self.data.questions.sha256, "contexts_sha256": self.data.contexts.sha256}

    def timelines(self, system: System) -> list[Timeline]:
        """One for each context that is asked about."""
        timelines = []
        for history in self.data.histories:
            steps = [
                TimelineStep((sessions,), tuple(sample.record for sample in samples))
                for sessions, samples in history.steps(set(self._keys))
            ]
            if steps:
                timelines.append(Timeline((history.key,), tuple(steps)))
        return timelines

    def question_keys(self, timelines: Sequence[Timeline]) -> list[str]:
        """As the questions file has them."""
        return self._keys

    def unaskable(self) -> Iterable[QuestionRecord]:
        """Questions without a history."""
        for question in self.data.selected:
            if lost := self.data.lost.get(record_key(question)):
                yield question_record(question, error=lost.reason)

    def evidence(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """Ids of the turns of the referenced block."""
        every = ((history.key.id, sample) for history in self.data.histories for sample in history.samples)
        return gold_evidence((store, sample.question.text, sorted(sample.evidence, key=int)) for store, sample in every)

    def finder(self, question: QuestionRecord) -> EvidenceFinder:
        """Of the context."""
        return self._finder(self._histories[question.key])

    def evidence_turns(self, question: QuestionRecord) -> list[frozenset[str]]:
        """Those of the referenced block, as one piece."""
        return [self._samples[question.key].evidence] if question.evidence else []

    def options(self, question: QuestionRecord) -> tuple[str, ...]:
        """Four, each with its letter."""
        return self._samples[question.key].question.options

    def score(self, question: QuestionRecord, answer: str) -> dict[str, float]:
        """Whether the letter is right."""
        return scores.score_answer(question, answer)

    def report(self, results: Results) -> Report:
        """Accuracy and retrieval by type of question, the spread over runs, and how sure the referenced blocks are."""
        config, questions = self.config, results.questions
        return Report(
            benchmark=f"{self.name} {self.data.size}",
            protocol={
                "k": config.k,
                "stores": "one a context; each question is searched for when exactly the messages before it are in "
                "the store",
                "batch_turns": BATCH_TURNS,
                "system_messages": config.system_messages,
                "dates": f"made up, the data has none: session n is dated n days after {FIRST_DAY:%Y-%m-%d}",
                "runs": config.runs,
                "score": "accuracy: by the benchmark's own rule, which has two guesses, the letter after the last "
                "<final_answer>, else the only letter in the whole answer; accuracy_final: what follows the tag, or a "
                "whole answer that is one letter; means over the runs",
                "std": "of the population of runs",
                "intervals": f"95%, {drawn_over(len({one.group for one in questions}), 'persona')}",
                "reference": "the session that lies distance_to_ref_in_blocks back; recall@k: a passage holds a turn of it",
            },
            data=self._description(),
            scores=scores.run_scores(
                questions,
                self._samples,
                lambda record, k: self._held(record, results.found(record)[:k]),
                config,
            ),
            problems=(*self.data.questions.problems, *self.data.contexts.problems),
            headline=("accuracy_final", *(f"recall@{k}" for k in sorted(config.cutoffs, reverse=True))),
            order=in_order(record.category for record in questions),
            more={
                "accuracy_over_runs": scores.spread_over_runs(questions, config.runs),
                "letters_named": scores.letters_named(questions),
                "referenced_block": self._block_counts(),
            },
        )

    @classmethod
    def lines(cls, summary: Summary) -> Iterable[str]:
        """How many questions were answered."""
        yield f"{summary.questions.answered} of {summary.questions.total} questions answered"

    @classmethod
    def failure_lines(cls, summary: Summary) -> Iterable[str]:
        """What of the data could not be used."""
        data, total = summary.data, summary.questions.total
        for kind, count in data["questions_without_history"].items():
            yield f"{count} of {total} questions could not be asked: {_LOST[kind]} {data['files'][1]}"
        if broken := data["unreadable_rows"]:
            yield f"{broken} of {total} rows of {data['files'][0]} could not be read"

    def _held(self, question: QuestionRecord, passages: Sequence[PassageRecord]) -> list[bool]:
        """Of each passage whether it holds a turn of the block that a question refers to."""
        held, evidence = self.finder(question).held, self._samples[question.key].evidence
        return [not evidence.isdisjoint(held(passage.text)) for passage in passages]

    def _description(self) -> dict[str, Any]:
        questions, contexts = self.data.questions, self.data.contexts
        known, rows = questions.content, len(questions.content) + len(questions.problems)
        return {
            "release": f"{self.name} v1, {self.data.size}",
            "files": [questions.name, contexts.name],
            "sha256": {questions.name: questions.sha256, contexts.name: contexts.sha256},
            "published": self.data.published,
            "questions": rows,
            "sample": self.data.sample,
            "types": len({question.type for question in known}),
            "personas": len({question.persona for question in known}),
            "contexts": len({question.context for question in known}),
            "histories": len({(question.context, question.end) for question in known}),
            "questions_of_types": Counter(question.type for question in known),
            "unreadable_rows": len(questions.problems),
            "questions_without_history": Counter(lost.kind for lost in self.data.lost.values()),
        }

    def _block_counts(self) -> dict[str, int]:
        blocks = [self._samples[key].block for key in self._keys if key in self._samples]
        agreed = sum(block is not None and block.agrees for block in blocks)
        missing = sum(block is None for block in blocks)
        return {"both_distances_agree": agreed, "they_do_not": len(blocks) - agreed - missing, "none": missing}


def _finder(history: PersonaHistory) -> EvidenceFinder:
    return EvidenceFinder.of((piece.session for piece in history.pieces), (history.key.owner, "User", "Assistant"))


if __name__ == "__main__":
    runner.command(PersonaMem, "personamem")
