"""The data of benchmarks: where they lie, how they are fetched and read, and which of their questions are asked."""

from __future__ import annotations

import os
import random
import shutil
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple, TypeVar

import httpx
from omegaconf import OmegaConf
from pydantic import BeforeValidator, Field, PositiveInt, ValidationError
from rich.console import Console
from rich.markup import escape

from deltamem.config import first_error
from deltamem.errors import DeltaMemError
from deltamem.runs import file_sha256, partial_file
from eval.config import BenchmarkConfig
from eval.protocols import shown
from eval.records import QuestionRecord

ROOT = Path(__file__).resolve().parents[1]
DATA_VARIABLE = "DELTAMEM_DATA"


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a dataset repository (``owner/name``) on the Hugging Face hub; `revision` is a branch or commit hash."""

    repo: str
    file: str
    revision: str = "main"

    def __str__(self) -> str:
        return f"the Hugging Face dataset {self.repo}, file {self.file}, revision {self.revision}"


@dataclass(frozen=True, slots=True)
class Dataset:
    """A benchmark file that the user fetches."""

    name: str
    path: str  # Where the file lies inside a data folder
    source: str  # Public project and file that it comes from
    licence: str
    origin: str | HubFile | None = None  # A URL or a file of the hub; None if no command fetches it
    sha256: str | None = None  # Of the file that published numbers are made with, in hex; None if it is not known


def _dataset(*, file: str, github: str | None = None, hub: str | None = None, revision: str = "main", **own: str) -> Dataset:
    if hub is not None:
        return Dataset(source=f"the Hugging Face dataset {hub}, file {file}", origin=HubFile(hub, file, revision), **own)
    origin = f"https://raw.githubusercontent.com/{github}/{revision}/{file}"
    return Dataset(source=f"the GitHub repository {github}, file {file}", origin=origin, **own)


_listed: Any = OmegaConf.to_container(OmegaConf.load(Path(__file__).with_name("datasets.yaml")))
FETCHABLE = {name: tuple(_dataset(**entry) for entry in entries) for name, entries in _listed.items()}
"""What ``python -m eval fetch NAME`` knows, by name."""

(LOCOMO,), (LOCOMO_AUDIT,) = FETCHABLE["locomo"], FETCHABLE["locomo_audit"]
(HALUMEM_MEDIUM,), (HALUMEM_LONG,) = FETCHABLE["halumem_medium"], FETCHABLE["halumem_long"]
HALUMEM_USER = Dataset(
    "HaluMem-Medium (one user)",
    "halumem/halumem_medium_user12_full.jsonl",
    HALUMEM_MEDIUM.source,
    HALUMEM_MEDIUM.licence,
    sha256="d0f50369d6f3faef9ba2597619c7ee3f970a61cf452d13f9c832c072a5f8899e",
)
PERSONAMEM_QUESTIONS, PERSONAMEM_CONTEXTS = FETCHABLE["personamem"]
LONGMEMEVAL = {variant: FETCHABLE[f"longmemeval_{variant}"][0] for variant in ("s", "m", "oracle")}
BEAM = {size: FETCHABLE[f"beam_{size}"] for size in ("100k", "500k", "1m", "10m")}
LONGMEMEVAL_RECORD = Dataset(
    "LongMemEval-S (one record)",
    "longmemeval/longmemeval_s_one_record.json",
    "the GitHub repository zjunlp/LightMem, file tutorial-notebooks/longmemeval_single.json",
    "MIT",
    sha256="9c5d1cd86db0d66671786bae984d94337cde306f1235a14bb12bd6a958b27d81",
)


def data_folders(environment: Mapping[str, str] = os.environ, root: Path = ROOT) -> list[Path]:
    """The folders that are looked through, first match first: ``$DELTAMEM_DATA``, ``data/``, ``../shared/data``.

    Raises:
        DeltaMemError: If ``$DELTAMEM_DATA`` is set to something that is not a folder.
    """
    folders = [root / "data", root.parent / "shared" / "data"]
    if named := environment.get(DATA_VARIABLE):
        if not Path(named).is_dir():
            raise DeltaMemError(f"${DATA_VARIABLE} is {named!r}, which is not a folder")
        folders.insert(0, Path(named))
    return folders


def find(dataset: Dataset, folders: list[Path] | None = None) -> Path | None:
    """The file of a dataset, or None if no folder (by default `data_folders`) holds it."""
    for folder in data_folders() if folders is None else folders:
        if (folder / dataset.path).is_file():
            return folder / dataset.path
    return None


def require(dataset: Dataset, folders: list[Path] | None = None) -> Path:
    """Like `find`, for commands that cannot do without.

    Raises:
        DeltaMemError: If no folder holds the file; says what to fetch, from where and under which licence.
    """
    if (path := find(dataset, folders)) is None:
        raise DeltaMemError(missing(dataset))
    return path


def missing(dataset: Dataset) -> str:
    """One sentence on how to get a dataset."""
    command = next((name for name, datasets in FETCHABLE.items() if dataset in datasets), None)
    fetch = "" if command is None else f"run `python -m eval fetch {command} --accept-licence`, or "
    return (
        f"{dataset.name} is not here: {fetch}fetch it from {dataset.source} (licence {dataset.licence}) and put it at "
        f"data/{dataset.path} of the checkout or ${DATA_VARIABLE}/{dataset.path}"
    )


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Name a file that the operating system does not let us read.

    Raises:
        DeltaMemError: Instead of `OSError`.
    """
    try:
        yield
    except OSError as error:
        raise DeltaMemError(f"{path}: {error.strerror or error}") from error


_LONGEST_SHOWN = 60


@contextmanager
def noted(problems: list[str], place: str) -> Iterator[None]:
    """Note what is wrong with one record, by where it is, and go on; what is left of the block is skipped."""
    try:
        yield
    except ValidationError as error:
        given = error.errors(include_url=False)[0]["input"]
        got = f", got {given!r}" if isinstance(given, str | int | float) and len(str(given)) <= _LONGEST_SHOWN else ""
        problems.append(f"{place}: {first_error(error)}{got}")
    except DeltaMemError as error:
        problems.append(f"{place}: {error}")


def nothing_usable(sentence: str, problems: Sequence[str]) -> DeltaMemError:
    """The error where nothing of a file can be used, with the first reason."""
    return DeltaMemError("; ".join([sentence, *problems[:1]]))


Item = TypeVar("Item")


def _ids(value: object) -> object:
    """Ids that look like numbers come as numbers."""
    return [str(one) for one in value] if isinstance(value, list) else value


Groups = Annotated[PositiveInt | Annotated[list[str], Field(min_length=1)] | None, BeforeValidator(_ids)]
"""Type of a configuration key that chooses conversations or users: how many, drawn with the seed, or which."""


def chosen_groups(ids: Sequence[str], wanted: int | Sequence[str] | None, key: str, seed: int) -> list[str]:
    """Those of all `ids` that the configuration key wants, in their own order: so many at random, or which; all if None.

    Raises:
        DeltaMemError: If an id does not exist, or there are not so many; lists those that exist.
    """
    if wanted is None:
        return list(ids)
    if isinstance(wanted, int):
        if wanted > len(ids):
            raise DeltaMemError(f"{key}={wanted}, but the data has only {len(ids)}: {', '.join(ids)}")
        chosen = set(_shuffled(ids, f"{key} {seed}")[:wanted])
    elif unknown := [name for name in wanted if name not in ids]:
        raise DeltaMemError(f"{key} names {unknown[0]!r}, which the data does not have; there are: {', '.join(ids)}")
    else:
        chosen = set(wanted)
    return [name for name in ids if name in chosen]


def stratified(questions: Sequence[QuestionRecord], limit: int | None, seed: int) -> list[QuestionRecord]:
    """Draw a sample of questions in which each category has its share, in the order of the questions.

    Shares are rounded by the largest remainder, at least one question each if the limit allows that. The questions of a
    category are taken in turn from the groups (conversations, users), which are in random order.
    """
    if limit is None or limit >= len(questions):
        return list(questions)
    members: dict[str, list[int]] = defaultdict(list)
    for position, question in enumerate(questions):
        members[question.category].append(position)
    shares = _shares({name: len(positions) for name, positions in members.items()}, limit)
    drawn: set[int] = set()
    for name, positions in members.items():
        by_group: dict[str, list[int]] = defaultdict(list)
        for position in _shuffled(positions, f"{name} {seed}"):
            by_group[questions[position].group].append(position)
        order = _shuffled(list(by_group), f"groups of {name} {seed}")
        rounds = chain.from_iterable(zip_longest(*(by_group[one] for one in order)))
        drawn.update([position for position in rounds if position is not None][: shares[name]])
    return [questions[position] for position in sorted(drawn)]


class Sample(NamedTuple):
    """The questions that are asked."""

    questions: list[QuestionRecord]
    groups: list[str]  # The conversations or users that were drawn from
    note: str | None  # How it was drawn, for the name of the data: the keys that chose it; None if all questions are asked


def draw(
    questions: Iterable[tuple[str, QuestionRecord]],
    groups: Sequence[str],
    config: BenchmarkConfig,
    total: int,
    key: str = "",
) -> Sample:
    """Choose what is asked: whole conversations or users, and of their questions a stratified sample.

    Both are drawn with the seed of the run, and a wider choice holds a narrower one, so that a run can be widened later.
    `questions` are those of all `groups` that may be asked, each with its group, `total` is how many the data has, and `key`
    is the configuration key that chooses groups.

    Raises:
        DeltaMemError: If the data has not the groups that are wanted.
    """
    chosen = chosen_groups(groups, getattr(config, key, None), key, config.seed)
    drawn = stratified([record for group, record in questions if group in chosen], config.limit, config.seed)
    how = [f"{name}={shown(value)}" for name in (key, "limit") if (value := getattr(config, name, None)) is not None]
    note = f"{len(drawn):,} of {total:,} questions ({', '.join(how)})" if len(drawn) < total and how else None
    return Sample(drawn, chosen, note)


def _shares(counts: Mapping[str, int], limit: int) -> dict[str, int]:
    """How many of each category; they add up to the limit, which is below the sum of the counts."""
    total = sum(counts.values())
    ideal = {name: limit * count / total for name, count in counts.items()}
    least = 1 if limit >= len(counts) else 0
    shares = {name: max(least, int(exact)) for name, exact in ideal.items()}
    while sum(shares.values()) < limit:
        shares[max(shares, key=lambda name: ideal[name] - shares[name])] += 1
    while sum(shares.values()) > limit:  # the small ones were given one each
        shares[max((name for name in shares if shares[name] > 1), key=lambda name: shares[name] - ideal[name])] -= 1
    return shares


def _shuffled(values: Sequence[Item], seed: str) -> list[Item]:
    return random.Random(seed).sample(values, len(values))


TIMEOUT = 60.0
"""Seconds without any data after which a server counts as silent."""


def fetch(name: str, *, folder: Path, accept_licence: bool, console: Console) -> Path:
    """Download the files of a benchmark that are not in a folder yet.

    Source and licence are shown first. A file that is there is never overwritten. A new file takes its name when it is whole
    and, where the sum of its bytes is known, right; otherwise nothing remains of it.

    Returns:
        The file; if there are several, the folder that holds them.

    Raises:
        DeltaMemError: If there is no such benchmark, the licence is not accepted, a file cannot be downloaded, or a file
            (new or already there) is not the one that published numbers are made with.
        OSError: If the folder cannot be written.
    """
    if name not in FETCHABLE:
        raise DeltaMemError(f"there is no data named {name!r} to fetch; there are: {', '.join(FETCHABLE)}")
    datasets = FETCHABLE[name]
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
    with partial_file(path) as partial, partial.open("wb") as file:
        if isinstance(dataset.origin, HubFile):
            _from_hub(dataset.origin, file)
        elif dataset.origin is not None:
            _from_url(dataset.origin, file)
        else:
            raise DeltaMemError(f"{dataset.name} cannot be fetched by a command; it comes from {dataset.source}")
        file.flush()
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
