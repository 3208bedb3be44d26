"""What went wrong between this library and a model's endpoint, told in one sentence."""

from __future__ import annotations

import re

import openai

from deltamem.errors import ContextLengthError, LLMError

_LONGEST_REASON = 300
"""Characters of a server's own words that are passed on; some servers repeat the whole prompt."""

# As vLLM, SGLang, llama.cpp and the hosted services put it; only OpenAI and a few others give a code.
_DOES_NOT_FIT = re.compile(
    r"context[ _-]?(length|size|window)|maximum model length|(prompt|input) is too long|too many (input )?tokens",
    re.IGNORECASE,
)


def explain(error: openai.OpenAIError, *, endpoint: str, model: str, api_key: str, api_key_env: str) -> LLMError:
    """Turn a failure of the client into one sentence.

    Args:
        error: What the client raised after its retries.
        endpoint: The base URL.
        model: The model that was asked for.
        api_key: The key that was sent; should the server repeat it, it is taken out.
        api_key_env: Environment variable that the key came from.

    Returns:
        The error to raise; a `ContextLengthError` if the request was too long.
    """
    reason = quoted(_reason(error), api_key)
    if isinstance(error, openai.APITimeoutError) and not _lost_by_aiohttp(error):
        return LLMError(f"endpoint {endpoint} gave no answer in time for model {model!r}; is the server overloaded?")
    if isinstance(error, openai.APIConnectionError):
        return LLMError(f"endpoint {endpoint} cannot be reached for model {model!r} ({reason}); is the server up?")
    if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
        key = f"the key in ${api_key_env}" if api_key else f"a request without a key (${api_key_env} is not set)"
        return LLMError(f"endpoint {endpoint} refused {key} for model {model!r}: {reason}")
    if isinstance(error, openai.APIStatusError):
        if _too_long(error):
            return ContextLengthError(
                f"endpoint {endpoint}: the request does not fit the window of model {model!r}: {reason}"
            )
        done = "failed on" if error.status_code >= 500 else "refused"
        return LLMError(f"endpoint {endpoint} {done} the request to model {model!r}: {reason}")
    return LLMError(f"endpoint {endpoint}: the request to model {model!r} failed: {reason}")


def quoted(text: str, api_key: str) -> str:
    """A server's words on one line, without the key and cut to a bearable length."""
    line = " ".join((text.replace(api_key, "***") if api_key else text).split())
    return line if len(line) <= _LONGEST_REASON else line[: _LONGEST_REASON - 3] + "..."


def _reason(error: openai.OpenAIError) -> str:
    """The server's words, or those of the library that lost the connection."""
    if isinstance(error, openai.APIConnectionError):
        return str(error.__cause__ or error) or type(error.__cause__).__name__
    if isinstance(error, openai.APIStatusError):
        # Versions of the client differ in how much of this their own text holds.
        said = error.body.get("message") if isinstance(error.body, dict) else None
        return f"Error code: {error.status_code} - {said or error.body or 'no reason given'}"
    return str(error)


def _lost_by_aiohttp(error: openai.APITimeoutError) -> bool:
    """Whether it is no time-out: openai's client says so of all connections that aiohttp did not get or lost."""
    origin = error.__cause__ and error.__cause__.__cause__
    return type(origin).__module__.startswith("aiohttp.") and not isinstance(origin, TimeoutError)


def _too_long(error: openai.APIStatusError) -> bool:
    if error.status_code not in (400, 413, 422):
        return False
    return error.code == "context_length_exceeded" or _DOES_NOT_FIT.search(_reason(error)) is not None
