"""A policy behind any OpenAI-compatible chat endpoint (vLLM, SGLang, llama.cpp, a hosted service)."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Literal, cast

import openai
from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageParam

from deltamem.episode import Message
from deltamem.errors import DeltaMemError
from deltamem.policy import Completion

ToolRole = Literal["tool", "user"]


class EndpointPolicy:
    """Continues conversations by calling ``/chat/completions``; retries are the client's own."""

    def __init__(
        self,
        base_url: str,
        model: str,
        *,
        api_key_env: str = "OPENAI_API_KEY",
        temperature: float = 1.0,
        max_tokens: int = 2048,
        timeout: float = 120.0,
        max_concurrency: int = 16,
        max_retries: int = 4,
        seed: int | None = None,
        tool_role: ToolRole = "tool",
    ) -> None:
        """Describe the endpoint; nothing is sent yet.

        Args:
            base_url: Up to and including ``/v1``.
            model: Name under which the endpoint serves the model.
            api_key_env: Environment variable that holds the key; local servers need none, so it may be unset.
            temperature: Sampling temperature.
            max_tokens: Token limit of one assistant text.
            timeout: Seconds that one request may take.
            max_concurrency: Requests in flight at once.
            max_retries: How often the client repeats a request after a connection error, a 408, 409, 429 or 5xx.
            seed: Sampling seed for endpoints that take one.
            tool_role: How search results are sent. ``tool`` is what models are trained with here; services that tie tool
                messages to their own function calling refuse it, for them ``user`` wraps the results in ``<tool_response>``.
        """
        self.name = f"{model} at {base_url}"
        self._base_url = base_url
        self._model = model
        self._api_key_env = api_key_env
        self._temperature = temperature
        self._max_tokens = max_tokens
        self._seed = seed
        self._tool_role = tool_role
        self._slots = asyncio.Semaphore(max_concurrency)
        self._client = openai.AsyncOpenAI(
            base_url=base_url,
            api_key=os.environ.get(api_key_env) or "none",
            timeout=timeout,
            max_retries=max_retries,
        )

    async def complete(self, messages: Sequence[Message]) -> Completion:
        """Write the next assistant text.

        Raises:
            openai.OpenAIError: If the endpoint cannot be reached or refuses the request, after the retries.
            DeltaMemError: If the answer holds no choice.
        """
        return await self._request(messages, self._max_tokens)

    async def check(self) -> None:
        """Send one tiny conversation of every kind of message that an episode sends.

        Raises:
            DeltaMemError: If the endpoint cannot be reached or refuses it; the message says why.
        """
        conversation = [
            Message(role="system", content="Answer briefly."),
            Message(role="user", content="Hello."),
            Message(role="assistant", content="Hello."),
            Message(role="tool", content="[]"),
        ]
        try:
            await self._request(conversation, 1)
        except openai.APIConnectionError as error:
            reason = "no answer in time" if isinstance(error, openai.APITimeoutError) else error.__cause__ or error
            raise DeltaMemError(f"endpoint {self._base_url} cannot be reached ({reason}); is the server up?") from error
        except openai.AuthenticationError as error:
            raise DeltaMemError(
                f"endpoint {self._base_url} refused the key in ${self._api_key_env}: {error.message}"
            ) from error
        except openai.OpenAIError as error:
            raise DeltaMemError(
                f"endpoint {self._base_url} refused a test request to model {self._model!r}: {error}"
            ) from error

    async def _request(self, messages: Sequence[Message], max_tokens: int) -> Completion:
        async with self._slots:
            response = await self._client.chat.completions.create(
                model=self._model,
                messages=cast(list[ChatCompletionMessageParam], [self._sent(message) for message in messages]),
                temperature=self._temperature,
                max_tokens=max_tokens,
                seed=self._seed if self._seed is not None else openai.omit,
            )
        if not response.choices:
            raise DeltaMemError(f"endpoint {self._base_url} answered without a choice")
        choice = response.choices[0]
        return Completion(
            text=_text(choice.message),
            truncated=choice.finish_reason == "length",
            tokens=response.usage.completion_tokens if response.usage else 0,
        )

    def _sent(self, message: Message) -> Message:
        if message["role"] == "tool" and self._tool_role == "user":
            return Message(role="user", content=f"<tool_response>\n{message['content']}\n</tool_response>")
        return message


def _text(message: ChatCompletionMessage) -> str:
    """The assistant text; servers with a reasoning parser deliver the thinking in a field of its own."""
    content = message.content or ""
    extra = message.model_extra or {}
    reasoning = extra.get("reasoning_content") or extra.get("reasoning")
    return f"<think>{reasoning}</think>\n{content}" if reasoning else content
