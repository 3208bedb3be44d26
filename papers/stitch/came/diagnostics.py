"""What the labels of a STITCH run are worth: whether those of questions meet the evidence, and references were resolved.

Appendices B and D.1 of the paper: labels of a question decide what is looked at, so their faults cannot be mended later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import mean, pstdev

from deltamem.embedding import Embedder
from eval.models import open_models
from eval.records import QuestionRecord
from eval.runner import MEMORY_FOLDER
from eval.systems.base import StoreKey
from eval.systems.kinds import make_system
from papers.stitch.came.data import CameConfig, CameData
from papers.stitch.index import IntentIndex
from papers.stitch.labels import by_facet
from papers.stitch.records import Intent, IntentFilter
from papers.stitch.retrieval import met
from papers.stitch.system import StitchMemory

METRICS = ("Q_GT@MAX", "GT_DOM", "GT_COV", "GT_BEST_COV", "Q_GT_FULL", "Q_ZERO")


def label_diagnostics(wanted: IntentFilter, turns: Mapping[str, Intent], evidence: Sequence[str]) -> dict[str, float]:
    """Of one question.

    ``Q_GT@MAX``: whether a turn of the evidence meets as many of its labels as any turn does; ``GT_DOM``: the share of the
    evidence that does; ``GT_COV``, ``GT_BEST_COV``: the mean and the best share of its labels that the evidence meets;
    ``Q_GT_FULL``: whether a turn of the evidence meets all; ``Q_ZERO``: whether no turn at all meets any.
    """
    asked = _count(wanted)
    density = {turn: _count(met(intent, wanted)) for turn, intent in turns.items()}
    most = max(density.values(), default=0)
    own = [density[turn] for turn in evidence]
    return {
        "Q_GT@MAX": float(most > 0 and most in own),
        "GT_DOM": sum(one == most for one in own) / len(own) if most else 0.0,
        "GT_COV": mean(own) / asked if asked else 0.0,
        "GT_BEST_COV": max(own) / asked if asked else 0.0,
        "Q_GT_FULL": float(asked > 0 and asked in own),
        "Q_ZERO": float(most == 0),
    }


def _count(wanted: IntentFilter) -> int:
    return sum(map(len, by_facet(wanted).values()))


async def _of_store(
    index: IntentIndex, data: CameData, name: str, asked: Iterable[QuestionRecord]
) -> tuple[list[dict[str, float]], float | None]:
    """By question, and the share of references that were resolved."""
    snippets = {snippet.step.id: snippet for snippet in map(index.snippet, range(len(index)))}
    intents = {turn: snippet.intent for turn, snippet in snippets.items()}
    rows = [label_diagnostics((await index.search(record.question, 1)).wanted, intents, record.evidence) for record in asked]
    resolved = [
        turn.reference.entity.casefold() in f"{snippets[turn.id].resolved} {snippets[turn.id].summary}".casefold()
        for turn in data.logs[name].turns
        if turn.reference is not None
    ]
    return rows, mean(resolved) if resolved else None


async def diagnose(config: CameConfig, data: CameData, embedder: Embedder) -> dict[str, dict[str, str]]:
    """Diagnostics of a finished run of ``system=stitch``, by domain: mean and deviation over trajectories, in percent.

    ``ERR`` is the share of turns with a reference whose resolved text or summary names what it refers to.

    Raises:
        DeltaMemError: If the stores cannot be read or a question cannot be labelled.
    """
    values: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    async with open_models(config, {"answer", "judge"}) as models:
        system = make_system(config, config.out / MEMORY_FOLDER, embedder, models, {"intents": data.intents})
        for name, trajectory in data.trajectories.items():
            asked = [record for record in data.asked if record.group == name]
            if not asked:
                continue
            async with system.open(StoreKey(name, data.user_of(name))) as memory:
                assert isinstance(memory, StitchMemory)
                rows, resolved = await _of_store(memory.index, data, name, asked)
            for metric in METRICS:
                values[trajectory.domain][metric].append(mean(row[metric] for row in rows))
            if resolved is not None:
                values[trajectory.domain]["ERR"].append(resolved)
    return {
        domain: {metric: f"{100 * mean(some):.1f} ± {100 * pstdev(some):.1f}" for metric, some in by_metric.items()}
        for domain, by_metric in values.items()
    }
