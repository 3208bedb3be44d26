"""``python -m papers.stitch.came``: a memory system on CAME-Bench, offline or with models.

Exit code 0; 1 if something broke (it is counted, the rest is kept); 2 for bad input.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from deltamem.config import run_hydra, validated
from deltamem.runs import atomic_writer, read_records
from eval import runner
from eval.benchmark import Benchmark, JudgeSpec, Report, Results, Timeline, TimelineStep, gold_evidence
from eval.evidence import EvidenceFinder
from eval.judge import QUESTION_FIELDS, QUESTION_LABELS
from eval.models import make_embedder
from eval.records import QuestionRecord
from eval.scores import drawn_over
from eval.summary import Summary
from eval.systems.base import Passage, StoreKey, System
from papers.stitch.came import scores
from papers.stitch.came.data import BATCH_TURNS, SPEAKERS, CameConfig, dialogue, read_data
from papers.stitch.came.records import SETS, TYPES
from papers.stitch.system import labelled_by

if TYPE_CHECKING:
    from omegaconf import DictConfig

_PROMPTS = "papers.stitch.prompts:"
_DEBATE = f"{_PROMPTS}answer_debate"
LABELS = "labels.json"
"""Diagnostics of the labels of a run of ``system=stitch``, see `papers.stitch.came.diagnostics`."""
MODES = "failure_modes.json"
"""What a judge says of the labels of questions that failed, see `papers.stitch.came.failures`."""


class Came(Benchmark[CameConfig]):
    """A timeline for each trajectory: the whole of it, then all questions."""

    name = "CAME"
    config_type = CameConfig
    search_state = "latest"
    config_dir = Path(__file__).parents[1] / "configs"
    answer_prompt = f"{_PROMPTS}answer_travel"
    prompts: ClassVar = {_DEBATE: Benchmark.answer_fields}
    tables = (scores.table,)
    layouts = scores.LAYOUTS
    values = scores.JUDGED

    def __init__(self, config: CameConfig) -> None:
        self.config = config
        self.data = read_data(config)
        self.k = config.k
        self._resolvers = {name: scores.Resolver(world) for name, world in self.data.worlds.items()}
        self._finder = lru_cache(maxsize=2)(self._find_in)
        self._lazy: dict[str, float] = {}  # filled once, also for the copies that report on a part of a run

    @classmethod
    def judges(cls, config: CameConfig) -> Mapping[str, JudgeSpec]:
        """One for a single answer and one that counts those of a set (appendix E.2), besides scores that need none."""
        counts = tuple(map(str, range(scores.MOST + 1)))
        return {
            scores.SINGLE: JudgeSpec("judge_lenient", QUESTION_FIELDS, QUESTION_LABELS),
            scores.COUNT: JudgeSpec(f"{_PROMPTS}judge_count", QUESTION_FIELDS, counts, calibrated=False),
        }

    def data_hashes(self) -> dict[str, str | None]:
        """Of what is read and asked; the gold intents count where they are read."""
        oracle = self.config.system == "stitch" and labelled_by(self.config) == "oracle"
        return {f"data_sha256 {name}": sum_ for name, sum_ in self.data.hashes.items() if oracle or name != "intents"}

    def timelines(self, system: System) -> list[Timeline]:
        """One store for each trajectory; one for each speaker, with half of the passages, for systems that ask for it."""
        keys = {record.key for record in self.data.asked}
        self.k = max(1, self.config.k // 2) if system.per_speaker else self.config.k
        made = []
        for name, trajectory in self.data.trajectories.items():
            users = SPEAKERS[trajectory.domain][: 2 if system.per_speaker else 1]
            ids = [f"{name}.{user}" for user in users] if system.per_speaker else [name]
            asked = tuple(one for one in self.data.asked if one.group == name and one.key in keys)
            stores = tuple(StoreKey(id, user, BATCH_TURNS) for id, user in zip(ids, users, strict=True))
            sessions = tuple(dialogue(trajectory, user) for user in users)
            if asked:
                made.append(Timeline(stores, (TimelineStep(sessions, asked),)))
        return made

    def evidence(self) -> dict[str, dict[str, tuple[str, ...]]]:
        """By trajectory and question."""
        return gold_evidence((one.trajectory, one.question, one.evidence) for one in self.data.questions.values())

    def extras(self) -> dict[str, Callable[[], Any]]:
        """The intents of the symbolic log besides, for ``system=stitch labeller=oracle``."""
        return super().extras() | {"intents": self.data.intents}

    def vocabulary(self) -> Collection[str]:
        """The names of all worlds."""
        return [entity.name for world in self.data.worlds.values() for entity in world.entities]

    def finder(self, question: QuestionRecord) -> EvidenceFinder:
        """Of the trajectory."""
        return self._finder(question.group)

    def _find_in(self, name: str) -> EvidenceFinder:
        trajectory = self.data.trajectories[name]
        speakers = SPEAKERS[trajectory.domain]
        return EvidenceFinder.of(dialogue(trajectory, speakers[0]), speakers)

    def recalled(self, question: QuestionRecord, passages: Sequence[Passage]) -> QuestionRecord:
        """By the sources that passages name, as many turns have nearly the same words; by words if none names any."""
        record = super().recalled(question, passages)
        if not any(passage.sources for passage in passages):
            return record
        places = {turn: rank for rank, one in reversed(list(enumerate(passages, start=1))) for turn in one.sources}
        return record.model_copy(update={"ranks": tuple(places.get(turn) for turn in question.evidence)})

    def score(self, question: QuestionRecord, answer: str) -> dict[str, float]:
        """Of the set of entities or values that an answer names."""
        asked = self.data.questions[question.key]
        named = self._resolvers[self.data.world_of(asked).id].answers(asked, answer)
        worth = scores.set_score(named, asked.answers)
        return {scores.F1: worth.f1, scores.PRECISION: worth.precision, scores.RECALL: worth.recall}

    def judge_fields(self, question: QuestionRecord, answer: str) -> dict[str, dict[str, str]]:
        """The judge of a single answer, or the one that counts, which is shown lists."""
        if self.data.questions[question.key].form not in SETS:
            return {scores.SINGLE: {"question": question.question, "gold": question.gold or "", "answer": answer}}
        listed = {"gold": scores.candidates(question.gold or ""), "answer": scores.candidates(answer)}
        return {scores.COUNT: {"question": question.question} | {name: "\n".join(of) for name, of in listed.items()}}

    def prompt_of(self, question: QuestionRecord) -> str:
        """By domain."""
        debate = self.data.trajectories[question.group].domain == "debate"
        return _DEBATE if debate else self.answer_prompt

    def report(self, results: Results) -> Report:
        """Scores by type of question, and what lazy policies get."""
        config, data = self.config, self.data
        if not self._lazy:
            self._lazy.update(scores.lazy_policies(data))

        def found(record: QuestionRecord) -> Iterable[str] | None:
            passages = results.found(record)
            if not results.system.per_speaker and record.answers:
                passages = passages[: record.shown]
            sources = [turn for passage in passages for turn in passage.sources]
            return sources if sources or not passages else None

        return Report(
            benchmark=f"{self.name}-{data.description()['size']}",
            protocol={
                "k": config.k,
                "k_each_store": self.k,
                "stores_per_trajectory": 2 if results.system.per_speaker else 1,
                "cutoffs": sorted(set(config.cutoffs)),
                "batch_turns": BATCH_TURNS,
                "evidence": "the turns that say the operations an answer follows from; counted by the sources of passages, "
                "by words for systems that name none",
                "answers": "sets of entities, by full name or its first word, or of values; what is not of the world or of "
                "the kind of value counts for nothing",
                "judged": "a single answer is right or wrong; of a set the judge counts what is right among the candidates, "
                "which commas, semicolons, line ends and the word `and` part",
                "intervals": f"95%, {drawn_over(len({one.group for one in results.questions}), 'trajectory')}",
            },
            data=data.description(),
            scores=scores.run_scores(
                data, results.questions, found, cutoffs=config.cutoffs, resamples=config.resamples, seed=config.seed
            ),
            headline=(scores.JUDGED_F1, scores.F1, scores.READER_F1, f"recall@{max(config.cutoffs)}"),
            judged_by=dict.fromkeys(scores.JUDGED, (scores.SINGLE, scores.COUNT)),
            order=TYPES,
            more={"lazy": self._lazy},
        )

    @classmethod
    def lines(cls, summary: Summary) -> Iterable[str]:
        """What needs no memory at all."""
        lazy = {name: f"{100 * worth:.1f}" for name, worth in summary.more["lazy"].items()}
        yield (
            f"answer_f1 without a memory: {lazy['everything']}% by naming everything of the kind that was said, "
            f"{lazy['most_frequent']}% by naming what was said most often"
        )


def _run(config: DictConfig) -> int:
    settings = validated(config, CameConfig)
    code = runner.main(Came, settings)
    if settings.system == "stitch" and not settings.estimate:
        from papers.stitch.came.diagnostics import diagnose
        from papers.stitch.came.failures import failure_modes, lines

        data, embedder = read_data(settings), make_embedder(settings.embedder)
        found = asyncio.run(diagnose(settings, data, embedder))
        with atomic_writer(settings.out / LABELS) as file:
            json.dump(found, file, indent=2)
        for domain, values in found.items():
            print(f"labels, {domain}: " + "; ".join(f"{metric} {value}" for metric, value in values.items()))
        if settings.judged:
            questions = read_records(settings.out / "questions.jsonl", QuestionRecord, lambda one: one.key)
            asked = [questions[one.key] for one in data.asked if one.key in questions]
            modes = asyncio.run(failure_modes(settings, data, embedder, asked))
            with atomic_writer(settings.out / MODES) as file:
                json.dump(modes, file, indent=2, ensure_ascii=False)
            print("\n".join(lines(modes)))
            code = code or (runner.FAILED if modes["errors"] else 0)
    return code


if __name__ == "__main__":
    run_hydra(_run, "came", Came.config_dir)
