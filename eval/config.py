"""The settings that benchmarks share, typed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BeforeValidator, Field, NonNegativeInt, PositiveFloat, PositiveInt, ValidationError, model_validator
from pydantic_core import to_jsonable_python

from deltamem import plugins
from deltamem.assisted import AssistedConfig
from deltamem.config import StrictModel
from deltamem.embedding import OFFLINE_MODEL, EmbedderSettings
from deltamem.episode import EpisodeSettings, load_episode_config, load_trained
from deltamem.errors import DeltaMemError
from deltamem.llm import LLM, ResponseCache
from deltamem.manager import ManagerSettings
from deltamem.policy import Mode, ToolRole
from eval.policy import policy_folder, training_departures
from eval.protocols import DEFAULT, Protocol, departures, filled
from eval.systems.base import WithTime
from eval.tokens import ESTIMATED, TokenCount, counted_by


class _Endpoint(StrictModel):
    """An OpenAI-compatible endpoint; see `deltamem.llm.LLM`."""

    base_url: str | None
    model: str | None
    api_key_env: str
    timeout: PositiveFloat
    max_retries: NonNegativeInt

    def llm(self, needs: str, max_concurrency: int, cache: ResponseCache | None = None, *, aiohttp: bool = False) -> LLM:
        """The client of the endpoint, which must be closed; nothing is sent yet.

        Raises:
            DeltaMemError: If URL or model are missing, for which it says what this `needs`, or wrong.
        """
        if self.base_url is None or self.model is None:
            raise DeltaMemError(needs)
        return LLM(
            self.base_url,
            self.model,
            api_key_env=self.api_key_env,
            timeout=self.timeout,
            max_concurrency=max_concurrency,
            max_retries=self.max_retries,
            cache=cache,
            aiohttp=aiohttp,
        )


class EndpointSettings(_Endpoint):
    """The endpoint of a policy; see `deltamem.policy.EndpointPolicy`."""

    tool_role: ToolRole
    guided: bool


def _given(values: Any) -> Any:
    return {key: of for key, of in values.items() if of is not None} if isinstance(values, Mapping) else values


AssistedSettings = Annotated[AssistedConfig, BeforeValidator(_given)]
"""The keys ``assisted.*`` of a configuration; null leaves a field at its default."""

Keys = TypeVar("Keys", bound=StrictModel)


AnswererKind = Literal["llm", "extractive", "none"]


class ModelSettings(_Endpoint):
    """A model in one of the three parts: manager, answerer, judge."""

    slots: PositiveInt
    temperature: Annotated[float, Field(ge=0)] | None
    max_tokens: PositiveInt | None
    extra_body: dict[str, Any]  # Fields of requests outside the OpenAI protocol

    def client(self, part: str, cache: ResponseCache | None) -> LLM:
        """As `llm`; `part` is the configuration group."""
        needs = f"{part} needs both base_url=<url> (or {part}.base_url=<url>) and {part}.model=<name>"
        return self.llm(needs, self.slots, cache, aiohttp=True)

    def run_config(self, *further: str) -> dict[str, Any]:
        """What decides the answers, with `further` fields: not where the model is or how long it may take."""
        return self.model_dump(mode="json", include={"model", "temperature", "max_tokens", "extra_body", *further})


class ManagerModel(ModelSettings):
    """The model that keeps the memories, of the systems that need one."""

    checkpoint: Path | None
    tool_role: ToolRole
    window: PositiveInt | None
    mode: Mode
    safeguards: bool | None
    support: Annotated[float, Field(ge=0, le=1)]

    @property
    def reading(self) -> Literal["react", "assisted"]:
        """The mode of system=deltamem: here a model behind an endpoint counts as not trained, unless ``react`` is given."""
        return "react" if self.mode == "react" else "assisted"

    @property
    def safeguarded(self) -> bool:
        """See `deltamem.ingest.ReadingSettings.safeguards`: a policy of our turns is evaluated as it was trained."""
        return self.reading == "assisted" if self.safeguards is None else self.safeguards

    @property
    def folder(self) -> Path | None:
        """See `eval.policy.policy_folder`."""
        return policy_folder(self.checkpoint, self.model)


class AnswerModel(ModelSettings):
    """The model that answers questions from what was retrieved."""

    # `llm`; `extractive`, which copies the best sentence and needs no model; `none`; None means `llm` if a model is named,
    # else `extractive`
    kind: AnswererKind | None
    prompt: str | None  # Name of a prompt of `eval.answer`, or a file; None means that of the benchmark
    runs: PositiveInt  # Answers to each question
    context_tokens: PositiveInt  # Budget of tokens for what is shown of the memory, the same for every system
    # What counts them (`eval.tokens`): None estimates them as bytes / 3; `auto` takes the tokenizer of `model` where this
    # machine has it; else a file, a folder, a model of the hub, or one of tiktoken
    tokenizer: str | None
    cut: Literal["passage", "sentence"]  # What is shown of the passage that the budget ends in: nothing, or whole sentences

    @property
    def counted(self) -> TokenCount:
        """What counts tokens; fails if there is no such tokenizer."""
        return counted_by(self.tokenizer, self.model)

    @property
    def answerer(self) -> AnswererKind:
        """The kind of answerer that is meant."""
        return self.kind or ("extractive" if self.model is None else "llm")


class JudgeModel(ModelSettings):
    """The model that judges answers."""

    attempts: PositiveInt  # How often a judge is asked when its reply cannot be read
    # A file instead of our prompt, or files by judge; see `eval.parts.given_prompts`
    prompt: str | dict[str, str] | None
    probes: bool  # Whether its false accepts and false rejects are measured on the calibration items
    runs: PositiveInt  # Verdicts of each judge on each answer
    # Its scores are withheld if its share of wrong answers among the calibration items is above
    max_false_accept: Annotated[float, Field(ge=0, le=1)]
    max_false_reject: Annotated[float, Field(ge=0, le=1)]


class SpeedSettings(StrictModel):
    """What `eval.estimate` reckons with."""

    read: PositiveFloat  # Tokens a second that the models read, all requests together
    written: PositiveFloat  # Tokens a second that they write
    thinking: NonNegativeInt  # Tokens of thinking before each answer and verdict
    texts: PositiveFloat  # Texts a second that the embedder takes


class BenchmarkConfig(StrictModel):
    """The keys that every benchmark has."""

    protocols: ClassVar[Mapping[str, Protocol]] = {DEFAULT: Protocol({})}

    system: str
    protocol: Literal["default"]
    data: Path | None
    out: Path
    embedder: EmbedderSettings
    manager: ManagerModel
    episode: EpisodeSettings
    assisted: AssistedSettings
    attempts: PositiveInt | None
    answer: AnswerModel
    judge: JudgeModel
    cache: Path | None
    base_url: str | None
    peers_degraded: bool
    with_time: WithTime
    stores_at_once: PositiveInt
    limit: PositiveInt | None
    mixed: bool
    answers_from: Path | None
    budgets: list[PositiveInt]  # Budgets of context tokens at which questions are answered besides `answer.context_tokens`
    budget_k: PositiveInt  # Passages of each store that are searched for them
    resamples: PositiveInt
    seed: int
    estimate: bool
    speed: SpeedSettings
    options: dict[str, Any] = Field(default={})  # The own keys of systems (`eval.systems.kinds.SystemKind.keys`), untyped

    @model_validator(mode="before")
    @classmethod
    def _of_protocol(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        if "options" in values:
            raise DeltaMemError("unknown config key 'options'; keys of a system are given by themselves")
        known = {key for kind in plugins.load_all("systems").values() for key in kind.keys.model_fields}
        # An empty one may be of a system that is not installed: the configuration file has the keys of all.
        own = {key: of for key, of in values.items() if key not in cls.model_fields and (key in known or of in (None, []))}
        values = {key: of for key, of in values.items() if key not in own}
        values = filled(cls.protocols, values | ({"options": own} if own else {}))
        embedder, manager = values.get("embedder"), values.get("manager")
        if isinstance(embedder, dict) and isinstance(manager, dict) and embedder.get("name") is None:
            named = manager.get("checkpoint")
            folder = policy_folder(None if named is None else Path(named), manager.get("model"))
            embedder["name"] = (None if folder is None else load_trained(folder).embedder) or OFFLINE_MODEL
        return values

    def departures(self) -> list[str]:
        """Where the run departs from the published protocol that it names."""
        return list(departures(self.protocols, self.model_dump(mode="json")))

    def training_departures(self, root: str | None) -> list[str]:
        """In what the manager's policy is used otherwise than trained; see `eval.policy.training_departures`."""
        episode = self.manager_settings().episode if self.manager.reading == "react" else None
        named = (self.manager.folder, root, episode, self.embedder.name, "manager.checkpoint")
        return list(training_departures(*named, ("manager.max_tokens", self.manager.max_tokens)))

    @property
    def judged(self) -> bool:
        """Whether answers are judged: those of a model are, if a judge is named."""
        return self.answer.answerer == "llm" and self.judge.model is not None

    @property
    def runs(self) -> int:
        """Answers to each question."""
        return self.answer.runs

    def own(self, keys: type[Keys]) -> Keys:
        """The own keys of a kind of system, typed.

        Raises:
            DeltaMemError: If a value has the wrong type; names the key.
        """
        try:
            return keys.model_validate({name: of for name, of in self.options.items() if name in keys.model_fields})
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(map(str, first["loc"]))
            raise DeltaMemError(f"config key {key!r}: {first['msg']}, got {first['input']!r}") from error

    def check(self) -> None:
        """Refuse values that do not fit each other.

        Raises:
            DeltaMemError: If some do not.
        """
        for kind in plugins.load_all("systems").values():
            self.own(kind.keys)

    def reported(self) -> dict[str, Any]:
        """The settings as the summary has them: JSON values without paths of this machine."""
        hidden = dict.fromkeys(("data", "out", "cache", "answers_from", "estimate", "speed", "options"), True)
        return self.model_dump(mode="json", exclude=hidden | {"manager": {"checkpoint"}, "judge": {"prompt"}}) | self.options

    def manager_settings(self) -> ManagerSettings:
        """How DeltaMem reads sessions; fails if a prompt does not exist or does not fit."""
        folder = self.manager.folder
        return ManagerSettings(
            episode=self.episode.config(None if folder is None else load_episode_config(folder)),
            window_tokens=self.manager.window,
            safeguards=self.manager.safeguarded,
            support=self.manager.support,
            attempts=self.attempts,
            mode=self.manager.mode,
            assisted=self.assisted,
        )

    def run_config(self) -> dict[str, Any]:
        """What decides the records, apart from data and prompts; see `eval.fingerprint.RunManifest`."""
        decisive = {"system", "attempts", "with_time", "peers_degraded", "seed"}
        plain = self.model_dump(mode="json", include=decisive)
        kind = plugins.load_all("systems").get(self.system)  # None: a part that a test or an attack gives
        mode = self.manager.reading
        further = {} if mode == "react" else {"mode": mode, "assisted": self.assisted.model_dump(mode="json")}
        return (plain | kind.run_config(self) if kind is not None else plain) | {
            "embedder": self.embedder.name,
            "manager": self.manager.run_config("tool_role", "window") | further,
            "episode": to_jsonable_python(self.manager_settings().episode),
            "episode_prompts": self.manager_settings().episode_in(mode).prompt_hashes,
            "answer": self.answer.run_config("runs", "context_tokens") | {"kind": self.answer.answerer} | self.cutting(),
            "judge": self.judge.run_config("attempts", "runs"),
            "budget_k": self.budget_k if self.budgets else None,
        }

    def cutting(self) -> dict[str, str]:
        """How the budget of context tokens is kept, where it is not as it always was."""
        counted, cut = self.answer.counted, self.answer.cut
        kept = {} if counted is ESTIMATED else {"tokens": counted.name}
        return kept if cut == "passage" else kept | {"cut": cut}


class RecallConfig(BenchmarkConfig):
    """The keys of a benchmark that tells at which rank the evidence of its questions is found."""

    depth: ClassVar[str] = "k"
    """Key that says for how many passages of a store a question is searched."""
    most_stores: ClassVar[int] = 1
    decisive: ClassVar[frozenset[str]] = frozenset({"k"})
    """Own keys that decide the records."""

    cutoffs: Annotated[list[PositiveInt], Field(min_length=1)]

    def check(self) -> None:
        """Refuse recall that is asked for deeper than is searched."""
        super().check()
        k, times = getattr(self, self.depth), f"{self.most_stores} x " if self.most_stores > 1 else ""
        if max(self.cutoffs) > self.most_stores * k:
            raise DeltaMemError(
                f"cutoffs has {max(self.cutoffs)}, but only {times}{self.depth}={k} passages are searched for"
            )

    def run_config(self) -> dict[str, Any]:
        """What decides the records, apart from data and prompts."""
        return super().run_config() | self.model_dump(mode="json", include=set(self.decisive))


JudgeName = TypeVar("JudgeName", bound=str)


class JudgedConfig(RecallConfig, Generic[JudgeName]):
    """The same of a benchmark whose judges can be chosen."""

    judges: Annotated[list[JudgeName], Field(min_length=1)]

    @property
    def asked_judges(self) -> list[JudgeName]:
        """Those that are asked."""
        return list(dict.fromkeys(self.judges)) if self.judged else []

    def run_config(self) -> dict[str, Any]:
        """What decides the records, apart from data and prompts."""
        return super().run_config() | {"judges": sorted(self.asked_judges)}
