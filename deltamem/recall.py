"""Memories as a text that is shown to the model of an application: appended to the last message of the person.

Appended, because prompts are cached by their beginning: system prompt and earlier messages stay byte for byte what they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from deltamem.memory import Memory
from deltamem.sessions import CONTROL_MARK

_TAG = "memories"
_TEXTS = ("text", "input_text", "output_text", None)  # kinds of parts; clients mix OpenAI's two protocols
_ENDS = re.compile(rf"<(?=\s*/?\s*{_TAG}\b)", re.IGNORECASE)


def recalled_text(memories: Sequence[Memory], person_name: str) -> str:
    """What to append to a message of the person so that a model knows some memories; empty if there are none.

    It depends on nothing but the memories in their order, so equal memories give equal bytes. A memory cannot end its list,
    nor pose as a message.
    """
    if not memories:
        return ""
    lines = [f"- {memory.time:%Y/%m/%d}: {_one_line(memory.text)}" for memory in memories]
    heading = f"Remembered of {_one_line(person_name)} from earlier conversations, with dates; not said just now:"
    return "\n".join(["\n", f"<{_TAG}>", heading, *lines, f"</{_TAG}>"])


def _one_line(text: str) -> str:
    return _ENDS.sub("< ", CONTROL_MARK.sub("< ", " ".join(text.split())))


def text_of(content: object) -> str:
    """The text of a message's content as OpenAI's protocol and LangChain have it: a text, or a list of parts."""
    if isinstance(content, str):
        return content
    parts: Iterable[object] = content if isinstance(content, list) else ()
    texts = (part.get("text") if isinstance(part, dict) and part.get("type") in _TEXTS else part for part in parts)
    return "\n".join(text for text in texts if isinstance(text, str))


def with_appended(content: object, addition: str) -> object:
    """The content of a message with a text at its end: a text becomes longer, a list gets one more part."""
    if isinstance(content, list):
        return [*content, {"type": "text", "text": addition.lstrip("\n")}]
    return f"{content}{addition}" if isinstance(content, str) else content
