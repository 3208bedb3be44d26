"""The sizes of a model, and what follows from them without its weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_HALF = 2
"""A bfloat16 number."""


@dataclass(frozen=True)
class ModelShape:
    """The sizes of a decoder of the Qwen3 kind (no biases, gated MLP, norms of queries and keys)."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    vocabulary: int
    tied: bool

    @classmethod
    def of(cls, config: Any) -> ModelShape:
        """Read a Hugging Face configuration."""
        return cls(
            layers=config.num_hidden_layers,
            hidden=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            mlp=config.intermediate_size,
            vocabulary=config.vocab_size,
            tied=bool(config.tie_word_embeddings),
        )

    @property
    def projections(self) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of the seven matrices of a layer."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return (
            (self.hidden, queries),
            (self.hidden, keys),
            (self.hidden, keys),
            (queries, self.hidden),
            (self.hidden, self.mlp),
            (self.hidden, self.mlp),
            (self.mlp, self.hidden),
        )

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer."""
        return sum(rows * columns for rows, columns in self.projections) + 2 * self.hidden + 2 * self.head_dim

    @property
    def vocabulary_parameters(self) -> int:
        """Parameters of the embedding and of the head, which may be one matrix."""
        return (1 if self.tied else 2) * self.vocabulary * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters."""
        return self.layers * self.layer_parameters + self.vocabulary_parameters + self.hidden

    def adapters(self, rank: int) -> int:
        """Parameters of LoRA adapters at all matrices of the layers."""
        return self.layers * sum(rank * (rows + columns) for rows, columns in self.projections)

    @property
    def cache_per_token(self) -> int:
        """Keys and values of one token in bfloat16."""
        return 2 * self.layers * self.kv_heads * self.head_dim * _HALF
