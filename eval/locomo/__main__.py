"""``python -m eval.locomo``: LoCoMo with any memory system, offline or with models that answer and judge.

Exit code 0; 1 if a session, an answer or a verdict failed (counted on stderr, the rest is kept); 2 for bad input.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from eval import runner
from eval.benchmark import Benchmark, JudgeSpec, Report, Results, Timeline, TimelineStep, gold_evidence
from eval.data import LOCOMO
from eval.evidence import EvidenceFinder
from eval.locomo import scores
from eval.locomo.data import (
    ADVERSARIAL,
    ADVERSARIAL_NUMBER,
    COLUMNS,
    LocomoConfig,
    dialogues,
    question_record,
    read_data,
    version_name,
)
from eval.metrics import bleu1, locomo_f1, set_f1, token_set_f1
from eval.records import QuestionRecord
from eval.systems.base import System


class Locomo(Benchmark[LocomoConfig]):
    """A timeline for each conversation: one store or one for each speaker, all sessions, then all questions."""

    name = LOCOMO.name
    config_type = LocomoConfig
    search_state = "latest"
    answer_prompt = "answer_locomo"
    uses_nltk = True
    tables = (scores.table, scores.adversarial_table)
    layouts = scores.LAYOUTS

    def __init__(self, config: LocomoConfig) -> None:
        self.config = config
        self.data = read_data(config)
        self._questions = {
            question_record(conversation, question).key: question
            for conversation, questions in self.data.asked.items()
            for question in questions
        }
        self._finder = lru_cache(maxsize=None)(self._make_finder)

    @classmethod
    def judges(cls, config: LocomoConfig) -> Mapping[str, JudgeSpec]:
        """Those of the configuration, and that of category 5."""
        return scores.judge_specs(config.judges)

    def data_hashes(self) -> dict[str, str | None]:
        """Of the file and of the audit if it was applied."""
        audit = self.data.audit.sha256 if self.data.audit is not None and self.data.audited else None
        return {"data_sha256": self.data.sha256, "audit_sha256": audit}

    def timelines(self, system: System) -> list[Timeline]:
        """One for each conversation that is asked about."""
        self.k = self.config.k if system.per_speaker else 2 * self.config.k
        timelines = []
        for conversation in self.data.conversations:
            asked = self.data.asked[conversation.id]
            if asked:
                stores = dialogues(conversation, per_speaker=system.per_speaker, captions=self.config.captions)
                questions = tuple(question_record(conversation.id, question) for question in asked)
                timelines.append(Timeline(tuple(stores), (TimelineStep(tuple(stores.values()), questions),), titled=True))
        return timelines

    def evidence(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """By conversation and question."""
        every = ((one.id, question) for one in self.data.conversations for question in one.questions)
        return gold_evidence((name, question.text, question.evidence) for name, question in every)

    def finder(self, question: QuestionRecord) -> EvidenceFinder:
        """Of the conversation."""
        return self._finder(question.group)

    def score(self, question: QuestionRecord, answer: str) -> dict[str, float]:
        """Lexical scores; none where there is no gold answer to compare with."""
        number, gold = self._questions[question.key].category, question.gold
        if number == ADVERSARIAL_NUMBER:
            return {scores.ABSTENTION: locomo_f1(answer, gold, number)}
        if gold is None:
            return {}
        return {
            "locomo_f1": locomo_f1(answer, gold, number),
            "set_f1": set_f1(answer, gold),
            "token_set_f1": token_set_f1(answer, gold),
            "bleu1": bleu1(answer, gold),
        }

    def judge_fields(self, question: QuestionRecord, answer: str) -> dict[str, dict[str, str]]:
        """Those of the configuration where there is a gold answer, in category 5 the one of abstention."""
        shown = {"question": question.question, "answer": answer}
        asked = self._questions[question.key]
        if asked.category == ADVERSARIAL_NUMBER:
            return {scores.ABSTENTION_JUDGE: shown | {"trap": asked.adversarial_answer or ""}}
        if question.gold is None:
            return {}
        return dict.fromkeys(self.config.asked_judges, shown | {"gold": question.gold})

    def report(self, results: Results) -> Report:
        """Scores by category, how the questions of the file add up, and the ceiling that an audit sets."""
        config, data, questions = self.config, self.data, results.questions
        failed, described = sum(not record.complete for record in questions), data.description()
        return Report(
            benchmark=self.name,
            protocol={
                "k": config.k,
                "stores_per_conversation": 2 if results.system.per_speaker else 1,
                "k_each_store": self.k,
                "cutoffs": sorted(set(config.cutoffs)),
                "captions": config.captions,
                "gold": config.gold,
                "pooled": COLUMNS,
                "judges": self.config.asked_judges,
            },
            data=described | {"published": data.sha256 == LOCOMO.sha256},
            scores=scores.run_scores(questions, config),
            headline=(
                *self.config.asked_judges,
                "locomo_f1",
                *(f"recall@{k}" for k in sorted(config.cutoffs, reverse=True)),
            ),
            order=(*COLUMNS, ADVERSARIAL),
            more={
                "version": version_name(data.released, data.sha256, data.sample),
                "accounting": {
                    "total": described["questions"],
                    "asked": len(questions) - failed,
                    "failed": failed,
                    "not_asked": dict(data.not_asked),
                },
                "ceiling": data.ceiling(),
            },
        )

    def _make_finder(self, name: str) -> EvidenceFinder:
        conversation = next(one for one in self.data.conversations if one.id == name)
        (sessions,) = dialogues(conversation, per_speaker=False, captions=self.config.captions).values()
        return EvidenceFinder.of(sessions, conversation.speakers)


if __name__ == "__main__":
    runner.command(Locomo, "locomo")
