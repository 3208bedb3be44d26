"""What an OpenAI-compatible endpoint answers, as far as this library reads it.

Servers differ in all that is not read here; what is read is checked, because the openai client does not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import BaseModel, Field


@dataclass(frozen=True, slots=True)
class Answer:
    """What a model wrote.

    Attributes:
        text: The message; empty if there is none.
        truncated: Whether the model stopped at a token limit.
        prompt_tokens: As the server counts them; 0 if it does not.
        completion_tokens: Likewise.
        cached: Whether the answer comes from the cache, so that the tokens were not spent now.
        reasoning: Thinking that the server delivers in a field of its own.
        seconds: From the first try, when a slot was free, till the answer; 0 if cached. Two answers may differ in it and
            be equal.
    """

    text: str
    truncated: bool
    prompt_tokens: int
    completion_tokens: int
    cached: bool = False
    reasoning: str = ""
    seconds: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model that an endpoint serves, with its context window in tokens if the endpoint tells."""

    id: str
    context_window: int | None


class Reply(BaseModel):
    """The body of a successful response; `expected` says what it should have been."""

    expected: ClassVar[str]


class _Message(BaseModel):
    content: str | None = None
    # vLLM has renamed the field; other servers use either.
    reasoning_content: str | None = None
    reasoning: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Tokens(BaseModel):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class ChatReply(Reply):
    """The answer to ``/chat/completions``."""

    expected = "a chat completion"

    choices: list[_Choice] = Field(min_length=1)
    usage: _Tokens | None = None

    def answer(self, seconds: float) -> Answer:
        """The first choice, which took so long."""
        choice = self.choices[0]
        tokens = self.usage or _Tokens()
        return Answer(
            text=choice.message.content or "",
            truncated=choice.finish_reason == "length",
            prompt_tokens=tokens.prompt_tokens or 0,
            completion_tokens=tokens.completion_tokens or 0,
            reasoning=choice.message.reasoning_content or choice.message.reasoning or "",
            seconds=seconds,
        )


class _Model(BaseModel):
    id: str
    # vLLM and SGLang; OpenRouter; Groq. OpenAI itself does not tell.
    max_model_len: int | None = None
    context_length: int | None = None
    context_window: int | None = None


class ModelsReply(Reply):
    """The answer to ``/models``."""

    expected = "a list of models"

    data: list[_Model]

    def models(self) -> list[ServedModel]:
        """The models in the server's order."""
        return [
            ServedModel(model.id, model.max_model_len or model.context_length or model.context_window) for model in self.data
        ]
