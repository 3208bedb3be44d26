"""The configuration of ``python -m synth`` (``configs/synth.yaml``), typed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from deltamem.episode import EpisodeConfig
from synth.llm.settings import LLMSettings
from synth.personas import PersonaSettings
from synth.shape import Shape


class Strict(BaseModel):
    """Base of the groups: unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Shard(NamedTuple):
    """One of `of` equal parts of the people: those whose place in the data set leaves `number` when divided by `of`."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @property
    def folder(self) -> str:
        """Name of its folder in ``OUT/shards``; sorts by number."""
        return f"{self.number:0{len(str(self.of))}d}-of-{self.of}"


class EpisodePrompts(Strict):
    """Names of the prompt files whose text stands in the parquet rows."""

    system_prompt: str
    session_prompt: str

    def config(self) -> EpisodeConfig:
        """What the export takes."""
        return EpisodeConfig(system_prompt=self.system_prompt, session_prompt=self.session_prompt)


class EstimateSettings(Strict):
    """What ``python -m synth estimate`` assumes; nothing else reads it.

    Attributes:
        sample_people: People whom the offline writer writes to measure prompts and answers.
        characters_per_token: Used without a tokenizer.
        tokenizer: A tokenizer of the hub or a folder to count with; null divides characters.
        reasoning_tokens: Tokens that the model thinks before an answer, by reasoning effort; ``none`` is no reasoning.
        answer_scale: How much longer a model's answers are than the offline writer's.
        repair_rate: Share of answers that are sent back once.
        decode_tokens_per_second: Completion tokens a second of one GPU under full load.
        prefill_tokens_per_second: Prompt tokens a second of one GPU.
        slot_tokens_per_second: Completion tokens a second of one request.
        gpus: GPUs behind all endpoints together.
    """

    sample_people: int = Field(ge=1, le=20)
    characters_per_token: float = Field(gt=0)
    tokenizer: str | None
    reasoning_tokens: dict[Literal["high", "medium", "low", "none"], int]
    answer_scale: float = Field(gt=0)
    repair_rate: float = Field(ge=0, le=1)
    decode_tokens_per_second: float = Field(gt=0)
    prefill_tokens_per_second: float = Field(gt=0)
    slot_tokens_per_second: float = Field(gt=0)
    gpus: int = Field(ge=1)


class SynthSettings(Strict):
    """The whole configuration."""

    people: int = Field(ge=1)
    sessions: int = Field(ge=1, le=999)
    writer: Literal["offline", "llm"]
    seed: int
    out: Path
    shard: Shard
    heldout_share: float = Field(gt=0, lt=1)
    shape: Shape
    personas: PersonaSettings
    names: Literal["auto", "invented", "real"]
    embedder: str | None
    llm: LLMSettings | None
    people_at_once: int | None = Field(ge=1)
    progress_seconds: float = Field(gt=0)
    estimate: EstimateSettings
    episode: EpisodePrompts

    @field_validator("shard", mode="before")
    @classmethod
    def _shard(cls, value: object) -> object:
        if not isinstance(value, str):
            return value
        match = re.fullmatch(r"(\d{1,6})/(\d{1,6})", value)
        if match is None or int(match[1]) >= int(match[2]):
            raise ValueError("must be i/n with 0 <= i < n, for example 0/8")
        return Shard(int(match[1]), int(match[2]))

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.writer == "llm" and self.llm is None:
            raise ValueError("writer=llm needs the group llm")
        if self.shard.of > self.people:
            raise ValueError(f"there are more shards ({self.shard.of}) than people ({self.people})")
        return self

    @property
    def real_names(self) -> bool:
        """Whether people get names that occur; the offline writer's are invented unless it is told otherwise."""
        return self.names == "real" or (self.names == "auto" and self.writer == "llm")

    @property
    def slots(self) -> int:
        """Units that can be in work at once."""
        if self.writer == "offline" or self.llm is None:
            return 1
        return self.llm.slots * len(self.llm.base_urls)

    def recipe(self) -> dict[str, Any]:
        """What the records follow from, apart from the writer's own `making`; shards of one data set agree on it."""
        machine = {"out", "shard", "llm", "people_at_once", "progress_seconds", "estimate"}
        return self.model_dump(mode="json", exclude=machine)
