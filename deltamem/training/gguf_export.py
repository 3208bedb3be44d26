"""A policy as one GGUF file with 8-bit weights, for llama.cpp and what is built on it.

python -m deltamem.training.gguf_export runs/smol/policy --out policy-q8_0.gguf

llama.cpp's own converter is in no package of its authors. Their package `gguf` has what that is made of, and the same model
gets the same tensors, byte for byte.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from deltamem.chat_template import turn_format
from deltamem.config import run_plain
from deltamem.errors import DeltaMemError
from deltamem.local_policy import load_checkpoint
from deltamem.runs import partial_file
from deltamem.training.model_card import front_matter

if TYPE_CHECKING:
    from gguf import GGMLQuantizationType, GGUFWriter

_BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PRE_TOKENIZERS: Mapping[str, list[dict[str, Any]]] = {
    "gpt-2": [_BYTE_LEVEL],
    "smollm": [{"type": "Digits", "individual_digits": True}, _BYTE_LEVEL],
    "qwen2": [
        {"type": "Split", "pattern": {"Regex": _QWEN_WORDS}, "behavior": "Isolated", "invert": False},
        {**_BYTE_LEVEL, "use_regex": False},
    ],
}
"""How a tokenizer cuts text before BPE, by the name that llama.cpp has for it, which knows no other ways than its own."""


def write_gguf(folder: Path, file: Path) -> None:
    """Write a Hugging Face folder as one GGUF file: matrices as Q8_0, vectors as float32.

    An older file of that name is replaced when the new one is whole. The weights take the memory that they take on disk.

    Args:
        folder: A model that `deltamem.local_policy` runs, with a byte-level BPE tokenizer; its card tells licence and base.
        file: The file.

    Raises:
        DeltaMemError: If the package `gguf` is missing, the folder holds no such model, or the file cannot be written.
    """
    if find_spec("gguf") is None:
        raise DeltaMemError("the package gguf is not installed; install it with: pip install gguf")
    from gguf import MODEL_ARCH_NAMES, GGUFWriter, get_tensor_name_map
    from gguf.quants import quantize

    tokenizer, model = load_checkpoint(folder, dtype="auto")
    config = model.config
    architecture = next(key for key, name in MODEL_ARCH_NAMES.items() if name == config.model_type)
    names = get_tensor_name_map(architecture, config.num_hidden_layers)
    # A head that is tied has no matrix of its own.
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    tensors = {names.get_name(key, (".weight",)): value for key, value in model.state_dict().items() if key not in tied}
    if broken := next((name for name, tensor in tensors.items() if not tensor.isfinite().all()), None):
        raise DeltaMemError(f"{folder}: {broken} has values that are not finite")
    try:
        with partial_file(file) as partial, closing(GGUFWriter(partial, config.model_type)) as writer:
            _add_general(writer, folder, file, sum(tensor.numel() for tensor in tensors.values()))
            _add_shape(writer, config)
            _add_tokenizer(writer, folder, tokenizer, model)
            for name, tensor in tensors.items():
                writer.add_tensor_info(name, tensor.shape, np.dtype(np.float32), _size(tensor), _type(tensor))
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_ti_data_to_file()
            for name, tensor in tensors.items():
                writer.write_tensor_data(quantize(_values(name, tensor, config), _type(tensor)))
            writer.flush()
    except OSError as error:
        raise DeltaMemError(f"{file}: could not be written: {error.strerror or error}") from error


def _add_general(writer: GGUFWriter, folder: Path, file: Path, parameters: int) -> None:
    from gguf import GGML_QUANT_VERSION, LlamaFileType, size_label

    writer.add_type("model")
    writer.add_name(file.stem)
    writer.add_size_label(size_label(parameters, parameters, 0, 0))
    card = front_matter(folder)
    if (licence := card.get("license", "unknown")) != "unknown":
        writer.add_license(str(licence))
    if isinstance(base := card.get("base_model"), str):
        owner, _, name = base.rpartition("/")
        writer.add_base_model_count(1)
        writer.add_base_model_name(0, name)
        if owner:
            writer.add_base_model_organization(0, owner)
            writer.add_base_model_repo_url(0, f"https://huggingface.co/{base}")
    writer.add_file_type(LlamaFileType.MOSTLY_Q8_0)
    writer.add_quantization_version(GGML_QUANT_VERSION)


def _add_shape(writer: GGUFWriter, config: Any) -> None:
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)


def _add_tokenizer(writer: GGUFWriter, folder: Path, tokenizer: Any, model: Any) -> None:
    from gguf import TokenType

    state = json.loads(tokenizer.backend_tokenizer.to_str())
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_pre_tokenizer(state, folder))
    tokens = [f"[PAD{number}]" for number in range(model.config.vocab_size)]
    kinds = [TokenType.UNUSED] * len(tokens)
    for token, number in tokenizer.get_vocab().items():
        tokens[number], kinds[number] = token, TokenType.NORMAL
    for added in state["added_tokens"]:
        kinds[added["id"]] = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in state["model"]["merges"]])
    turn = turn_format(tokenizer, template_options={}, eos_ids=model.generation_config.eos_token_id)
    for add, number in (
        (writer.add_bos_token_id, tokenizer.bos_token_id),
        (writer.add_eos_token_id, tokenizer.eos_token_id),
        (writer.add_eot_token_id, turn.closing),
        (writer.add_unk_token_id, tokenizer.unk_token_id),
        (writer.add_pad_token_id, tokenizer.pad_token_id),
    ):
        if number is not None:
            add(number)
    writer.add_add_bos_token(tokenizer("a")["input_ids"] != tokenizer("a", add_special_tokens=False)["input_ids"])
    writer.add_chat_template(tokenizer.get_chat_template())


def _pre_tokenizer(state: Mapping[str, Any], folder: Path) -> str:
    """llama.cpp's name for how a tokenizer, as JSON, cuts text before BPE.

    Raises:
        DeltaMemError: If it has none, or the tokenizer does something else that a file cannot say.
    """
    model, cuts = state["model"], state["pre_tokenizer"] or {}
    steps = [
        {key: value for key, value in step.items() if key != "trim_offsets"} for step in cuts.get("pretokenizers", [cuts])
    ]
    found = next((name for name, known in _PRE_TOKENIZERS.items() if steps == known), None)
    plain = model["type"] == "BPE" and not any(
        model.get(key) for key in ("byte_fallback", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges")
    )
    if found is None or not plain or (state["normalizer"] or {"type": "NFC"})["type"] != "NFC":
        raise DeltaMemError(
            f"{folder}: the tokenizer is none that llama.cpp has by name; expected byte-level BPE that cuts text as "
            f"{', '.join(_PRE_TOKENIZERS)} do"
        )
    if odd := next((t["content"] for t in state["added_tokens"] if t["lstrip"] or t["rstrip"] or t["single_word"]), None):
        raise DeltaMemError(f"{folder}: the token {odd!r} depends on what surrounds it, which a GGUF file cannot say")
    return found


def _type(tensor: Tensor) -> GGMLQuantizationType:
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    if tensor.ndim == 1:
        return GGMLQuantizationType.F32
    whole = tensor.shape[-1] % GGML_QUANT_SIZES[GGMLQuantizationType.Q8_0][0] == 0
    return GGMLQuantizationType.Q8_0 if whole else GGMLQuantizationType.F16


def _size(tensor: Tensor) -> int:
    from gguf import GGML_QUANT_SIZES

    values, size = GGML_QUANT_SIZES[_type(tensor)]
    return int(tensor.numel() // values * size)


def _values(name: str, tensor: Tensor, config: Any) -> npt.NDArray[np.float32]:
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(name.split(".")[-2])
    if config.model_type == "llama" and heads:
        # Of this architecture llama.cpp turns neighbouring dimensions, transformers those half a head apart.
        tensor = tensor.view(heads, 2, -1, tensor.shape[-1]).transpose(1, 2).reshape(tensor.shape)
    return tensor.float().contiguous().numpy()


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns its exit code.

    Raises:
        DeltaMemError: If there is no such model, or something is in the file's place.
    """
    parser = argparse.ArgumentParser(
        prog="python -m deltamem.training.gguf_export", description="write a policy as one file for llama.cpp"
    )
    parser.add_argument("folder", type=Path, help="folder of the policy")
    parser.add_argument("--out", type=Path, required=True, help="file to make")
    given = parser.parse_args(arguments)
    if given.out.exists():
        raise DeltaMemError(f"{given.out}: is there already; choose another --out")
    write_gguf(given.folder, given.out)
    print(f"{given.out}: {given.out.stat().st_size / 1e6:.0f} MB")
    return 0


if __name__ == "__main__":
    run_plain(lambda: main(sys.argv[1:]))
