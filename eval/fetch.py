"""Downloading benchmark data, when the user asks for it and accepts its licence."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import httpx
from rich.console import Console
from rich.markup import escape

from deltamem.errors import DeltaMemError
from deltamem.provenance import file_sha256
from eval.data import FETCHABLE, Dataset, HubFile

TIMEOUT = 60.0
"""Seconds without any data after which a server counts as silent."""


def fetch(name: str, *, folder: Path, accept_licence: bool, console: Console) -> Path:
    """Download the files of a benchmark that are not in a folder yet.

    Source and licence are shown first. A file that is there is never overwritten. A new file takes its name when it is whole
    and, where the sum of its bytes is known, right; otherwise nothing remains of it.

    Args:
        name: One of `eval.data.FETCHABLE`.
        folder: A data folder; see `eval.data.data_folders`.
        accept_licence: Whether the user accepts the licence of the data.
        console: Where the user is told what is done.

    Returns:
        The file; if there are several, the folder that holds them.

    Raises:
        DeltaMemError: If there is no such benchmark, the licence is not accepted, a file cannot be downloaded, or a file
            (new or already there) is not the one that published numbers are made with.
        OSError: If the folder cannot be written.
    """
    if name not in FETCHABLE:
        raise DeltaMemError(f"there is no data named {name!r} to fetch; there are: {', '.join(FETCHABLE)}")
    return fetch_all(name, FETCHABLE[name], folder=folder, accept_licence=accept_licence, console=console)


def fetch_all(name: str, datasets: tuple[Dataset, ...], *, folder: Path, accept_licence: bool, console: Console) -> Path:
    """Like `fetch`, for given files."""
    for dataset in datasets:
        console.print(f"{escape(dataset.name)}: from {escape(str(dataset.origin))}", soft_wrap=True)
        console.print(f"  licence {escape(dataset.licence)}", soft_wrap=True)
    if not accept_licence:
        raise DeltaMemError(
            f"nothing was fetched: read the licence above and, if you accept it, repeat with --accept-licence "
            f"(python -m eval fetch {name} --accept-licence)"
        )
    paths = [_fetch_one(dataset, folder, console) for dataset in datasets]
    return paths[0] if len(paths) == 1 else paths[0].parent


def _fetch_one(dataset: Dataset, folder: Path, console: Console) -> Path:
    path = folder / dataset.path
    if path.exists():
        if dataset.sha256 is not None and (found := file_sha256(path)) != dataset.sha256:
            raise DeltaMemError(
                f"{path} is there and is not the published file: its sha256 is {found}, expected {dataset.sha256}; "
                f"move it away and fetch again"
            )
        console.print(f"  {escape(str(path))} is already there", soft_wrap=True)
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with _whole_file(path) as (partial, file):
        if isinstance(dataset.origin, HubFile):
            _from_hub(dataset.origin, file)
        elif dataset.origin is not None:
            _from_url(dataset.origin, file)
        else:
            raise DeltaMemError(f"{dataset.name} cannot be fetched by a command; it comes from {dataset.source}")
        file.flush()
        os.fsync(file.fileno())
        size, found = file.tell(), file_sha256(partial)
        if size == 0:
            raise DeltaMemError(f"{dataset.origin} gave an empty file; nothing was kept")
        if dataset.sha256 is not None and found != dataset.sha256:
            raise DeltaMemError(
                f"{dataset.origin} is not the published file: its sha256 is {found}, expected {dataset.sha256}; "
                f"nothing was kept"
            )
    known = "as published" if dataset.sha256 else "no sum is published to compare with"
    console.print(f"  {escape(str(path))}: {size:,} bytes, sha256 {found} ({known})", soft_wrap=True)
    return path


@contextmanager
def _whole_file(path: Path) -> Iterator[tuple[Path, BinaryIO]]:
    """A file for bytes that takes its name when the block ends well; otherwise nothing remains."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield partial, file
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _from_url(url: str, file: BinaryIO) -> None:
    try:
        with httpx.stream("GET", url, follow_redirects=True, timeout=TIMEOUT) as response:
            if response.status_code != httpx.codes.OK:
                raise DeltaMemError(f"{url} answered {response.status_code} {response.reason_phrase}")
            for chunk in response.iter_bytes():
                file.write(chunk)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise DeltaMemError(f"{url} could not be fetched: {_reason(error)}") from error


def _from_hub(origin: HubFile, file: BinaryIO) -> None:
    """Read a file through the hub's own client, which knows mirrors, tokens and its cache, and resumes what was cut."""
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise DeltaMemError("the hub needs huggingface_hub; install it with: pip install 'deltamem[eval]'") from error
    try:
        cached = hf_hub_download(origin.repo, origin.file, repo_type="dataset", revision=origin.revision)
    except (OSError, ValueError, httpx.HTTPError) as error:
        raise DeltaMemError(f"{origin} could not be fetched: {_reason(error)}") from error
    with Path(cached).open("rb") as source:
        shutil.copyfileobj(source, file)


def _reason(error: BaseException) -> str:
    """In one line what first went wrong; the hub's client reports any failure as a file that its cache lacks."""
    while error.__cause__ is not None:
        error = error.__cause__
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__
