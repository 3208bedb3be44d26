"""What plays a part in a run: prompts, the answerer and the judges, as configured or in their place."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from deltamem.embedding import Embedder
from deltamem.llm import LLM
from deltamem.prompts import Prompt
from eval.answer import Answerer, ExtractiveAnswerer, Judge, LLMAnswerer, Sampler, load_prompt
from eval.benchmark import Benchmark, Config, JudgeSpec
from eval.config import BenchmarkConfig, ModelSettings
from eval.judge import LLMJudge
from eval.models import Models
from eval.systems.base import System


@dataclass(frozen=True, slots=True)
class GivenParts:
    """What plays a part of a run in place of what the configuration would make, for tests."""

    system: System | None = None
    answerer: Answerer | None = None  # Stands for a model that answers, so its answers are judged
    judges: Mapping[str, Judge] | None = None  # By the names of `eval.benchmark.Benchmark.judges`, each of them

    def named(self, config: Config) -> Config:
        """The configuration with the names of these parts as those of the system and the models."""
        changes: dict[str, Any] = {}
        if self.system is not None:
            changes["system"] = self.system.name
        if self.answerer is not None:
            changes["answer"] = config.answer.model_copy(update={"kind": "llm", "model": self.answerer.name})
        if self.judges:
            names = ", ".join(sorted({judge.name for judge in self.judges.values()}))
            changes["judge"] = config.judge.model_copy(update={"model": names})
        return config.model_copy(update=changes)

    @property
    def names(self) -> set[str]:
        """Which of `PARTS` need no model."""
        given = {"manager": self.system, "answer": self.answerer, "judge": self.judges}
        return {name for name, part in given.items() if part is not None}


CONFIGURED = GivenParts()  # Nothing is replaced


@dataclass(frozen=True, slots=True)
class Prompts:
    """The prompts of a run: of the answering model, None if no model answers, of each judge, and further ones, by name."""

    answer: Prompt | None
    judges: Mapping[str, Prompt]
    further: Mapping[str, Prompt] = field(default_factory=dict)

    @property
    def hashes(self) -> dict[str, str]:
        """sha256 by name of the prompt."""
        every = (self.answer, *self.judges.values(), *self.further.values())
        return {prompt.name: prompt.sha256 for prompt in every if prompt is not None}


def load_prompts(
    config: BenchmarkConfig,
    answer_prompt: str,
    answer_fields: Collection[str],
    judges: Mapping[str, JudgeSpec],
    further: Mapping[str, Collection[str]] = {},
) -> Prompts:
    """Load what a run will need, before anything expensive happens; the arguments are what the benchmark supplies.

    Raises:
        DeltaMemError: If a prompt does not exist or does not fit.
    """
    answer = None
    if config.answer.answerer == "llm":
        answer = load_prompt(config.answer.prompt or answer_prompt, answer_fields)
    specs = judges if config.judged else {}
    named = {name: load_prompt(spec.prompt, spec.fields) for name, spec in specs.items()}
    return Prompts(answer, named, {name: load_prompt(name, fields) for name, fields in further.items()})


def make_answerer(
    config: BenchmarkConfig, models: Models, embedder: Embedder, prompt: Prompt | None, further: Mapping[str, Prompt] = {}
) -> Answerer | None:
    """The answerer that the configuration asks for, a model if there is a prompt for it; None if nothing is answered.

    `further` are prompts for some of the questions by name, in whose place a prompt that is configured stands too.
    """
    if config.answer.answerer == "none":
        return None
    if prompt is None:
        return ExtractiveAnswerer(embedder, with_time=config.with_time, timed=models.timed)
    assert models.answer is not None  # as it has a prompt
    others = {} if config.answer.prompt else further
    return LLMAnswerer(_sampler(models.answer, config.answer, config), prompt, with_time=config.with_time, others=others)


def make_judge(
    config: BenchmarkConfig, models: Models, name: str, spec: JudgeSpec, prompt: Prompt, run: int = 0
) -> LLMJudge:
    """A judge on the judging model of a run that is judged; another `run` draws other samples."""
    assert models.judge is not None  # as there are prompts for judges
    sampler = replace(_sampler(models.judge, config.judge, config), run=run)
    return LLMJudge(name, sampler, prompt, spec.labels, flags=spec.flags, attempts=config.judge.attempts)


def _sampler(llm: LLM, settings: ModelSettings, config: BenchmarkConfig) -> Sampler:
    return Sampler(llm, settings.temperature, settings.max_tokens, config.seed, extra_body=settings.extra_body)


def make_judges(benchmark: Benchmark[Config], prompts: Prompts, parts: GivenParts, models: Models) -> dict[str, Judge]:
    """The judges by name, those of further runs as `name#2`."""
    config, judges = benchmark.config, {}
    specs = benchmark.judges(config)
    for name, prompt in prompts.judges.items():
        for run in range(config.judge.runs):
            given = parts.judges[name] if parts.judges else make_judge(config, models, name, specs[name], prompt, run)
            judges[f"{name}#{run + 1}" if run else name] = given
    return judges
