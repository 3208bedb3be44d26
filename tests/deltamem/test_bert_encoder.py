"""The fast encoder makes the vectors of sentence-transformers, and leaves other models to it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lazy import Lazy

from deltamem.embedding import SentenceTransformerEmbedder, load_model

torch = Lazy("torch")
transformers = Lazy("transformers")
library = Lazy("sentence_transformers")
bert_encoder = Lazy("deltamem.bert_encoder")
layers = Lazy("sentence_transformers.sentence_transformer.modules")

SENTENCE = "Ana keeps her red bicycle near the old harbour of Oslo since March and rides it to work every day"
WORDS = SENTENCE.split()
MIXED = [" ".join(WORDS[start % 7 :][: 1 + start % 13]) + f" {start}" for start in range(100)]
QUERY = {"query": "find this: "}


@pytest.fixture(scope="session")
def encoder(minilm: Any) -> bert_encoder.BertEncoder:
    found = bert_encoder.fast_encoder(minilm)
    assert found is not None
    return found


def check(vectors: np.ndarray, model: Any, texts: list[str], **options: str) -> None:
    """The vectors are those that the library makes."""
    expected = model.encode(texts, normalize_embeddings=True, show_progress_bar=False, **options)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)


def tiny(folder: Path, minilm: Any, pooling: str = "mean", **config: object) -> str:
    """A small BERT with random weights, the tokenizer of MiniLM and a prompt for queries, saved in a folder."""
    torch.manual_seed(3)
    size = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    bert = transformers.BertModel(transformers.BertConfig(vocab_size=minilm.tokenizer.vocab_size, **size, **config))
    # The usual initial weights are so small that attention hardly matters.
    for weight in bert.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    bert.save_pretrained(folder / "bert")
    minilm.tokenizer.save_pretrained(folder / "bert")
    modules = [layers.Transformer(str(folder / "bert"), max_seq_length=40), layers.Pooling(32, pooling_mode=pooling)]
    library.SentenceTransformer(modules=modules, device="cpu", prompts=QUERY).save(str(folder / "model"))
    return str(folder / "model")


@pytest.mark.parametrize(
    "texts",
    [
        [""],
        ["bicycle"],
        ["Zoë mag 北京烤鸭 🙂🚲", "[MASK] is not [SEP]", "naïve\u200bcafé\n\ttab", "ﬁnancial Ⅷ ١٩٩٩", "a" * 300],
        ["", "Ana rides. " * 500, "Oslo", "Ana rides. " * 500, "the harbour of Oslo"],
        MIXED,
        [" ".join(WORDS * (1 + number % 4)) for number in range(16)],
    ],
    ids=["empty", "word", "unicode", "very mixed", "many", "long"],
)
def test_vectors_are_those_of_the_library(minilm: Any, encoder: bert_encoder.BertEncoder, texts: list[str]) -> None:
    vectors = encoder.encode(texts)
    assert vectors.dtype == np.float32 and vectors.shape == (len(texts), 384)
    check(vectors, minilm, texts)


def test_no_texts_and_every_number_of_tokens_around_the_rounding(minilm: Any, encoder: bert_encoder.BertEncoder) -> None:
    assert encoder.encode([]).shape == (0, 384)
    # Two texts whose lengths differ make batches of EXACT_TOKENS - 6 to EXACT_TOKENS + 18 tokens.
    for more in range(0, 25, 6):
        texts = [
            "bicycle " * (bert_encoder.EXACT_TOKENS - 20 + more),
            "old harbour of Oslo near the red bicycle of Ana today",
        ]
        check(encoder.encode(texts), minilm, texts)


def test_a_text_longer_than_a_batch_goes_alone(
    minilm: Any, encoder: bert_encoder.BertEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltamem.bert_encoder.BATCH_TOKENS", 20)
    texts = [*MIXED[:7], "bicycle " * 500]
    check(encoder.encode(texts), minilm, texts)
    # The library keeps its own truncation and padding.
    settings = minilm.tokenizer.backend_tokenizer
    before = settings.truncation, settings.padding
    encoder.encode(texts)
    assert (settings.truncation, settings.padding) == before


def test_precision_and_a_default_prompt_decide_who_embeds_and_bfloat16_is_loaded_as_float32(
    minilm: Any, tmp_path: Path
) -> None:
    folder = tiny(tmp_path, minilm)
    model = library.SentenceTransformer(folder, device="cpu")
    model.default_prompt_name = "query"
    assert bert_encoder.fast_encoder(model) is None
    model.default_prompt_name = None
    assert bert_encoder.fast_encoder(model) is not None
    assert bert_encoder.fast_encoder(model.double()) is None
    library.SentenceTransformer(folder, device="cpu").bfloat16().save(folder)
    assert {weight.dtype for weight in library.SentenceTransformer(folder, device="cpu").parameters()} == {torch.bfloat16}
    assert {weight.dtype for weight in load_model(folder, "cpu").parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("changes", "fast"),
    [
        ({}, True),
        ({"pooling": "cls"}, False),
        ({"hidden_act": "relu"}, False),
        ({"is_decoder": True}, False),
    ],
    ids=str,
)
def test_other_models_are_left_to_the_library_and_a_prompt_goes_before_queries_only(
    minilm: Any, tmp_path: Path, changes: dict, fast: bool
) -> None:
    folder = tiny(tmp_path, minilm, **changes)
    expected, embedder = library.SentenceTransformer(folder, device="cpu"), SentenceTransformerEmbedder(folder)
    assert (bert_encoder.fast_encoder(expected) is not None) == fast
    queries, documents = embedder.queries(MIXED[:5]), embedder.documents(MIXED[:5])
    check(queries, expected, MIXED[:5], prompt_name="query")
    check(documents, expected, MIXED[:5])
    assert np.abs(queries - documents).max() > 1e-2


def test_different_vectors_and_missing_operations_are_noticed(
    minilm: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    right = bert_encoder.BertEncoder.encode
    with monkeypatch.context() as patch, caplog.at_level(logging.INFO, logger="deltamem.bert_encoder"):
        patch.setattr(bert_encoder.BertEncoder, "encode", lambda *given: right(*given) + np.float32(3e-5))
        assert bert_encoder.fast_encoder(minilm) is None
    assert "differ by 3.0e-05" in caplog.text
    monkeypatch.setattr(torch.ops, "mkldnn", object())
    assert bert_encoder.fast_encoder(minilm) is None
