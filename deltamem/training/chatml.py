"""ChatML: its marks, and chat templates in it for models whose tokenizer is made here."""

from __future__ import annotations

import json

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{%- if message.role == 'tool' -%}"
    "{{ '<|im_start|>user\n<tool_response>' + message.content + '</tool_response><|im_end|>\n' }}"
    "{%- else -%}"
    "{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\n' }}{%- endif -%}"
)
"""ChatML with the tool's answer in a user message, as Qwen3 has it; reasoning stays in the history."""


def chatml(default_system: str | None = None) -> str:
    """A ChatML template whose line ends precede a message instead of closing the one before.

    After the assistant's end token verl appends what the template writes for the next message; a line end that the template
    counts to the turn before would be lost. Conversations without a system message begin with `default_system`, if any.
    """
    opening = ""
    if default_system is not None:
        text = json.dumps(f"{TURN_START}system\n{default_system}{TURN_END}\n")
        opening = "{%- if loop.first and message.role != 'system' -%}{{- " + text + " -}}{%- endif -%}"
    return (
        "{%- for message in messages -%}" + opening + "{{- '' if loop.first else '\n' -}}"
        "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' -}}{%- endfor -%}"
        "{%- if add_generation_prompt -%}{{- '\n<|im_start|>assistant\n' -}}{%- endif -%}"
    )
