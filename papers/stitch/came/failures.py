"""Why the labels chosen for questions were wrong, by a judge who sees the question alone (appendix D.2 of the paper)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from deltamem.embedding import Embedder
from eval.answer import load_prompt
from eval.benchmark import JudgeSpec
from eval.models import open_models
from eval.parts import make_judge
from eval.records import QuestionRecord, Verdict
from eval.runner import MEMORY_FOLDER
from eval.systems.base import StoreKey
from eval.systems.kinds import make_system
from papers.stitch.came.data import CameConfig, CameData
from papers.stitch.came.scores import JUDGED, JUDGED_F1
from papers.stitch.labels import Facet, by_facet
from papers.stitch.records import IntentFilter
from papers.stitch.system import StitchMemory

FIT, UNFIT = "fit", "unfit"
MODES = ("non_inducible", "granularity", "other")
"""Kinds of failures. The paper speaks of three and names two; the third is whatever else is wrong."""

PUBLISHED = {"non_inducible": 78.4, "granularity": 71.8}
"""Table 5 of the paper, in percent of all pairs of a question and a type of labels."""

SPEC = JudgeSpec(
    "papers.stitch.prompts:judge_labels",
    ("question", "type", "labels"),
    (FIT, UNFIT),
    dict.fromkeys(MODES, ("yes", "no")) | {"confidence": ("low", "medium", "high")},
    calibrated=False,
)
_TYPES = {
    Facet.SCOPE: "headings, the goal that a step served",
    Facet.EVENT: "kinds of action, what was done with a step",
    Facet.ENTITY: "classes of facts, what a step gives or asks for",
}


def failed(questions: Sequence[QuestionRecord]) -> list[QuestionRecord]:
    """The questions that were asked without an error and answered wrongly, or not wholly, by the judges."""
    value = JUDGED[JUDGED_F1]
    return [one for one in questions if one.error is None and not value.failed(one) and (value(one) or 0.0) < 1]


async def failure_modes(
    config: CameConfig, data: CameData, embedder: Embedder, questions: Sequence[QuestionRecord]
) -> dict[str, Any]:
    """Judge the labels that a finished, judged run of ``system=stitch`` chose for the questions that it failed on.

    A type of which no label was chosen is no case. Answers of the models are cached with those of the run.

    Returns:
        JSON values: ``cases`` (question, type, labels, verdict, modes, confidence, reason), ``errors`` (how many verdicts
        failed) and ``percent`` of all judged cases by mode, of which a case may have several; None without a case.

    Raises:
        DeltaMemError: If the stores cannot be read or a question cannot be labelled.
    """
    prompt = load_prompt(SPEC.prompt, SPEC.fields)
    wanted: list[tuple[QuestionRecord, IntentFilter]] = []
    async with open_models(config, {"answer"}) as models:
        system = make_system(config, config.out / MEMORY_FOLDER, embedder, models, {"intents": data.intents})
        judge = make_judge(config, models, "labels", SPEC, prompt)
        by_store: dict[str, list[QuestionRecord]] = {}
        for record in failed(questions):
            by_store.setdefault(record.group, []).append(record)
        for name, asked in by_store.items():
            async with system.open(StoreKey(name, data.user_of(name))) as memory:
                assert isinstance(memory, StitchMemory)
                wanted += [(one, (await memory.index.search(one.question, 1)).wanted) for one in asked]
        pairs = [
            (record, facet, labels) for record, chosen in wanted for facet, labels in by_facet(chosen).items() if labels
        ]
        fields = [
            {"question": record.question, "type": _TYPES[facet], "labels": "; ".join(labels)}
            for record, facet, labels in pairs
        ]
        verdicts = await asyncio.gather(
            *(judge.judge(shown, record.group) for shown, (record, *_) in zip(fields, pairs, strict=True))
        )
    cases = [
        {"question": record.key, "type": facet.value, "labels": list(labels)} | _said(verdict)
        for (record, facet, labels), verdict in zip(pairs, verdicts, strict=True)
    ]
    judged = [case for case in cases if case["verdict"] is not None]
    counts = Counter(mode for case in judged for mode in case["modes"])
    percent = {mode: round(100 * counts[mode] / len(judged), 1) for mode in MODES} if judged else None
    return {"cases": cases, "errors": len(cases) - len(judged), "percent": percent}


def _said(verdict: Verdict) -> dict[str, Any]:
    """What a verdict comes to; a fault that is named counts, whatever the label of the whole."""
    flags: Mapping[str, str] = verdict.flags
    modes = [mode for mode in MODES if flags.get(mode) == "yes"]
    said = {"verdict": verdict.label, "modes": modes, "confidence": flags.get("confidence"), "reason": verdict.reason}
    return said if verdict.error is None else said | {"error": verdict.error}


def lines(found: Mapping[str, Any]) -> list[str]:
    """What is said of them when a run ends."""
    if found["percent"] is None:
        return [f"labels of failed questions: none was judged ({found['errors']} verdicts failed)"]
    paper = {mode: f" (paper {share}%)" for mode, share in PUBLISHED.items()}
    shares = "; ".join(f"{mode} {share}%{paper.get(mode, '')}" for mode, share in found["percent"].items())
    count = len(found["cases"]) - found["errors"]
    return [f"labels of failed questions, {count} cases judged ({found['errors']} verdicts failed): {shares}"]
