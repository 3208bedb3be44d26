"""How the budget of context tokens is counted: estimated, or by the tokenizer of the model that answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from deltamem.errors import DeltaMemError
from deltamem.runs import file_sha256
from deltamem.window import BYTES_PER_TOKEN

_FILE = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class TokenCount:
    """Counts the tokens of texts."""

    name: str  # Says how; for a tokenizer with its sha256
    size: Callable[[str], int]  # In units of which one token has `per_token`
    per_token: int = 1

    def tokens(self, text: str) -> int:
        """Tokens of a text, rounded up."""
        return -(-self.size(text) // self.per_token)


ESTIMATED = TokenCount("bytes / 3", lambda text: len(text.encode("utf-8", "surrogatepass")), BYTES_PER_TOKEN)
"""As `deltamem.window.estimate_tokens`. English has about four bytes a token: a budget is filled to about three quarters."""


def counted_by(tokenizer: str | None, model: str | None) -> TokenCount:
    """What counts the tokens of a run: see ``answer.tokenizer``; nothing is fetched for ``auto``, which is that of a model.

    Raises:
        DeltaMemError: If there is no such tokenizer.
    """
    if tokenizer is None:
        return ESTIMATED
    if tokenizer != "auto":
        return _named(tokenizer)
    file = _file(model) if model is not None else None
    return ESTIMATED if file is None else _of_file(file)


def _file(name: str) -> Path | None:
    """The tokenizer of a folder or of a model of the hub that was fetched before; a file is one itself."""
    place = Path(name)
    if place.is_file():
        return place
    if (place / _FILE).is_file():
        return place / _FILE
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        found = try_to_load_from_cache(name, _FILE)
    except HFValidationError:  # an endpoint calls its model otherwise
        return None
    return Path(found) if isinstance(found, str) else None


@cache
def _of_file(path: Path) -> TokenCount:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # whatever its parser raises
        raise DeltaMemError(f"{path} is no tokenizer: {error}") from error
    # Embedders' files say to cut texts, and to fill them up
    tokenizer.no_truncation()
    tokenizer.no_padding()

    def size(text: str) -> int:
        return len(tokenizer.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False).ids)

    return TokenCount(f"{path.parent.name}/{path.name} {file_sha256(path)[:12]}", size)


@cache
def _named(name: str) -> TokenCount:
    if (file := _file(name)) is not None:
        return _of_file(file)
    try:
        import tiktoken

        find = tiktoken.get_encoding if name in tiktoken.list_encoding_names() else tiktoken.encoding_for_model
        encoding = find(name)
    except Exception as error:  # not installed, not known, not to be fetched
        asked = "a file, a folder with a tokenizer.json, a model of the hub that was fetched before, or a model of tiktoken"
        raise DeltaMemError(f"answer.tokenizer={name} is not {asked} ({type(error).__name__}: {error})") from error
    return TokenCount(f"tiktoken {encoding.name}", lambda text: len(encoding.encode(text, disallowed_special=())))
