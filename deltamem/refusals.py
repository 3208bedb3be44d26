"""Why a request failed: one sentence for people, and the kinds of failure that the code acts on.

Endpoints say the same in many words, and few of them give codes. So a kind is told by the status, by codes, and by what a
sentence is about; ``tests/deltamem/test_refusals.py`` has the wordings of the services.
"""

from __future__ import annotations

import ast
import json
import math
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from email.utils import parsedate_to_datetime
from typing import Any, Literal, NamedTuple

import openai
from pydantic import ValidationError

from deltamem.errors import ContextLengthError, LLMError
from deltamem.text import shortened

_LONGEST_REASON = 300  # Characters of a server's own words that are passed on; some servers repeat the whole prompt
_LONGEST_READ = 4000  # Characters of them that are looked at
_QUOTE = 32  # Characters in a row that a server has from the prompt and not from itself


def explain(error: openai.OpenAIError, *, endpoint: str, model: str, api_key: str, api_key_env: str) -> LLMError:
    """Turn what the client raised after its retries into one sentence; a `ContextLengthError` if the request was too long.

    Should the server repeat the key that was sent, it is taken out.
    """
    reason = quoted(_reason(error), api_key)
    # openai's client says time-out of all connections that aiohttp did not get or lost.
    origin = error.__cause__ and error.__cause__.__cause__
    lost_by_aiohttp = type(origin).__module__.startswith("aiohttp.") and not isinstance(origin, TimeoutError)
    if isinstance(error, openai.APITimeoutError) and not lost_by_aiohttp:
        return LLMError(f"endpoint {endpoint} gave no answer in time for model {model!r}; is the server overloaded?")
    if isinstance(error, openai.APIConnectionError):
        return LLMError(f"endpoint {endpoint} cannot be reached for model {model!r} ({reason}); is the server up?")
    if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError):
        key = f"the key in ${api_key_env}" if api_key else f"a request without a key (${api_key_env} is not set)"
        return LLMError(f"endpoint {endpoint} refused {key} for model {model!r}: {reason}")
    if isinstance(error, openai.APIStatusError):
        if overflows(error.status_code, said(error)):
            return ContextLengthError(
                f"endpoint {endpoint}: the request does not fit the window of model {model!r}: {reason}"
            )
        done = "failed on" if error.status_code >= 500 else "refused"
        return LLMError(f"endpoint {endpoint} {done} the request to model {model!r}: {reason}")
    return LLMError(f"endpoint {endpoint}: the request to model {model!r} failed: {reason}")


def quoted(text: str, api_key: str) -> str:
    """A server's words on one line, without the key and cut to a bearable length."""
    line = " ".join((text.replace(api_key, "***") if api_key else text).split())
    return shortened(line, _LONGEST_REASON)


def _reason(error: openai.OpenAIError) -> str:
    """The server's words, or those of the library that lost the connection."""
    if isinstance(error, openai.APIConnectionError):
        return str(error.__cause__ or error) or type(error.__cause__).__name__
    if isinstance(error, openai.APIStatusError):
        # Versions of the client differ in how much of this their own text holds.
        words = error.body.get("message") if isinstance(error.body, dict) else None
        return f"Error code: {error.status_code} - {words or error.body or 'no reason given'}"
    return str(error)


def said(error: openai.APIStatusError) -> str:
    """What `words_of` finds in a failed response."""
    return words_of(error.response.text, error.request.content)


def words_of(body: str, request: bytes = b"") -> str:
    """All that a server says, in whatever shape, each text of its JSON on a line of its own; the beginning, if it is long.

    What gateways wrap (OpenRouter: ``metadata.raw``) is part of it, what a server repeats of the `request` is not: a prompt
    may speak of options and windows too.
    """
    with suppress(ValueError, RecursionError):
        body = _spoken(json.loads(body))
    with suppress(ValueError, RecursionError, AttributeError, TypeError):
        contents = (message.get("content") for message in json.loads(request)["messages"])
        body = _unquoted(body, [text if isinstance(text, str) else _spoken(text) for text in contents])
    return body[:_LONGEST_READ]


def _unquoted(words: str, texts: list[str]) -> str:
    """The words without what is in the texts of a prompt, whole or in part."""
    words = re.sub(r"\\+n", "\n", words[: 10 * _LONGEST_READ])
    words = re.sub(r"\\+(?=[\"'])", "", words)
    for text in texts:
        if _QUOTE > len(text) > 8:
            words = words.replace(text, " ")
    prompt = "\n".join(texts)
    kept, position = [], 0
    for start in (match.start() for match in re.finditer(r"[^\W\u3040-\u9fff]+|[\u3040-\u9fff]", words)):
        if len(quote := words[start : start + _QUOTE]) == _QUOTE and quote in prompt:
            kept.append(words[position:start])
            position = start + _QUOTE
    return " ".join([*kept, words[position:]])


def _spoken(value: Any) -> str:
    if isinstance(value, Mapping):
        silent = ("input", "ctx", "url", "request_id", "failed_generation")  # Groq: what the model wrote
        parts = (_spoken(part) for key, part in value.items() if key not in silent)
        return (" " if "loc" in value else "\n").join(parts)  # FastAPI's place belongs to its sentence
    if isinstance(value, list | tuple):
        return ("\n" if any(isinstance(part, Mapping) for part in value) else " ").join(map(_spoken, value))
    if isinstance(value, str) and value[:1] in ("{", "["):
        for read in (json.loads, ast.literal_eval):  # vLLM writes pydantic's errors as Python does
            with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
                return _spoken(read(value))
    return value if isinstance(value, str) else ""  # numbers are codes, which would be taken for limits


def _sentences(words: str) -> Iterator[str]:
    for sentence in re.split(r"(?<=[.!?])\s+|(?<=。)|\n(?!\s)", words):  # pydantic indents what it says of a field
        if sentence:
            yield sentence


ELSEWHERE = re.compile(
    r"content[_ ]?(filter|polic|management)|moderation|safety|guardrail|usage polic|inappropriate|sensitive"
    r"|model\b.{0,100}\b(not found|not exist|no access)|model_not_found"
    r"|billing|quota|credits?\b|afford|api[_ ]key|per[ _-]?(second|minute|min|hour|day|month)\b|\b(daily|monthly)\b"
    r"|\b[tr]p[smdh]\b|rate[_ -]?limit|too many requests|timed? ?out|took too|your (plan|account|subscription|organi.ation)"
    r"|\b(files?|attachments?|uploads?|images?) (is |are )?(too|size|exceed)|(size|length) of (the |an? )?(\w+ )?(file|upl)"
    r"|敏感|违规|审核|内容安全|余额|欠费|配额|频率|限流|并发",
    re.IGNORECASE | re.DOTALL,
)
"""What has nothing to do with how long a request is or which options it has."""

_BUDGET = re.compile(
    r"['`\"\\]*\bmax(imum)?[_ ]?(completion|output|new)?[_ ]?tokens(_to_sample)?\b['`\"\\]*|maxOutputTokens", re.I | re.A
)

# A request is too long where a sentence names what was sent or the window, a measure of length, and an excess.
_SENT = re.compile(
    r"\b(prompt|inputs?\b|input[_ ]|messages?\b|conversation|request|history|query|sequence|text\b|model('s)? max\w* len)",
    re.I,
)
_WINDOW = re.compile(
    r"context[ _-]?(length|size|window|limit)|\bn_ctx\b|max_(model|seq)_len|maximum (model|sequence) length", re.IGNORECASE
)
_MEASURE = re.compile(r"token|length|\blen\b|_len\b|\blong|context|\bn_ctx\b|overflow", re.I)
_EXCESS = re.compile(
    r"exceed|\btoo (long|large|many|big)|(long|larg|great|bigg)er than|more than|does(n't| not) fit|overflow|reduc|shorten"
    r"|over the (max|limit)|must (be|have) (less|fewer|at most|no more|<)|\bmax(imum)?\b|supports? (only|up to)|up to \d"
    r"|range of|\bbut\b|>=?\s*\d|>= ?n_|not enough|cannot be (long|more|larg)",
    re.IGNORECASE,
)
_OVERFLOW = re.compile(
    r"context[ _-]?(length|size|window|limit)[ _-]?(was |is |has been )?exceed|contextwindowexceeded|exceed_context"
    r"|tokens_limit_reached|max_prompt_tokens|request_too_large|got -\d+"  # vLLM: what is left for the answer
    r"|(输入|上下文|提示|对话|消息|prompt).{0,12}(过长|超长|超过|超出|太长)|(超过|超出|超).{0,12}(上下文|窗口)",
    re.IGNORECASE,
)


def overflows(status: int, words: str) -> bool:
    """Whether a failed request did not fit the window of the model. 500: llama.cpp and gateways have answered so."""
    if status not in (400, 413, 422, 500) or ELSEWHERE.search(words):
        return False
    if status == 413 or _OVERFLOW.search(words):
        return True
    for rest in map(_without_budget, _sentences(words)):
        # "`max_tokens` must be less than the context window" says nothing of what was sent.
        named = _SENT.search(rest) or ("§" not in rest and _WINDOW.search(rest))
        if named and _MEASURE.search(rest) and _EXCESS.search(rest):
            return True
    return False


BUDGETS = ("max_tokens", "max_completion_tokens")
"""The names under which the limit of an answer is sent; endpoints take one, the other, or both."""
_CORE = {"model", "messages", "stream", "tools", "tool_choice", "response_format", "structured_outputs"}
"""Fields that make the request what it is: without them it would be another one."""
_UNKNOWN = re.compile(
    r"unsupported|n.t support|not (currently |yet )?(support|allow|permit|accept|take|available|a valid|expected)"
    r"|requires?\b|\bfixed\b|mutually exclusive|disabled|replaced|instead"
    r"|incompatible|(unr|not r)ecogni[sz]ed|unknown|unexpected|\bextra|deprecated|no longer|\bonly\b|cannot (both )?be"
    r"|不(支持|允许|接受|可用|能)|未知|弃用|废弃|改用|unterstützt|en charge|soportad|admitid|サポート",
    re.IGNORECASE,
)
_RANGE = re.compile(
    r"positive|\brange\b|between|within|greater|\bless\b|at (least|most)|\bmin(imum)?\b|\bmax(imum)?\b|above|below"
    r"|(high|low|larg|small)er|too (low|high|small|large)|[<>]=?\s*-?[\d.]+(?![\d.]*>)"
    r"|范围|区间|[大小]于|超[过出]|最[大小]|介于|之间",
    re.IGNORECASE,
)
_WRONG = re.compile(r"invalid|must be|should be|not a |illegal|out of|非法|无效|有误|不合法|错误", re.IGNORECASE)
_PARAM = re.compile(r'\\*"param\\*"\s*:\s*\\*"([\w.]+)')
_NUMBER = re.compile(r"(?<![\w.-])\d[\d,]*(?![\w-]|\.\d)", re.ASCII)


class OptionRefusal(NamedTuple):
    """An option that an endpoint refuses: in one value, or, without `by_value`, in all."""

    name: str
    value: object = None
    by_value: bool = False

    def of(self, value: object) -> bool:
        """Whether the option is refused in this value."""
        return not self.by_value or self.value == value

    def __str__(self) -> str:
        return f"{self.name}={self.value}" if self.by_value else self.name


def params(error: openai.APIStatusError) -> set[str]:
    """The fields of a request, as far as a refusal has them in a field of its own."""
    return {name.split(".")[0] for name in _PARAM.findall(error.response.text)}


def refused_options(error: LLMError, body: Mapping[str, Any]) -> frozenset[OptionRefusal]:
    """The options of a request that are at fault for its refusal, as far as the refusal names them."""
    cause = error.__cause__
    if not isinstance(cause, openai.APIStatusError) or cause.status_code not in (400, 404, 416, 422):
        return frozenset()
    words = said(cause)
    if ELSEWHERE.search(words):
        return frozenset()
    named = params(cause)
    found = {}
    for name in body.keys() - _CORE:
        camel = re.sub(r"_(\w)", lambda match: match[1].upper(), name)
        spelled = re.compile(rf"(?<!\w)({re.escape(name)}|{camel})(?!\w)", re.IGNORECASE | re.ASCII)
        about = " ".join(sentence for sentence in _sentences(words) if spelled.search(sentence))
        about = words if name in named else about
        ranged, unknown = _RANGE.search(about), _UNKNOWN.search(about)
        if name in BUDGETS:  # its bounds are another matter (`named_bound`)
            other = any(one in words and one not in body for one in BUDGETS) and not _RANGE.search(words)
            if (unknown and not ranged) or (other and _UNKNOWN.search(words)):
                found[name] = OptionRefusal(name)
        elif name in named or (about and (unknown or ranged or _WRONG.search(about))):
            value = body[name]
            if isinstance(value, str):
                by_value = re.search(rf"['\"`]{re.escape(value)}['\"`]", about) is not None
            else:
                by_value = ranged is not None and isinstance(value, int | float)
            found[name] = OptionRefusal(name, value if by_value else None, by_value)
    if len(found) > 1 and re.search(r"\bboth\b|only one of|mutually exclusive", words, re.IGNORECASE):
        found.pop("temperature", None)
    return frozenset(found.values())


class Bound(NamedTuple):
    """Between which numbers of tokens an endpoint wants the limit of an answer."""

    side: Literal["most", "least"]
    tokens: int


def named_bound(error: LLMError, budget: object) -> Bound | None:
    """What the limit of an answer, `budget`, must be, where it is at fault and the refusal names its bound.

    Where the bound is that of the window, of which prompt and answer have a part each, the answer may have half, if that
    leaves enough for the prompt; otherwise it is the prompt that is too long.
    """
    cause = error.__cause__
    if not isinstance(cause, openai.APIStatusError) or not isinstance(budget, int) or ELSEWHERE.search(words := said(cause)):
        return None
    if cause.status_code not in (400, 413, 416, 422, 500):
        return None
    numbers = {int(number.replace(",", "")) for number in _NUMBER.findall(words)} - {cause.status_code, 0, 1}
    about = " ".join(sentence for sentence in _sentences(words) if _BUDGET.search(sentence))
    if any(_SENT.search(rest) and _MEASURE.search(rest) for rest in map(_without_budget, _sentences(words))):
        others = numbers - {budget}
        others -= {number + budget for number in others}  # what was asked for in all
        window = max(others, default=0)
        prompt = others - {window, window - budget}
        if budget in numbers and len(prompt) == 1 and 2 * prompt.pop() <= window < 2 * budget:
            return Bound("most", window // 2)
    elif re.search(r"below|at least|minimum|>=", about) and budget < max(numbers, default=0) <= 1024:
        return Bound("least", max(numbers))
    elif about and (_EXCESS.search(about) or _RANGE.search(about)):
        exclusive = re.search(r"exclusive|(less|lower|smaller) than ['`\"]?\d", words, re.IGNORECASE) is not None
        # Numbers of other things (at most 4 sequences) are below what any service allows.
        below = [number - exclusive for number in numbers - {budget} or numbers if 64 <= number - exclusive < budget]
        return Bound("most", max(below)) if below else None
    return None


def _without_budget(sentence: str) -> str:
    return _BUDGET.sub(" § ", sentence)


def is_unfinished(error: LLMError) -> bool:
    """Whether the model used up its limit before it had said a word, which OpenAI reports as a refusal."""
    cause = error.__cause__
    return isinstance(cause, openai.BadRequestError) and "could not finish the message" in said(cause).lower()


def is_passing(error: LLMError) -> bool:
    """Whether the same request may succeed later, or at another endpoint that serves the same model.

    So it is after a lost connection, a time-out, an answer that could not be read, a 408, 409, 429 or 5xx.
    """
    cause = error.__cause__
    if isinstance(error, ContextLengthError):
        return False
    if isinstance(cause, openai.APIStatusError):
        return cause.status_code in (408, 409, 429) or cause.status_code >= 500
    return isinstance(cause, openai.APIConnectionError | ValidationError)


def retry_after(error: LLMError) -> float | None:
    """In how many seconds the server wants to be asked again, as its ``Retry-After`` says; None if it does not say."""
    cause = error.__cause__
    told = cause.response.headers.get("retry-after") if isinstance(cause, openai.APIStatusError) else None
    if told is None:
        return None
    try:
        seconds = float(told)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(told).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def is_refusal(error: LLMError) -> bool:
    """Whether the endpoint refused this request for what it holds, so that it would refuse it again."""
    cause = error.__cause__
    refused = isinstance(cause, openai.APIStatusError) and cause.status_code in (400, 413, 422)
    return refused or isinstance(error, ContextLengthError)
