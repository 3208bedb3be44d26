"""Configuration keys that say which policy is asked and how, shared by the commands that evaluate one."""

from __future__ import annotations

from dataclasses import replace

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

from deltamem.endpoint_policy import ToolRole
from deltamem.episode import EpisodeConfig, MemoryField
from deltamem.errors import DeltaMemError
from deltamem.llm import LLM
from deltamem.llm_cache import ResponseCache


class EndpointSettings(BaseModel):
    """An OpenAI-compatible endpoint; see `deltamem.llm.LLM` and `deltamem.endpoint_policy.EndpointPolicy`."""

    model_config = ConfigDict(extra="forbid")

    base_url: str | None
    model: str | None
    api_key_env: str
    timeout: PositiveFloat
    max_retries: int = Field(ge=0)
    tool_role: ToolRole

    def client(self, max_concurrency: int, cache: ResponseCache | None = None) -> LLM:
        """The client of the endpoint; nothing is sent yet.

        Args:
            max_concurrency: Requests in flight at once.
            cache: Where answers are kept and looked up.

        Raises:
            DeltaMemError: If URL or model are missing or wrong.
        """
        if self.base_url is None or self.model is None:
            raise DeltaMemError("an endpoint needs both endpoint.base_url=<url> and endpoint.model=<name>")
        return LLM(
            self.base_url,
            self.model,
            api_key_env=self.api_key_env,
            timeout=self.timeout,
            max_concurrency=max_concurrency,
            max_retries=self.max_retries,
            cache=cache,
        )


class EpisodeSettings(BaseModel):
    """Fields of `EpisodeConfig`; None leaves a field as the checkpoint or the default has it."""

    model_config = ConfigDict(extra="forbid")

    system_prompt: str | None = None
    session_prompt: str | None = None
    k: PositiveInt | None = None
    max_turns: PositiveInt | None = None
    memory_fields: tuple[MemoryField, ...] | None = None
    thinking: bool | None = None
    max_invalid_calls: int | None = Field(default=None, ge=0)

    def over(self, base: EpisodeConfig) -> EpisodeConfig:
        """The base with the fields that are set here."""
        return replace(base, **self.model_dump(exclude_none=True))
