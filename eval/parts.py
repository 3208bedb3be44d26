"""What plays a part in a run: prompts, the answerer and the judges, as configured or in their place."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from string import Template
from typing import Any

from deltamem.embedding import Embedder
from deltamem.errors import DeltaMemError
from deltamem.llm import LLM
from deltamem.prompts import Prompt
from deltamem.text_files import read_text
from eval.answer import Answerer, ExtractiveAnswerer, Judge, LLMAnswerer, Sampler, load_prompt
from eval.benchmark import Benchmark, Config, JudgeSpec
from eval.config import BenchmarkConfig, ModelSettings
from eval.judge import LLMJudge, OfficialPrompt, read_official
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
    official: Collection[str] = ()  # The judges whose prompt is the benchmark's own, and so the keys of their replies

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
    given, official = given_prompts(config.judge.prompt, specs)
    named = {name: given.get(name) or load_prompt(spec.prompt, spec.fields) for name, spec in specs.items()}
    return Prompts(answer, named, {name: load_prompt(name, fields) for name, fields in further.items()}, official)


def given_prompts(
    files: str | Mapping[str, str] | None, specs: Mapping[str, JudgeSpec]
) -> tuple[dict[str, Prompt], Collection[str]]:
    """The prompts that are used instead of ours: a file for the one judge of answers, or files by judge.

    A Python file is the benchmark's own and holds the prompts of all judges that it knows, as constants. In another file
    ``$question`` marks a place as in our prompts, which ask for our keys; ``{question}`` marks one as in the benchmark's.

    Returns:
        The prompts by judge, and the judges whose prompt is the benchmark's own.

    Raises:
        DeltaMemError: If a file cannot be read, has other fields, or is for no judge of this run.
    """
    if files is None or not specs:
        return {}, ()
    program = isinstance(files, str) and files.endswith(".py")
    if isinstance(files, str):
        judges = [name for name, spec in specs.items() if (spec.official is not None if program else spec.calibrated)]
        if not judges or (not program and len(judges) > 1):
            raise DeltaMemError(
                f"judge.prompt={files} is for no judge of this run, or for several: give files by judge, "
                f"judge.prompt={{NAME: FILE}}; the judges are {', '.join(specs)}"
            )
        files = dict.fromkeys(judges, files)
    if unknown := sorted(files.keys() - specs.keys()):
        raise DeltaMemError(f"judge.prompt names {', '.join(unknown)}; this run has the judges {', '.join(specs)}")
    found: dict[str, Prompt] = {}
    official = set()
    for name, file in files.items():
        spec, path = specs[name], Path(file)
        if path.suffix != ".py" and path.is_file() and _has_our_marks(path, spec):
            found[name] = load_prompt(str(path.absolute()), spec.fields)
        elif (prompt := read_official(path, spec.official or OfficialPrompt(name.upper()), spec.fields)) is not None:
            found[name] = prompt
            official.add(name)
    if missing := sorted(files.keys() - found.keys()):
        wanted = ", ".join(one.constant for name in missing if (one := specs[name].official) is not None)
        raise DeltaMemError(f"{files[missing[0]]} holds no prompt of {', '.join(missing)}; looked for {wanted or 'none'}")
    # By judge too, so that two files of one name are told apart where hashes are noted.
    return {name: replace(prompt, name=f"{name} ({prompt.name})") for name, prompt in found.items()}, official


def _has_our_marks(path: Path, spec: JudgeSpec) -> bool:
    return bool(set(Template(read_text(path)).get_identifiers()) & set(spec.fields))


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
    config: BenchmarkConfig,
    models: Models,
    name: str,
    spec: JudgeSpec,
    prompt: Prompt,
    run: int = 0,
    *,
    official: bool = False,
) -> LLMJudge:
    """A judge on the judging model of a run that is judged; another `run` draws other samples.

    `official` says that the prompt is the benchmark's own, so that its reply has the keys of that.
    """
    assert models.judge is not None  # as there are prompts for judges
    sampler = replace(_sampler(models.judge, config.judge, config), run=run)
    keys = spec.official.keys if official and spec.official is not None else None
    return LLMJudge(name, sampler, prompt, spec.labels, flags=spec.flags, keys=keys, attempts=config.judge.attempts)


def _sampler(llm: LLM, settings: ModelSettings, config: BenchmarkConfig) -> Sampler:
    return Sampler(llm, settings.temperature, settings.max_tokens, config.seed, extra_body=settings.extra_body)


def make_judges(benchmark: Benchmark[Config], prompts: Prompts, parts: GivenParts, models: Models) -> dict[str, Judge]:
    """The judges by name, those of further runs as `name#2`."""
    config, judges = benchmark.config, {}
    specs = benchmark.judges(config)
    for name, prompt in prompts.judges.items():
        for run in range(config.judge.runs):
            named = (config, models, name, specs[name], prompt, run)
            given = parts.judges[name] if parts.judges else make_judge(*named, official=name in prompts.official)
            judges[f"{name}#{run + 1}" if run else name] = given
    return judges
