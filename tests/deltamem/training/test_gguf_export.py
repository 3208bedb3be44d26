"""A policy as a GGUF file: the same logits and tokens when it is read back, refusals in one sentence, all or nothing."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from smol_cases import needs_smol, smol_folder
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from deltamem.errors import DeltaMemError
from deltamem.prompts import load_prompt
from deltamem.training.gguf_export import main, write_gguf
from deltamem.training.pretrained import END_OF_TEXT, TURN_END, TURN_START, chatml, read_tokenizer

gguf = pytest.importorskip("gguf", reason="the package gguf is not installed: run `make install` again")

ROOT = Path(__file__).resolve().parents[3]
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
DIGITS = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), BYTES])
QWEN = pre_tokenizers.Sequence(
    [
        pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ]
)
CARD = "---\nlicense: apache-2.0\nbase_model: someone/small-chat\n---\n# Small\n"


def new_tokenizer(cuts: Any = DIGITS, **changes: Any) -> PreTrainedTokenizerFast:
    """A tokenizer of SmolLM2's kind, with one token that a decoder must not skip."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer, bpe.decoder = cuts, decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    bpe.train_from_iterator([load_prompt("manager").text, "In 1999 Ann's 23 cats  met.\n\n"], trainer)
    if changes.pop("thoughts", False):
        bpe.add_tokens([AddedToken("<think>", normalized=False)])
    chosen = {
        "bos_token": TURN_START,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "unk_token": END_OF_TEXT,
        "chat_template": chatml("Be kind."),
    }
    return PreTrainedTokenizerFast(tokenizer_object=bpe, clean_up_tokenization_spaces=False, **{**chosen, **changes})


def new_folder(folder: Path, tokenizer: PreTrainedTokenizerFast, kind: str = "llama", **changes: Any) -> Path:
    """A random model, with a vocabulary that is larger than its tokenizer's."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "head_dim": 32, "initializer_range": 0.3}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}
    tokens = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "vocab_size": len(tokenizer) + 3}
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e5}, "tie_word_embeddings": True}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**sizes, **heads, **tokens, **rope, **changes}))
    with torch.no_grad():
        # Norms of one would hide a norm that is left out.
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight.uniform_(0.7, 1.3)
    model.save_pretrained(folder, max_shard_size="100KB")
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(CARD, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return new_folder(tmp_path_factory.mktemp("tiny"), new_tokenizer())


@pytest.fixture(scope="module")
def written(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("written") / "tiny-q8_0.gguf"
    write_gguf(tiny, file)
    return file


def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return model.eval()(ids).logits.log_softmax(-1)


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """What blocks of 8 bits leave of a matrix, where its rows can be cut into blocks."""
    kinds = gguf.GGMLQuantizationType
    kind = kinds.F32 if weight.ndim == 1 else kinds.Q8_0 if weight.shape[-1] % 32 == 0 else kinds.F16
    values = gguf.quants.quantize(weight.detach().numpy(), kind)
    return torch.from_numpy(gguf.quants.dequantize(values, kind))


@pytest.mark.parametrize(
    ("kind", "cuts", "changes"),
    [
        ("llama", DIGITS, {}),
        ("llama", BYTES, {"tie_word_embeddings": False, "num_key_value_heads": 4, "head_dim": 16}),
        ("llama", DIGITS, {"hidden_size": 72, "head_dim": 18}),  # rows that 8-bit blocks do not divide
        ("qwen3", QWEN, {"head_dim": 128}),  # transformers takes every Qwen3 file for one with heads of 128
    ],
)
def test_a_model_that_is_read_back_has_the_same_logits(
    tmp_path: Path, kind: str, cuts: Any, changes: dict[str, Any]
) -> None:
    folder = new_folder(tmp_path / "model", new_tokenizer(cuts), kind, **changes)
    assert len(list(folder.glob("*.safetensors"))) > 1
    write_gguf(folder, tmp_path / "model.gguf")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    back = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    ids = torch.randint(len(new_tokenizer(cuts)), (4, 40), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(rounded(weight))
    assert torch.allclose(logits(back, ids), logits(model, ids), atol=1e-3)
    kinds = {tensor.tensor_type.name for tensor in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert kinds == ({"F32", "Q8_0"} if "hidden_size" not in changes else {"F32", "F16", "Q8_0"})


TEXTS = st.text() | st.lists(
    st.sampled_from(["Ann's", " 2024", "m12", " ", "  ", "\n", "\r\n", "家", "é", "🙂", "½", "'ll", TURN_END, "'RE"]),
    max_size=12,
).map("".join)


@cache
def both(file: Path, folder: Path) -> tuple[PreTrainedTokenizerFast, PreTrainedTokenizerFast]:
    return read_tokenizer(file), AutoTokenizer.from_pretrained(folder)


@given(text=TEXTS)
@example(text="Ann's flat  has 120 m², m12.<|im_end|>\n")
@settings(deadline=None, max_examples=200)
def test_the_tokenizer_is_read_back(written: Path, tiny: Path, text: str) -> None:
    back, own = both(written, tiny)
    assert back(text)["input_ids"] == own(text)["input_ids"]


def test_the_file_says_what_llama_cpp_asks(written: Path, tiny: Path, tmp_path: Path) -> None:
    fields = {key: field.contents() for key, field in gguf.GGUFReader(written).fields.items()}
    tokenizer = AutoTokenizer.from_pretrained(tiny)
    assert fields["tokenizer.chat_template"] == tokenizer.chat_template == read_tokenizer(written).chat_template
    assert fields["tokenizer.ggml.pre"] == "smollm" and fields["tokenizer.ggml.add_bos_token"] is False
    ends = ("bos", "eos", "eot", "unknown", "padding")
    assert [fields[f"tokenizer.ggml.{key}_token_id"] for key in ends] == [1, 2, 2, 0, 0]
    kinds = fields["tokenizer.ggml.token_type"]
    assert kinds[:3] == [3, 3, 3] and set(kinds[3:-3]) == {1} and kinds[-3:] == [5, 5, 5]
    assert fields["general.license"] == "apache-2.0" and fields["general.base_model.0.name"] == "small-chat"
    assert fields["general.base_model.0.repo_url"].endswith("/someone/small-chat")
    assert fields["llama.rope.freq_base"] == 1e5 and fields["general.file_type"] == 7

    folder = new_folder(tmp_path / "thinks", new_tokenizer(thoughts=True, bos_token=None, unk_token=None))
    (folder / "README.md").write_text("---\nlicense: unknown\n---\n")
    write_gguf(folder, tmp_path / "thinks.gguf")
    fields = {key: field.contents() for key, field in gguf.GGUFReader(tmp_path / "thinks.gguf").fields.items()}
    place = fields["tokenizer.ggml.tokens"].index("<think>")
    assert fields["tokenizer.ggml.token_type"][place] == 4, "a decoder must not skip it"
    assert not {"general.license", "general.base_model.count", "tokenizer.ggml.bos_token_id"} & fields.keys()


def damage_config(**changes: object) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def cut_weights(folder: Path) -> None:
    path = sorted(folder.glob("*.safetensors"))[0]
    path.write_bytes(path.read_bytes()[:-5000])


def forget_template(folder: Path) -> None:
    (folder / "chat_template.jinja").unlink()


def break_values(folder: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.norm.weight[3] = float("nan")
    model.save_pretrained(folder, max_shard_size="100KB")


def of_another(cuts: Any, **changes: Any) -> Callable[[Path], None]:
    return lambda folder: (new_tokenizer(cuts, **changes).save_pretrained(folder), None)[1]


def larger_tokenizer(folder: Path) -> None:
    tokenizer = new_tokenizer()
    tokenizer.add_tokens([f"<extra{number}>" for number in range(9)])
    tokenizer.save_pretrained(folder)


def lonely_words(folder: Path) -> None:
    tokenizer = new_tokenizer()
    tokenizer.add_tokens([AddedToken("user", single_word=True)])
    tokenizer.save_pretrained(folder)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: shutil.rmtree(folder), r"no checkpoint there"),
        (damage_config(model_type="gpt2"), r"expected a dense qwen3 or llama checkpoint, not one of type 'gpt2'"),
        (cut_weights, r"cannot be loaded as a checkpoint"),
        (break_values, r"output_norm.weight has values that are not finite"),
        (forget_template, r"needs a chat template"),
        (larger_tokenizer, r"the tokenizer has 509 tokens and the weights 503; it is of another model"),
        (of_another(pre_tokenizers.Whitespace()), r"none that llama.cpp has by name; expected .* gpt-2, smollm, qwen2"),
        (lonely_words, r"the token 'user' depends on what surrounds it"),
    ],
)
def test_what_cannot_be_written_is_refused(tiny: Path, tmp_path: Path, damage: Callable[[Path], None], said: str) -> None:
    folder = Path(shutil.copytree(tiny, tmp_path / "model"))
    damage(folder)
    with pytest.raises(DeltaMemError, match=f"^{folder}: .*{said}") as caught:
        write_gguf(folder, tmp_path / "out.gguf")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*.gguf")) and not list(tmp_path.glob(".*"))


def test_a_full_disk_leaves_the_file_before(tiny: Path, written: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.gguf"
    file.write_text("before")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (written.stat().st_size // 2, hard))
    try:
        with pytest.raises(DeltaMemError, match=r"out.gguf: could not be written: .*"):
            write_gguf(tiny, file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == ["out.gguf"] and file.read_text() == "before"


def test_the_command(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "tiny.gguf"
    assert main([str(tiny), "--out", str(file)]) == 0
    assert capsys.readouterr().out == f"{file}: 0 MB\n"
    command = [sys.executable, "-m", "deltamem.training.gguf_export", str(tiny), "--out", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert (done.returncode, done.stderr) == (2, f"error: {file}: is there already; choose another --out\n")


@pytest.mark.slow
@needs_smol
def test_smollm2_is_the_same_in_8_bits(tmp_path: Path) -> None:
    folder = smol_folder()
    write_gguf(folder, tmp_path / "smol.gguf")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert read_tokenizer(tmp_path / "smol.gguf").chat_template == tokenizer.chat_template
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    back = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="smol.gguf", dtype=torch.float32)
    for question in ("What is the capital of France?", load_prompt("manager_direct").text):
        messages = [{"role": "user", "content": question}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_tensors="pt", return_dict=False)
        expected, found = logits(model, ids), logits(back, ids)
        assert float((expected.exp() * (expected - found)).sum(-1).mean()) < 0.01
        assert float((expected.argmax(-1) == found.argmax(-1)).float().mean()) > 0.9
