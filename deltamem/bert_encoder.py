"""Sentence vectors of a BERT encoder on a CPU, the same as sentence-transformers makes, in less than half of the time.

Three things make the difference for short texts: the weights of the linear maps are brought once into the layout that oneDNN
multiplies fastest, the texts of a batch are laid end to end instead of being padded to the longest one, and a layer is ten
operations instead of some fifty modules. The architecture is BERT (arXiv 1810.04805), its token vectors averaged as in
Sentence-BERT (arXiv 1908.10084).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Why not a library: all-MiniLM-L6-v2, 96 short texts and single queries, processor time on one thread. Ours: 8,900
# tokens/s and 2.6 ms a query; the torch forward of sentence-transformers: 2,400 and 7.5; bare onnxruntime: 7,300 and
# 2.7; bare OpenVINO: 7,800 and 2.3, before what its backend for sentence-transformers adds. The exporter of the ONNX
# backend (optimum-onnx 0.1) does not import with transformers 5.

_log = logging.getLogger(__name__)

BATCH_TOKENS = 1024
"""Tokens a forward pass: enough to keep the processor busy, and the activations of MiniLM still fit into its cache."""
EXACT_TOKENS = 128
ROUNDING = 16
"""oneDNN takes milliseconds to prepare for a number of tokens it has not seen; larger numbers are therefore rounded up."""
TOLERANCE = 1e-5
PROBES = ("", "Ana", "Where does Ana keep her bicycle?", "Zoë 住在 Kraków 🙂 [SEP] since ١٩٩٩.", "one two three " * 400)
"""Empty, short and unusual texts, and one that has to be cut."""


class _Linear:
    """Linear maps of the same input with prepacked weights; their outputs ``(tokens, out)`` come side by side."""

    def __init__(self, *parts: torch.nn.Linear) -> None:
        self._weight = torch.ops.mkldnn._reorder_linear_weight(torch.cat([part.weight.detach() for part in parts]))
        self._bias = torch.cat([part.bias.detach() for part in parts])

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return out

    def gelu(self, x: Tensor) -> Tensor:
        """The map followed by the exact (erf) GELU."""
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._weight, self._bias, "gelu", [], "none")
        return out

    def add_to(self, residual: Tensor, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self._weight, self._bias, "add")
        return out


@dataclass(frozen=True)
class _Layer:
    """One block: attention and feed-forward, each with a residual and a LayerNorm."""

    qkv: _Linear
    attended: _Linear
    attended_norm: torch.nn.LayerNorm
    widen: _Linear
    narrow: _Linear
    norm: torch.nn.LayerNorm


class BertEncoder:
    """Mean-pooled unit vectors of texts, for the weights of a loaded sentence-transformers model."""

    def __init__(self, model: SentenceTransformer) -> None:
        """Pack the weights of a float32 BERT on the CPU; use `fast_encoder`, which checks that the model is one.

        Raises:
            AttributeError: If the model is not built like BERT, or this build of torch has no oneDNN.
        """
        library: Any = model[0].tokenizer
        # A copy, because the library sets padding and truncation on its own at every call.
        self._tokenizer = Tokenizer.from_str(library.backend_tokenizer.to_str())
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(model[0].max_seq_length, direction=library.truncation_side)
        bert: Any = model[0].auto_model
        self._heads = int(bert.config.num_attention_heads)
        first = bert.embeddings
        self._words = first.word_embeddings.weight.detach()
        # All tokens are of the first segment.
        self._positions = first.position_embeddings.weight.detach() + first.token_type_embeddings.weight.detach()[0]
        self._norm = first.LayerNorm
        self._layers = [
            _Layer(
                _Linear(block.attention.self.query, block.attention.self.key, block.attention.self.value),
                _Linear(block.attention.output.dense),
                block.attention.output.LayerNorm,
                _Linear(block.intermediate.dense),
                _Linear(block.output.dense),
                block.output.LayerNorm,
            )
            for block in bert.encoder.layer
        ]

    def encode(self, texts: Sequence[str], prompt: str | None = None) -> npt.NDArray[np.float32]:
        """Embed texts, each with the prompt in front; returns float32 of shape ``(len(texts), dim)``."""
        encodings = self._tokenizer.encode_batch_fast([(prompt or "") + text for text in texts])
        rows = [encoding.ids for encoding in encodings]
        vectors = np.empty((len(rows), self._words.shape[1]), dtype=np.float32)
        with torch.inference_mode():
            for batch in _batches([len(row) for row in rows]):
                vectors[batch] = self._forward([rows[number] for number in batch]).numpy()
        return vectors

    def _forward(self, rows: list[list[int]]) -> Tensor:
        """Vectors ``(len(rows), dim)`` of rows of token ids that are ordered by length."""
        groups = [(len(list(same)), length) for length, same in groupby(len(row) for row in rows)]
        tokens = sum(count * length for count, length in groups)
        spare = -tokens % ROUNDING if tokens > EXACT_TOKENS else 0
        ids = [token for row in rows for token in row] + [0] * spare
        places = [place for row in rows for place in range(len(row))] + [0] * spare
        # The spare tokens attend to themselves like a text of their own, whose vector is dropped.
        sizes = [*groups, (1, spare)] if spare else groups
        words = functional.embedding(torch.tensor(ids), self._words)
        x = self._norm(words + functional.embedding(torch.tensor(places), self._positions))
        for layer in self._layers:
            x = layer.attended_norm(layer.attended.add_to(x, self._attend(layer.qkv(x), sizes)))
            x = layer.norm(layer.narrow.add_to(x, layer.widen.gelu(x)))
        parts = x.split([count * length for count, length in sizes])
        means = [part.view(count, length, -1).mean(1) for part, (count, length) in zip(parts, groups, strict=False)]
        return functional.normalize(torch.cat(means), dim=1)

    def _attend(self, qkv: Tensor, sizes: list[tuple[int, int]]) -> Tensor:
        """Attention within each text: ``(tokens, 3 * dim)`` to ``(tokens, dim)``; texts of one length go together."""
        mixed = []
        for part, (count, length) in zip(qkv.split([count * length for count, length in sizes]), sizes, strict=True):
            query, key, value = part.view(count, length, 3, self._heads, -1).permute(2, 0, 3, 1, 4)
            heads = functional.scaled_dot_product_attention(query, key, value)
            mixed.append(heads.transpose(1, 2).reshape(count * length, -1))
        return mixed[0] if len(mixed) == 1 else torch.cat(mixed)


def _batches(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Numbers of texts, the shortest text first, in batches of at most `BATCH_TOKENS` tokens (or of one longer text)."""
    batch: list[int] = []
    tokens = 0
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batch and tokens + lengths[number] > BATCH_TOKENS:
            yield batch
            batch, tokens = [], 0
        batch.append(number)
        tokens += lengths[number]
    if batch:
        yield batch


def fast_encoder(model: SentenceTransformer) -> BertEncoder | None:
    """The encoder for a model, or None if the model is of another kind or its vectors would differ by more than 1e-5."""
    try:
        if not _qualifies(model):
            _log.debug("the library embeds, because the model is not a plain float32 BERT with mean pooling on a CPU")
            return None
        encoder = BertEncoder(model)
        expected = model.encode(list(PROBES), batch_size=1, normalize_embeddings=True, show_progress_bar=False)
        difference = float(np.abs(encoder.encode(PROBES) - expected).max())
    except (AttributeError, RuntimeError) as error:
        _log.info("the library embeds, because the fast encoder cannot be used here: %s", error)
        return None
    if not difference <= TOLERANCE:
        _log.info("the library embeds, because the vectors of the fast encoder differ by %.1e", difference)
        return None
    return encoder


def _qualifies(model: SentenceTransformer) -> bool:
    kinds = [type(module).__name__ for module in model]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        return False
    bert: Any = model[0].auto_model
    pooling: Any = model[1]
    return (
        type(bert).__name__ == "BertModel"
        and bert.config.hidden_act == "gelu"
        and not bert.config.is_decoder
        and getattr(bert.config, "position_embedding_type", "absolute") == "absolute"
        and {(weight.dtype, weight.device.type) for weight in bert.parameters()} == {(torch.float32, "cpu")}
        and pooling.pooling_mode == "mean"
        and pooling.include_prompt
        and model.truncate_dim is None
        and model.default_prompt_name is None
        and not model[0].do_lower_case
        and model[0].tokenizer.is_fast
        # On the left, padding would shift the positions of the shorter texts.
        and model[0].tokenizer.padding_side == "right"
        and bool(torch.backends.mkldnn.is_available())
    )
