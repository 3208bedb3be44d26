"""``python -m eval.halumem``: HaluMem with any memory system, offline or with models that answer and judge.

Exit code 0; 1 if a line of the data, a session, an answer or a verdict failed (counted on stderr, the rest is kept); 2 for
bad input.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from eval import runner
from eval.answer import ContextBlock, cut_to_budget, render_all
from eval.benchmark import Benchmark, JudgeSpec, Report, Results, Timeline, TimelineStep
from eval.data import HALUMEM_LONG, HALUMEM_MEDIUM, require
from eval.evidence import EvidenceFinder
from eval.halumem import scores
from eval.halumem.data import (
    DATE_FORMAT,
    QUESTION_TYPES,
    HalumemConfig,
    HalumemSession,
    LinkedPoints,
    gold_passages,
    load_halumem,
    sampled,
)
from eval.judge import OfficialPrompt
from eval.metrics import bleu1, set_f1
from eval.records import LACKING, LATE, IngestRecord, PointRecord, QuestionRecord, Verdict
from eval.summary import Summary
from eval.systems.base import Passage, StoreKey, System

_VERDICT = {"label": "evaluation_result"}
OFFICIAL = {
    "integrity": OfficialPrompt(
        "EVALUATION_PROMPT_FOR_MEMORY_INTEGRITY", {"expected_memory_point": "point"}, {"label": "score"}
    ),
    "accuracy": OfficialPrompt(
        "EVALUATION_PROMPT_FOR_MEMORY_ACCURACY",
        {"golden_memories": "golden", "candidate_memory": "memory"},
        {"label": "accuracy_score", "included": "is_included_in_golden_memories"},
    ),
    "update": OfficialPrompt(
        "EVALUATION_PROMPT_FOR_UPDATE_MEMORY", {"updated_memory": "target", "original_memory": "originals"}, _VERDICT
    ),
    "qa": OfficialPrompt(
        "EVALUATION_PROMPT_FOR_QUESTION",
        {"reference_answer": "gold", "key_memory_points": "evidence", "response": "answer"},
        _VERDICT,
    ),
}
"""In the official ``eval/eval_tools.py``."""

POINT_JUDGES = {
    kind: JudgeSpec(f"halumem_{kind}", fields, scores.LABELS[kind], flags, calibrated=False, official=OFFICIAL[kind])
    for kind, fields, flags in (
        ("integrity", ("memories", "point"), {}),
        ("accuracy", ("dialogue", "golden", "memory"), {"included": ("true", "false")}),
        ("update", ("memories", "target", "originals"), {}),
    )
}
"""Of points and memories, by the kind of record."""

QA_FIELDS = ("question", "gold", "evidence", "answer")

_NONE = "(none)"

NOTHING_EXTRACTED = Verdict(label="0", reason="The session left no memory; no judge was asked.")
"""Of a point of a session without memories: it is absent, which is what is wished of an interference."""


class Halumem(Benchmark[HalumemConfig]):
    """A timeline for each user: one store, and after each session the questions and memory points of that session.

    The generated sessions of the long version are ingested and not evaluated.
    """

    name = "HaluMem"
    config_type = HalumemConfig
    search_state = "session"
    answer_prompt = "halumem_answer"
    uses_nltk = True
    tables = (scores.extraction_table, scores.outcomes_table, scores.retrieval_table)
    layouts = scores.LAYOUTS
    values = scores.VALUES

    def __init__(self, config: HalumemConfig) -> None:
        self.config = config
        path = config.data or require({"medium": HALUMEM_MEDIUM, "long": HALUMEM_LONG}[config.version])
        self.file = path.name
        self.data = load_halumem(path)
        self.users, self.sample = sampled(self.data, config)
        self.k = config.question_k
        self._questions = {question.key: question for user in self.data.users for question in user.questions}
        self.linked = lru_cache(maxsize=None)(lambda user: LinkedPoints(self.users[user]))
        self.points = HalumemPoints(self)

    @classmethod
    def judges(cls, config: HalumemConfig) -> Mapping[str, JudgeSpec]:
        """Those of points and memories, and those of answers that the configuration names."""
        answers = {
            name: JudgeSpec(f"halumem_{name}", QA_FIELDS, scores.LABELS["qa"], official=OFFICIAL.get(name))
            for name in config.judges
        }
        return POINT_JUDGES | answers

    def data_hashes(self) -> dict[str, str | None]:
        """Of the file."""
        return {"data_sha256": self.data.sha256}

    def timelines(self, system: System) -> list[Timeline]:
        """One for each user."""
        return [Timeline((StoreKey(user.id, user.name),), tuple(map(_step, user.sessions))) for user in self.users.values()]

    def evidence(self) -> dict[str, dict[str, list[Passage]]]:
        """The memory points behind each question and updated point."""
        return {user.id: gold_passages(user) for user in self.data.users}

    def prepare(self, question: QuestionRecord) -> QuestionRecord:
        """Leave only the evidence that is linked to turns, and note the rest."""
        turns = self._turns(question)
        unlinked = tuple(f"evidence that no turn could be found for: {text}" for text, ids in turns.items() if not ids)
        linked = tuple(text for text, ids in turns.items() if ids)
        return question.model_copy(update={"evidence": linked, "notes": unlinked})

    def finder(self, question: QuestionRecord) -> EvidenceFinder:
        """Of the user's sessions."""
        return self.linked(question.group).finder

    def evidence_turns(self, question: QuestionRecord) -> list[tuple[str, ...]]:
        """Those of each memory point behind the question."""
        return list(self._turns(question).values())

    def score(self, question: QuestionRecord, answer: str) -> dict[str, float]:
        """Lexical scores."""
        gold = question.gold or ""
        return {"set_f1": set_f1(answer, gold), "bleu1": bleu1(answer, gold)}

    def judge_fields(self, question: QuestionRecord, answer: str) -> dict[str, dict[str, str]]:
        """All judges are shown the same."""
        evidence = "\n".join(self._questions[question.key].evidence) or _NONE
        shown = {"question": question.question, "gold": question.gold or "", "evidence": evidence, "answer": answer}
        return dict.fromkeys(self.config.asked_judges, shown)

    def report(self, results: Results) -> Report:
        """All scores, with these keys besides.

        ``aggregate``: by judge of answers what `eval.halumem.scores.aggregate` makes of the records; ``points``: where every
        memory point went; ``evidence``: how much of it is linked to turns; ``out_of_order``: for how many questions and
        points the memory knew more or less than the sessions so far, because something failed before; ``cumulative`` and
        ``cumulative_strict``: accuracy by session.
        """
        config, questions, points = self.config, results.questions, results.points
        judged = [judgement for _, judgement in scores.point_judgements(points)]
        records: list[QuestionRecord | PointRecord] = [*questions, *points]
        notes = [record.notes for record in records if record.error is None]
        return Report(
            benchmark=self.data.version,
            protocol={
                "update_k": config.update_k,
                "question_k": config.question_k,
                "stores": "one per user",
                "cutoffs": sorted(set(config.cutoffs)),
                "judges": self.config.asked_judges,
            },
            data={"file": self.file, "sha256": self.data.sha256, "published": self.data.published, "sample": self.sample}
            | self.data.counts
            | {"unusable_lines": len(self.data.problems)},
            scores=scores.run_scores(questions, points, config, ranked=results.system.ranked),
            headline=(
                *(scores.question_metric(judge, "correct_qa_ratio(all)") for judge in self.config.asked_judges),
                "set_f1",
                *(f"recall@{k}" for k in sorted(config.cutoffs, reverse=True)),
            ),
            judged_by={
                scores.question_metric(judge, name): judge for judge in self.config.asked_judges for name in scores.QA
            },
            problems=self.data.problems,
            order=QUESTION_TYPES,
            more={
                "aggregate": {
                    judge: scores.aggregate(
                        judged + [item for record in questions for item in scores.question_judgements(record, judge)]
                    )
                    for judge in self.config.asked_judges
                },
                "points": _point_counts(self.data.counts["memory_points"], points),
                "evidence": self._evidence_counts(questions),
                "out_of_order": {
                    "after_later_sessions": sum(LATE in own for own in notes),
                    "without_earlier_sessions": sum(any(note.startswith(LACKING) for note in own) for own in notes),
                },
                "cumulative": scores.curve(questions, "qa") or None,
                "cumulative_strict": scores.curve(questions, "qa_strict") or None,
            },
        )

    @classmethod
    def lines(cls, summary: Summary) -> Iterable[str]:
        """Where the memory points went."""
        return scores.point_lines(summary)

    def _turns(self, question: QuestionRecord) -> dict[str, tuple[str, ...]]:
        """The turns that each memory point behind a question comes from."""
        linked = self.linked(question.group)
        return {text: linked.turns(text, question.session or 0) for text in question.evidence}

    def _evidence_counts(self, questions: Sequence[QuestionRecord]) -> dict[str, int]:
        gold = {record.key: len(set(self._questions[record.key].evidence)) for record in questions}
        found = [record for record in questions if record.error is None]
        return {
            "questions_with_evidence": sum(gold[record.key] > 0 for record in questions),
            "questions_without_evidence": sum(gold[record.key] == 0 for record in questions),
            "memory_points": sum(gold[record.key] for record in found),
            "linked_to_turns": sum(len(record.evidence) for record in found),
        }


class HalumemPoints:
    """Memory points and extracted memories.

    A point goes to the judge of updates if it is one and the memory finds something for it; else it stays with extraction.
    So updates do not count in the recall of extraction, and an update for which the memory is empty does not count among
    the updates.
    """

    def __init__(self, benchmark: Halumem) -> None:
        self.k = benchmark.config.update_k  # Passages that a point is searched for
        self._config = benchmark.config
        self._linked = benchmark.linked
        self._sessions = {(user.id, session.number): session for user in benchmark.data.users for session in user.sessions}
        self._points = {point.record.key: point for session in self._sessions.values() for point in session.points}

    def extracted(self, step: TimelineStep, ingested: Sequence[IngestRecord]) -> list[PointRecord]:
        """One record for each memory that the system extracted from the step's only session."""
        (record,) = ingested
        return [
            PointRecord(
                key=f"{record.key}/m{position}", kind="accuracy", user=record.store, session=record.number, text=memory
            )
            for position, memory in enumerate(_memories(record) or (), start=1)
        ]

    def is_searched(self, point: PointRecord) -> bool:
        """Whether the memory is searched for a point: for updates that name what they replace."""
        return point.key in self._points and self._points[point.key].searched

    def found(self, point: PointRecord, passages: Sequence[Passage], *, ranked: bool) -> PointRecord:
        """The record of a point that was searched for: its turns, the first passage that holds one, and its judge."""
        linked = self._linked(point.user)
        turns = linked.turns(point.text, point.session)
        rank = linked.finder.ranks([turns], passages)[0] if ranked and turns else None
        kind = "update" if point.is_update and point.retrieved else "integrity"
        return point.model_copy(update={"turns": turns, "rank": rank, "kind": kind})

    def failed(self, point: PointRecord, reason: str | None) -> PointRecord:
        """The record of a point that could not be searched for: an update, as a search hardly ever finds nothing."""
        turns = self._linked(point.user).turns(point.text, point.session)
        return point.model_copy(update={"turns": turns, "kind": "update", "error": reason})

    def is_judged(self, point: PointRecord, ingested: Sequence[IngestRecord]) -> bool:
        """Whether a judge is asked: extraction is not measured of systems that extract nothing."""
        return point.kind == "update" or _memories(ingested[0]) is not None

    def judge_fields(
        self, point: PointRecord, ingested: Sequence[IngestRecord], passages: Sequence[Passage], *, ranked: bool
    ) -> Mapping[str, str] | Verdict:
        """What the judge called `PointRecord.kind` is shown, or the verdict where none need be asked.

        No interference is among the agreed facts.
        """
        if point.kind == "accuracy":
            session = self._sessions[point.user, point.session]
            said = (
                f"[{(turn.time or session.dialogue.time).strftime(DATE_FORMAT)}]{turn.role}: {turn.text}"
                for turn in session.dialogue.turns
            )
            golden = [one.record.text for one in session.points if one.record.source != "interference"]
            return {"dialogue": "\n".join(said), "golden": "\n".join(golden) or _NONE, "memory": point.text}
        if point.kind == "update":
            block = ContextBlock("", tuple(passages), by_time=not ranked)
            with_time, answer = self._config.with_time, self._config.answer
            how: dict[str, Any] = {"counted": answer.counted, "sentences": answer.cut == "sentence"}
            shown = cut_to_budget([block], answer.context_tokens, with_time=with_time, **how)
            return {
                "memories": render_all(shown.blocks, with_time=with_time) or _NONE,
                "target": point.text,
                "originals": "\n".join(self._points[point.key].originals) or _NONE,
            }
        memories = _memories(ingested[0])
        return {"memories": "\n".join(memories) or _NONE, "point": point.text} if memories else NOTHING_EXTRACTED


def _step(session: HalumemSession) -> TimelineStep:
    dialogue = ((session.dialogue,),)
    if session.generated:
        return TimelineStep(dialogue)
    questions = (
        question.model_copy(update={"evidence": tuple(dict.fromkeys(question.evidence))}) for question in session.questions
    )
    return TimelineStep(dialogue, tuple(questions), tuple(point.record for point in session.points))


def _memories(record: IngestRecord) -> tuple[str, ...] | None:
    """What a system extracted from a session; None for systems that extract nothing.

    A session that the system's model answered unreadably left no memories, which is the system's doing.
    """
    return () if record.memories is None and record.outcome == "unreadable" else record.memories


def _point_counts(total: int, records: Sequence[PointRecord]) -> dict[str, Any]:
    """Where every memory point of the file went; the parts add up to the total."""
    points = [record for record in records if record.kind != "accuracy"]
    failed = [record for record in points if not record.complete]
    judged = [record for record in points if record.complete and record.verdict is not None]
    searched = [record for record in points if record.searched]
    return {
        "total": total,
        "not_reached": total - len(points),
        "failed": len(failed),
        "judged": len(judged),
        "not_judged": len(points) - len(failed) - len(judged),
        "by_kind": dict(Counter(record.kind for record in points)),
        "by_source": dict(Counter(str(record.source) for record in points)),
        "searched": len(searched),
        "searched_and_linked": sum(bool(record.turns) for record in searched),
        "extracted_memories": len(records) - len(points),
    }


if __name__ == "__main__":
    runner.command(Halumem, "halumem")
