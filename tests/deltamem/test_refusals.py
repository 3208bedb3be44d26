"""What is made of the refusals of services; their words are in ``wordings.yaml``, each with its source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import yaml

from deltamem.errors import ContextLengthError, LLMError
from deltamem.refusals import (
    OptionRefusal,
    explain,
    is_passing,
    is_refusal,
    named_bound,
    overflows,
    refused_options,
    words_of,
)

Wording = dict[str, Any]
CLIENT = openai.OpenAI(api_key="none")  # Reads certificates, which takes its time
WORDINGS: dict[str, list[Wording]] = yaml.safe_load((Path(__file__).parent / "wordings.yaml").read_text(encoding="utf-8"))

MESSAGES = [{"role": "user", "content": "The prompt is too long: temperature and seed are not supported, max_tokens > 9."}]
SENT: dict[str, Any] = {
    "model": "m",
    "messages": MESSAGES,
    "max_tokens": 2048,
    "temperature": 0.0,
    "top_p": 1.0,
    "seed": 4,
    "stop": ["\n"],
    "logprobs": True,
    "stream_options": {"include_usage": True},
    "presence_penalty": 0.5,
    "chat_template_kwargs": {"enable_thinking": False},
    "reasoning_effort": "high",
    "response_format": {"type": "json_object"},
}


def service(said: Wording) -> str:
    return str(said.get("service", said["message"][:40]))


def shapes(said: Wording) -> dict[str, object]:
    """Bodies of servers that say the same: their own ways, and those of gateways before them."""
    message, status = said["message"], said.get("status", 400)
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": said.get("code", status)}
    raw = json.dumps({"error": error}, indent=2)
    return {
        "OpenAI": {"error": error},
        "vLLM": {"object": "error", **error},
        "Gemini": [{"error": {"code": status, "message": message, "status": "INVALID_ARGUMENT"}}],
        "xAI": {"code": "Client specified an invalid argument", "error": message},
        "Anthropic": {"type": "error", "error": error, "request_id": "req_011CUB2XUHWkFnQzxcKBbjpF"},
        "OpenRouter": {"error": {"message": "Provider returned error", "code": status, "metadata": {"raw": raw}}},
        "FastAPI": {"detail": [{"msg": message, "loc": ["body"], "input": {"messages": MESSAGES, "seed": 4}}]},
        "Bedrock": {"message": message},
        "text": message,
    }


def refused(status: int, body: object, sent: object = None) -> LLMError:
    """The error of a request that was answered so."""
    text = body if isinstance(body, str) else json.dumps(body)
    request = httpx.Request("POST", "http://localhost/v1/chat/completions", json=sent)
    response: Any = httpx.Response(status, text=text, request=request)
    cause = CLIENT._make_status_error_from_response(response)
    error = explain(cause, endpoint="http://localhost/v1", model="m", api_key="", api_key_env="KEY")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("said", WORDINGS["too_long"], ids=service)
def test_a_request_that_does_not_fit_is_known_by_kind_whatever_the_service_and_shape(said: Wording) -> None:
    for shape, body in shapes(said).items():
        error = refused(said["status"], body)
        assert isinstance(error, ContextLengthError), shape
        assert is_refusal(error) and not is_passing(error)
        assert not refused_options(error, SENT), shape


@pytest.mark.parametrize("said", WORDINGS["not_too_long"], ids=service)
def test_rates_quotas_files_answers_and_options_are_not_taken_for_a_request_that_is_too_long(said: Wording) -> None:
    for shape, body in shapes(said).items():
        assert not isinstance(refused(said["status"], body), ContextLengthError), shape


def test_what_a_server_repeats_of_the_request_says_nothing() -> None:
    body = {
        "detail": [{"type": "missing", "loc": ["body", "model"], "msg": "Field required", "input": {"messages": MESSAGES}}]
    }
    error = refused(422, body)
    assert not overflows(422, words_of(json.dumps(body))) and not refused_options(error, SENT)
    assert words_of("[" * 100_000) == "[" * 4000  # deeper than can be read


@pytest.mark.parametrize("said", WORDINGS["options"], ids=service)
def test_an_option_is_at_fault_where_a_refusal_names_it(said: Wording) -> None:
    for shape, body in shapes(said).items():
        found = refused_options(refused(400, body), SENT)
        assert {one.name for one in found} == set(said["names"]), shape
        assert all(one.by_value is (one.name == "reasoning_effort") for one in found), shape  # that is one of several words
        for status in (401, 403, 429, 500, 503):
            assert not refused_options(refused(status, body), SENT)


def test_options_are_named_in_fields_too() -> None:
    """By OpenAI in ``param``, whatever the words; by FastAPI (Mistral) in ``loc``."""
    for body in (
        {"error": {"message": "无效的参数", "param": "seed", "code": "1210"}},
        {
            "detail": [
                {"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted", "input": 4}
            ]
        },
    ):
        assert refused_options(refused(422, body), SENT) == {OptionRefusal("seed")}
    for core in ("messages", "model", "response_format", "messages[0].content"):
        assert not refused_options(refused(400, {"error": {"message": "No.", "param": core}}), SENT)


@pytest.mark.parametrize(
    "message",
    [
        "`temperature` must be strictly positive",
        "temperature must be in the range (0, 2]",
        "temperature: Input should be greater than 0",
    ],
)
def test_a_value_that_is_out_of_range_says_nothing_of_other_values(message: str) -> None:
    (found,) = refused_options(refused(422, {"error": message}), SENT)
    assert found == OptionRefusal("temperature", 0.0, by_value=True) and found.of(0.0) and not found.of(0.7)


@pytest.mark.parametrize("said", WORDINGS["bounds"], ids=service)
def test_the_limit_of_an_answer_is_bound_where_the_bound_is_named(said: Wording) -> None:
    for shape, body in shapes(said).items():
        bound = named_bound(refused(400, body), said["sent"])
        assert (bound and list(bound)) == said["bound"], shape


REPEATED = "temperature is not supported, the context length exceeded 8192 tokens; seed is deprecated, billing quota"


@pytest.mark.parametrize(
    "said",
    [
        f"Could not read messages[0]: {{'role': 'user', 'content': '{REPEATED}'}}",
        f"Invalid character near {REPEATED[10:80]!r}",
        "Cannot read 'seed unsupported' in messages[2]",
        json.dumps({"role": "user", "content": f"bye\n{REPEATED}\nbye"}),
        str([{"type": "value_error", "loc": ("body",), "msg": "Bad", "input": {"temperature": "is not supported"}}]),
    ],
)
def test_what_a_refusal_quotes_of_the_prompt_says_nothing(said: str) -> None:
    messages = [{"role": "user", "content": f"bye\n{REPEATED}\nbye"}, {"role": "user", "content": REPEATED}]
    messages.append({"role": "user", "content": "seed unsupported"})
    error = refused(400, {"error": {"message": said}}, {"messages": messages})
    assert not isinstance(error, ContextLengthError) and not refused_options(error, SENT)
    assert isinstance(refused(400, f"{said}: prompt is too long: 9 tokens > 8", {"messages": messages}), ContextLengthError)


@pytest.mark.parametrize("said", ["'temperature' does not support 'high'", "temperature=high is not supported"])
def test_a_word_that_is_refused_says_nothing_of_other_words(said: str) -> None:
    (found,) = refused_options(refused(400, said), {"temperature": "high"})
    assert found.of("high") and found.of("low") is not found.by_value
    assert found.by_value is ("'high'" in said)


def test_what_a_model_wrote_says_nothing() -> None:
    error = {"message": "Failed to generate JSON.", "code": "json_validate_failed", "failed_generation": REPEATED}
    assert not refused_options(refused(400, {"error": error}), SENT)
