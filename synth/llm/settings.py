"""How a language model writes: endpoints, sampling, repairs (group ``llm`` of ``configs/synth.yaml``)."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Structured = Literal["json_schema", "json_object", "none"]
"""What ``response_format`` a server is asked for; `none` leaves it to the prompt and the parser."""


class LLMSettings(BaseModel):
    """Everything that `synth.llm` is told.

    Attributes:
        base_urls: Endpoints that serve the same model, each up to and including ``/v1``; a pool needs at least one.
        model: Name under which they serve it.
        api_key_env: Environment variable that holds the key; it may be unset.
        slots: Requests in flight at once, for each endpoint.
        timeout: Seconds to wait for an answer; each try anew.
        max_retries: How often the client repeats a request at one endpoint.
        temperature: Of the sampling; the paper's is 1.0.
        top_p: Likewise.
        reasoning_effort: How long the model thinks; None does not tell it. The paper's is ``high``.
        max_tokens: Token limit of an answer, thinking included; None leaves it to the server.
        structured: The ``response_format``; ``auto`` begins with ``json_schema`` and steps down where a server refuses it.
        repairs: How often an answer that breaks rules is sent back.
        patience: Seconds for which a request goes on being tried, and for which all endpoints may fail at once.
        extra_body: Further fields of each request, for example ``{top_k: 20}``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_urls: tuple[str, ...]
    model: Annotated[str, Field(min_length=1)]
    api_key_env: str = "OPENAI_API_KEY"
    slots: Annotated[int, Field(ge=1)] = 64
    timeout: Annotated[float, Field(gt=0)] = 1800.0
    max_retries: Annotated[int, Field(ge=0)] = 4
    temperature: Annotated[float, Field(ge=0)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    reasoning_effort: Literal["high", "medium", "low"] | None = "high"
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    structured: Literal["auto"] | Structured = "auto"
    repairs: Annotated[int, Field(ge=0)] = 2
    patience: Annotated[float, Field(ge=0)] = 900.0
    extra_body: dict[str, Any] = {}

    @property
    def body(self) -> dict[str, Any]:
        """The fields of a request that the OpenAI client has no argument for, or that not every server knows."""
        effort = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        return {"top_p": self.top_p, **effort, **self.extra_body}

    @property
    def sampling(self) -> dict[str, Any]:
        """What answers depend on besides the messages, the schema and the seed."""
        return {"temperature": self.temperature, "max_tokens": self.max_tokens, **self.body}
