"""The token sequence of one rollout: token in, token out, and which tokens the model wrote."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field


@dataclass
class TokenSequence:
    """Prompt and response as one growing list of ids.

    Attributes:
        ids: All tokens so far.
        mask: For what follows the prompt: 1 where the model wrote the token.
        log_probs: For what follows the prompt: the server's log-probabilities, 0 for what the model did not write. None
            where the trainer does not ask for them.
    """

    ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    log_probs: list[float] | None = None

    @property
    def prompt_ids(self) -> list[int]:
        """What was there before the model wrote."""
        return self.ids[: len(self.ids) - len(self.mask)]

    @property
    def response_ids(self) -> list[int]:
        """What followed: the model's turns and the tool's answers."""
        return self.ids[len(self.ids) - len(self.mask) :]

    def closed(self, closing: int | None) -> TokenSequence:
        """The sequence with the end of the last turn as the chat template writes it.

        A model may end its turn with another token, Qwen3 with ``<|endoftext|>``. That one stays, for it was sampled, but
        the next turn must not begin without the template's own end.

        Args:
            closing: The template's token, see `deltamem.chat_turns.TurnFormat`.
        """
        if closing is None or self.ids[-1] == closing:
            return self
        log_probs = None if self.log_probs is None else [*self.log_probs, 0.0]
        return TokenSequence([*self.ids, closing], [*self.mask, 0], log_probs)

    def without_response(self, end: int) -> TokenSequence:
        """Prompt and one token that nobody learns from: what is handed to the trainer where the rollout failed.

        Args:
            end: The token; also the prompt, if there is none.
        """
        return TokenSequence([*(self.prompt_ids or [end]), end], [0], None if self.log_probs is None else [0.0])


def turn_seed(run_seed: int, key: str, step: int, rollout: int, turn: int) -> int:
    """The seed of one assistant turn, the same whenever and wherever it is sampled.

    Args:
        run_seed: Of the run.
        key: Of the session.
        step: Global step of the trainer.
        rollout: Number of the rollout within its group.
        turn: Number of the turn within the rollout.

    Returns:
        A number of 63 bits.
    """
    named = json.dumps([run_seed, key, step, rollout, turn]).encode("utf-8")
    return int.from_bytes(hashlib.sha256(named).digest()[:8], "big") >> 1
