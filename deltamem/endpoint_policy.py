"""A policy behind any OpenAI-compatible chat endpoint (vLLM, SGLang, llama.cpp, a hosted service)."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Literal

from deltamem.episode import Message
from deltamem.llm import LLM, Answer
from deltamem.policy import Completion

ToolRole = Literal["tool", "user"]


class EndpointPolicy:
    """Continues conversations by calling ``/chat/completions``; a `ScopedPolicy`."""

    def __init__(
        self,
        llm: LLM,
        *,
        temperature: float = 1.0,
        max_tokens: int | None = 2048,
        seed: int | None = None,
        tool_role: ToolRole = "tool",
        thinking: bool = True,
    ) -> None:
        """Set how the model is asked.

        Args:
            llm: The model; may be shared.
            temperature: Sampling temperature.
            max_tokens: Token limit of one assistant text; None leaves it to the endpoint.
            seed: Sampling seed for endpoints that take one.
            tool_role: How search results are sent. ``tool`` is what models are trained with here; services that tie tool
                messages to their own function calling refuse it, for them ``user`` wraps the results in ``<tool_response>``.
            thinking: As in `deltamem.episode.EpisodeConfig`. If false, the chat template is told ``enable_thinking=false``,
                which vLLM and SGLang pass on; if true, nothing is said and the server's default holds.
        """
        self.name = f"{llm.model} at {llm.base_url}"
        self.llm = llm
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._seed = seed
        self._tool_role = tool_role
        self._thinking = thinking
        self._scope = ""
        self._sample = 0

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Write the next assistant text.

        Raises:
            ContextLengthError: If the conversation does not fit the model's window.
            LLMError: If the endpoint gives no usable answer, after the retries.
        """
        answer = await self.llm.chat(
            [self._sent(message) for message in messages],
            temperature=self._temperature,
            max_tokens=self._max_tokens,
            seed=self._seed,
            extra_body=self._extra_body,
            scope=self._scope,
            sample=self._sample,
        )
        return Completion(
            text=_text(answer, thinking=self._thinking),
            truncated=answer.truncated,
            tokens=answer.completion_tokens,
            prompt_tokens=answer.prompt_tokens,
            cached=answer.cached,
        )

    async def check(self) -> None:
        """Send one tiny conversation of every kind of message that an episode sends.

        Raises:
            LLMError: If the endpoint cannot be reached or refuses it; the message says why.
        """
        conversation = [
            Message(role="system", content="Answer briefly."),
            Message(role="user", content="Hello."),
            Message(role="assistant", content="Hello."),
            Message(role="tool", content="[]"),
        ]
        await self.llm.check([self._sent(message) for message in conversation], extra_body=self._extra_body)

    def for_scope(self, scope: str, sample: int = 0) -> EndpointPolicy:
        """The same policy with its cached answers bound to a scope and to a number of the draw; shares the `LLM`."""
        bound = copy.copy(self)
        bound._scope, bound._sample = scope, sample
        return bound

    def forget_scope(self, scope: str) -> int:
        """Erase the cached answers of a scope; returns how many there were.

        Raises:
            DeltaMemError: If the cache cannot be written.
        """
        return self.llm.cache.forget(scope) if self.llm.cache is not None else 0

    @property
    def _extra_body(self) -> Mapping[str, object] | None:
        return None if self._thinking else {"chat_template_kwargs": {"enable_thinking": False}}

    def _sent(self, message: Message) -> Message:
        if message["role"] == "tool" and self._tool_role == "user":
            return Message(role="user", content=f"<tool_response>\n{message['content']}\n</tool_response>")
        return message


def _text(answer: Answer, *, thinking: bool) -> str:
    """The whole assistant turn.

    Servers with a reasoning parser deliver the thinking in a field of its own; without one, the beginning of the think block
    is missing where the chat template has written it.
    """
    if answer.reasoning:
        return f"<think>{answer.reasoning}</think>\n{answer.text}"
    thought, end, _ = answer.text.partition("</think>")
    return f"<think>{answer.text}" if thinking and end and "<think>" not in thought else answer.text
