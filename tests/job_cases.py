"""Models for tests: one that holds its answers back, one that fails first, one that nobody can read."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import httpx
import openai
from rule_model import RulePolicy

from deltamem.episode import Message
from deltamem.errors import LLMError
from deltamem.policy import Completion


class Gate(RulePolicy):
    """Counts who is asked at once, and answers when it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.inside: list[str] = []
        self.most = 0

    async def complete(self, messages: Sequence[Message]) -> Completion:
        person = messages[1]["content"].partition("Person: ")[2].split()[0]
        assert person not in self.inside, "two sessions of one owner at once"
        self.inside.append(person)
        self.most = max(self.most, len(self.inside))
        try:
            await self.open.wait()
            return await super().complete(messages)
        finally:
            self.inside.remove(person)


def refused(status: int, **headers: str) -> LLMError:
    response = httpx.Response(status, headers=headers, request=httpx.Request("POST", "http://x/v1"))
    error = LLMError(f"the endpoint answered {status}")
    error.__cause__ = openai.APIStatusError("no", response=response, body=None)
    return error


class Failing(RulePolicy):
    """Fails with some errors first."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)

    async def complete(self, messages: Sequence[Message]) -> Completion:
        if self.errors:
            raise self.errors.pop(0)
        return await super().complete(messages)


class Mumbling:
    """Its answers cannot be read."""

    name = "mumbling"

    async def complete(self, messages: Sequence[Message]) -> Completion:
        return Completion("hm", truncated=False, tokens=1, prompt_tokens=1)
