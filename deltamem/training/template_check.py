"""Whether a chat template carries an episode: built token by token it must be the text of the rendered conversation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deltamem.chat_template import turn_format
from deltamem.episode import Message
from deltamem.training.teacher import TrajectoryTokenizer

_CALL = (
    "<think>\nWhat is known?\n</think>\n\n"
    '<tool_call>{"name": "search_memory", "arguments": {"query_list": ["where Ann lives"]}}</tool_call>'
)
_OUTPUTS = '<think>\nNothing is new.\n</think>\n\n<outputs>{"operations": []}</outputs>'
_MEMORIES = '[{"id": "m1", "time": "2026/04/05 (Sun) 20:01", "text": "Ann lives in Oslo."}]'


def template_problem(tokenizer: Any, kwargs: Mapping[str, Any], model_type: str, *, thinking: bool) -> str | None:
    """Why an episode of three turns cannot be built token by token as the agent loop does; None if it can.

    The episode is built twice: once as the agent loop does, from the model's own tokens and verl's continuous-token builder,
    and once by rendering all its messages. Both must be the same text.
    """
    tokenize = TrajectoryTokenizer(tokenizer, model_type=model_type, template_kwargs=kwargs)
    frame = tokenize.frame
    frame.check(thinking=thinking)
    off = {**kwargs, "enable_thinking": False}
    if not thinking and not frame.opening and turn_format(tokenizer, template_options=off) != frame:
        return "deltamem.episode.thinking=false needs data.apply_chat_template_kwargs.enable_thinking=false"
    call, outputs = (text if thinking else text.partition("</think>\n\n")[2] for text in (_CALL, _OUTPUTS))
    messages = [
        Message(role="system", content="Manage memory."),
        Message(role="user", content="Ann: I moved."),
        Message(role="assistant", content=call),
        Message(role="tool", content=_MEMORIES),
        Message(role="assistant", content=call),
        Message(role="tool", content=_MEMORIES),
        Message(role="assistant", content=outputs),
    ]
    ids = tokenize(messages).token_ids
    whole = tokenizer.apply_chat_template(messages, tokenize=False, **kwargs)
    text = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    if text.count(_MEMORIES) != 2:
        return "the chat template leaves out what the tool answers"
    if not thinking:
        # Every turn began after the template's own empty think block; in a rendered history it stands only in the last.
        empty = "<think>\n\n</think>\n\n"
        text, whole = text.replace(empty, ""), whole.replace(empty, "")
    if whole.startswith(text):
        return None
    place = next((place for place, (a, b) in enumerate(zip(text, whole, strict=False)) if a != b), len(whole))
    return (
        f"the chat template is not append-only: the agent loop has {text[place : place + 30]!r} where a rendered "
        f"conversation has {whole[place : place + 30]!r}"
    )
