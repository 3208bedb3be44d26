"""What a chat template writes of an assistant's turn by itself, and which tokens end one.

A template may begin the turn for the model: with an empty think block where it must not think, with an opened one where it
must. That is prompt, not text of the model, but belongs to the turn that `deltamem.episode` reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from deltamem.errors import DeltaMemError


class ChatTokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    eos_token_id: int | None

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Render a conversation."""

    def encode(self, text: str, *, add_special_tokens: bool) -> Any:
        """Token ids of a text."""

    def get_added_vocab(self) -> Mapping[str, int]:
        """Special and other added tokens."""


@dataclass(frozen=True, slots=True)
class TurnFormat:
    """The frame of an assistant's turn."""

    opening: str  # What the generation prompt has already written of the turn, from its first ``<think>`` on
    ends: frozenset[int]  # Tokens that end the turn when the model writes them
    closing: int | None  # The token with which the template itself closes a turn; None if it uses none

    def check(self, *, thinking: bool) -> None:
        """Make sure that the template lets the model do what the episode asks.

        Raises:
            DeltaMemError: If the template forbids the thinking that is asked for, or begins one that is not wanted.
        """
        opened = self.opening.rfind("<think>") > self.opening.rfind("</think>")
        if thinking and self.opening and not opened:
            raise DeltaMemError(
                "the chat template writes an empty think block, but the episode asks for thinking; the template must not be "
                "given enable_thinking=false, or set thinking=false"
            )
        if not thinking and opened:
            raise DeltaMemError(
                "the chat template opens a think block, but thinking=false; the model needs a template that takes "
                "enable_thinking=false"
            )


def turn_format(
    tokenizer: ChatTokenizer, *, template_options: Mapping[str, Any], eos_ids: Sequence[int] | int | None = None
) -> TurnFormat:
    """Find out how a chat template frames an assistant's turn, by rendering one.

    `template_options` are passed to the template, for example ``enable_thinking``. `eos_ids` end a turn besides the
    tokenizer's own and the template's token, as ``eos_token_id`` of a generation configuration has them: none or several.
    """
    question = {"role": "user", "content": "question"}
    answer = {"role": "assistant", "content": "answer"}
    options = {**template_options, "tokenize": False}
    prompted = str(tokenizer.apply_chat_template([question], add_generation_prompt=True, **options))
    answered = str(tokenizer.apply_chat_template([question, answer], add_generation_prompt=False, **options))
    prompt = prompted[prompted.rindex("question") :]
    start = prompt.find("<think>")
    rest = answered[answered.rindex("answer") + len("answer") :]
    added = set(tokenizer.get_added_vocab().values())
    closing = next((int(token) for token in tokenizer.encode(rest, add_special_tokens=False) if token in added), None)
    listed = eos_ids if isinstance(eos_ids, Sequence) else [eos_ids]
    ends = {tokenizer.eos_token_id, closing, *listed}
    return TurnFormat(
        opening=prompt[start:] if start >= 0 else "",
        ends=frozenset(token for token in ends if token is not None),
        closing=closing,
    )
