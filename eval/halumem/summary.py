"""The summary of a run: where every point and question went, the benchmark's numbers, and what they were made with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from eval.answering.probes import ProbeResult
from eval.halumem.aggregation import aggregate, point_judgements, question_judgements
from eval.halumem.files import PointFiles
from eval.halumem.judging import Prompts
from eval.halumem.lines import QUESTION_TYPES
from eval.halumem.loader import Halumem
from eval.halumem.parts import Part
from eval.halumem.records import PointRecord
from eval.halumem.scoring import curve, run_scores
from eval.halumem.searching import LACKING, LATE
from eval.halumem.settings import HalumemConfig
from eval.results.records import QuestionRecord
from eval.results.summary import build_summary
from eval.systems.protocol import System


def summarise(
    config: HalumemConfig,
    *,
    file: str,
    benchmark: Halumem,
    parts: Sequence[Part],
    files: PointFiles,
    system: System,
    usage: Mapping[str, Any],
    probes: Sequence[ProbeResult],
    prompts: Prompts,
    seconds: Mapping[str, float],
) -> dict[str, Any]:
    """Put the summary together from all records, those of earlier runs included.

    Returns:
        `eval.results.summary.build_summary` with these keys besides: ``aggregate``, by judge of answers (without one under
        ``points``) what `eval.halumem.aggregate` makes of the records; ``points``, where every memory point went;
        ``evidence``, how much of it is linked to turns; ``out_of_order``, for how many
        questions and points the memory knew more or less than the sessions so far, because something failed before;
        ``cumulative``, accuracy by session, and ``cumulative_strict``.
    """
    asked = [key for part in parts for session in part.evaluated for key in (q.key for q in part.questions(session))]
    questions = [record for key in asked if (record := files.questions.get(key)) is not None]
    reached = {(part.user.id, session.number) for part in parts for session in part.evaluated}
    points = [record for record in files.points if (record.user, record.session) in reached]
    stores = {(part.key.id, session.dialogue.id) for part in parts for session in part.sessions}
    judges = list(prompts.answers)
    by_origin = [bool(passage.sources) for passage in files.passages]
    rules = (["origin"] if any(by_origin) else []) + (["words"] if not all(by_origin) else [])
    judged = [judgement for _, judgement in point_judgements(points)]
    return build_summary(
        config,
        benchmark=benchmark.version,
        protocol={
            "update_k": config.update_k,
            "question_k": config.question_k,
            "stores": "one per user",
            "cutoffs": sorted(set(config.cutoffs)),
            "point_found_by": rules if system.ranked else [],
            "judges": judges,
        },
        data={"file": file, "sha256": benchmark.sha256} | benchmark.counts | {"unusable_lines": len(benchmark.problems)},
        questions=questions,
        sessions=[record for record in files.sessions if (record.store, record.session) in stores],
        scores=run_scores(
            questions,
            points,
            judges=judges,
            cutoffs=config.cutoffs,
            update_k=config.update_k,
            ranked=system.ranked,
            resamples=config.resamples,
            seed=config.seed,
        ),
        system_facts=system.facts(),
        usage=usage,
        probes=[probe.as_dict() for probe in probes],
        prompt_hashes=prompts.hashes,
        seconds=seconds,
        problems=benchmark.problems,
        verdicts=[
            verdict.model_copy(update={"error": verdict.error and f"{record.key}, {record.kind}: {verdict.error}"})
            for record in points
            if (verdict := record.verdict) is not None
        ],
        search_seconds=[record.search_seconds for record in points if record.searched],
        failed_searches=[f"{record.key}: {record.error}" for record in points if record.error is not None],
        order=QUESTION_TYPES,
        more={
            "aggregate": {
                judge: aggregate(judged + [item for record in questions for item in question_judgements(record, judge)])
                for judge in judges
            },
            "points": _points(benchmark, points),
            "evidence": _evidence(benchmark, parts, questions),
            "out_of_order": _out_of_order([*questions, *points]),
            "cumulative": curve(questions, "qa") or None,
            "cumulative_strict": curve(questions, "qa_strict") or None,
        },
    )


def _points(benchmark: Halumem, records: Sequence[PointRecord]) -> dict[str, Any]:
    """Where every memory point of the file went; the parts add up to the total."""
    points = [record for record in records if record.kind != "accuracy"]
    total = benchmark.counts["memory_points"]
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


def _out_of_order(records: Sequence[QuestionRecord | PointRecord]) -> dict[str, int]:
    notes = [record.notes for record in records if record.error is None]
    return {
        "after_later_sessions": sum(LATE in own for own in notes),
        "without_earlier_sessions": sum(any(note.startswith(LACKING) for note in own) for own in notes),
    }


def _evidence(benchmark: Halumem, parts: Sequence[Part], questions: Sequence[QuestionRecord]) -> dict[str, int]:
    gold = {q.key: len(set(q.evidence)) for part in parts for q in part.user.questions}
    found = [record for record in questions if record.error is None]
    return {
        "questions_with_evidence": sum(gold[record.key] > 0 for record in questions),
        "questions_without_evidence": sum(gold[record.key] == 0 for record in questions),
        "memory_points": sum(gold[record.key] for record in found),
        "linked_to_turns": sum(len(record.evidence) for record in found),
    }
