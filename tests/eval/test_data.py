"""Where benchmark data is looked for, and fetching it from a local web server and a stand-in for the Hugging Face hub."""

from __future__ import annotations

import hashlib
import io
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from halumem_cases import HALUMEM_USER
from personamem_cases import PERSONAMEM_EXCERPT
from rich.console import Console

from deltamem.errors import DeltaMemError
from deltamem.runs import file_sha256
from eval.data import (
    FETCHABLE,
    LOCOMO,
    LOCOMO_AUDIT,
    PERSONAMEM_CONTEXTS,
    PERSONAMEM_QUESTIONS,
    Dataset,
    HubFile,
    data_folders,
    fetch,
    find,
    missing,
    require,
)


def put(folder: Path) -> Path:
    path = folder / LOCOMO.path
    path.parent.mkdir(parents=True)
    path.write_text("[]")
    return path


def test_order_of_the_folders(tmp_path: Path) -> None:
    root, named = tmp_path / "checkout", tmp_path / "named"
    named.mkdir()
    folders = data_folders({"DELTAMEM_DATA": str(named)}, root)
    assert folders == [named, root / "data", tmp_path / "shared" / "data"]
    assert find(LOCOMO, folders) is None
    shared = put(tmp_path / "shared" / "data")
    assert find(LOCOMO, folders) == shared
    local = put(root / "data")
    assert find(LOCOMO, folders) == local
    own = put(named)
    assert find(LOCOMO, folders) == own
    assert require(LOCOMO, data_folders({}, root)) == local


def test_missing_data_is_named_with_its_licence_and_the_command_that_fetches_it(tmp_path: Path) -> None:
    for name, dataset in ((name, dataset) for name, datasets in FETCHABLE.items() for dataset in datasets):
        with pytest.raises(DeltaMemError, match=f"python -m eval fetch {name} --accept-licence") as error:
            require(dataset, [tmp_path])
        message = str(error.value)
        assert dataset.source in message and dataset.licence in message and f"data/{dataset.path}" in message
        assert "\n" not in message
    assert "python -m eval fetch" not in missing(HALUMEM_USER) and "IAAR-Shanghai/HaluMem" in missing(HALUMEM_USER)


def test_variable_that_names_no_folder_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DeltaMemError, match=r"DELTAMEM_DATA.*not a folder"):
        data_folders({"DELTAMEM_DATA": str(tmp_path / "absent")}, tmp_path)


def test_files_have_places_of_their_own_and_origins_that_stay() -> None:
    datasets = [dataset for group in FETCHABLE.values() for dataset in group] + [HALUMEM_USER, PERSONAMEM_EXCERPT]
    assert len({dataset.path for dataset in datasets}) == len(datasets)
    for dataset in datasets:
        assert not Path(dataset.path).is_absolute()
        assert dataset.sha256 is None or re.fullmatch("[0-9a-f]{64}", dataset.sha256)
        if isinstance(dataset.origin, str):  # a commit, not a branch, wherever a sum is checked
            assert re.search("/[0-9a-f]{40}/", dataset.origin)
            assert dataset.sha256


@pytest.mark.parametrize("dataset", [LOCOMO, LOCOMO_AUDIT, HALUMEM_USER, PERSONAMEM_CONTEXTS, PERSONAMEM_EXCERPT])
def test_the_files_here_are_the_published_ones(dataset: Dataset) -> None:
    if (path := find(dataset)) is None:
        pytest.skip(missing(dataset))
    assert file_sha256(path) == dataset.sha256


CONTENT = b'[{"sample_id": "conv-1"}]\n' * 5000
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Site:
    """A web server that notes what it was asked for."""

    url: str = ""
    pages: dict[str, bytes] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)  # to another path
    cut: set[str] = field(default_factory=set)  # the connection closes half-way
    asked: list[str] = field(default_factory=list)


@pytest.fixture
def site() -> Iterator[Site]:
    served = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(send=False)

        def do_GET(self) -> None:
            self._answer(send=True)

        def _answer(self, send: bool) -> None:
            served.asked.append(f"{self.command} {self.path}")
            if self.path in served.moved:
                self.send_response(302)
                self.send_header("Location", served.moved[self.path])
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            body = served.pages.get(self.path)
            self.send_response(404 if body is None else 200)
            if body is None:
                self.send_header("X-Error-Code", "EntryNotFound")  # as the hub says it
                body = b""
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", f'"{hashlib.sha256(body).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if send:
                self.wfile.write(body[: len(body) // 2] if self.path in served.cut else body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield served
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def hub(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "ENDPOINT", site.url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", site.url + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return site


def console() -> Console:
    return Console(file=io.StringIO(), width=400)


def printed(on: Console) -> str:
    assert isinstance(on.file, io.StringIO)
    return on.file.getvalue()


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def from_site(site: Site, page: str = "/file.json", expected: str | None = sha256(CONTENT)) -> Dataset:
    return replace(LOCOMO, origin=site.url + page, sha256=expected)


def get(*datasets: Dataset, folder: Path, on: Console | None = None) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(FETCHABLE, "locomo", datasets)
        return fetch("locomo", folder=folder, accept_licence=True, console=on or console())


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_every_licence_is_shown_before_anything_else(tmp_path: Path) -> None:
    for name, datasets in FETCHABLE.items():
        on = console()
        with pytest.raises(DeltaMemError, match=f"python -m eval fetch {name} --accept-licence"):
            fetch(name, folder=tmp_path, accept_licence=False, console=on)
        assert all(dataset.licence in printed(on) and str(dataset.origin) in printed(on) for dataset in datasets)
    assert files(tmp_path) == []
    with pytest.raises(DeltaMemError, match=r"no data named 'locomo10' to fetch; there are: locomo, locomo_audit, halumem_"):
        fetch("locomo10", folder=tmp_path, accept_licence=True, console=console())


def test_a_fetched_file_is_whole_is_found_and_is_not_fetched_again(site: Site, tmp_path: Path) -> None:
    site.pages["/file.json"] = CONTENT
    site.moved["/old.json"] = "/file.json"
    on = console()
    path = get(from_site(site, "/old.json"), folder=tmp_path, on=on)
    assert path == tmp_path / LOCOMO.path == require(LOCOMO, [tmp_path])
    assert path.read_bytes() == CONTENT and files(tmp_path) == [path]
    assert f"{len(CONTENT):,} bytes" in printed(on) and "as published" in printed(on)
    asked = list(site.asked)
    get(from_site(site), folder=tmp_path, on=on)
    assert site.asked == asked and "already there" in printed(on)
    site.pages["/file.json"] = b"newer"
    assert get(from_site(site, expected=None), folder=tmp_path).read_bytes() == CONTENT
    get(from_site(site, expected=None), folder=tmp_path / "other", on=on)
    assert sha256(b"newer") in printed(on) and "no sum is published" in printed(on)


def test_another_file_of_that_name_is_named_and_left(site: Site, tmp_path: Path) -> None:
    path = tmp_path / LOCOMO.path
    path.parent.mkdir()
    path.write_text("mine")
    with pytest.raises(DeltaMemError, match=r"locomo10\.json is there and is not the published file: its sha256 is"):
        get(from_site(site), folder=tmp_path)
    assert path.read_text() == "mine" and site.asked == []


def test_what_is_wrong_or_cut_is_not_kept(site: Site, tmp_path: Path) -> None:
    site.pages |= {"/file.json": CONTENT + b" ", "/empty.json": b"", "/cut.json": CONTENT}
    site.cut.add("/cut.json")
    wrong = f"/file.json is not the published file: its sha256 is {sha256(CONTENT + b' ')}, expected {sha256(CONTENT)}"
    for dataset, said in (
        (from_site(site), wrong),
        (from_site(site, "/empty.json", None), "gave an empty file"),
        (from_site(site, "/cut.json", None), r"/cut.json could not be fetched: .*without sending complete"),
        (from_site(site, "/absent.json"), r"^http://\S+/absent.json answered 404 Not Found$"),
        (replace(LOCOMO, origin="http://127.0.0.1:1/file.json"), "could not be fetched: "),
        (replace(LOCOMO, origin="nonsense"), "could not be fetched: "),
        (replace(LOCOMO, origin=None), "cannot be fetched by a command; it comes from the GitHub repository"),
    ):
        with pytest.raises(DeltaMemError, match=said):
            get(dataset, folder=tmp_path)
        assert files(tmp_path) == []
    site.cut.clear()
    assert get(from_site(site, "/cut.json"), folder=tmp_path).read_bytes() == CONTENT


def test_files_of_the_hub(hub: Site, tmp_path: Path) -> None:
    base = "/datasets/ana/bench/resolve/main"
    hub.pages = {f"{base}/questions.csv": b"a,b\n1,2\n", f"{base}/sub/contexts.jsonl": CONTENT}
    contexts = HubFile("ana/bench", "sub/contexts.jsonl")
    datasets = (
        replace(PERSONAMEM_QUESTIONS, origin=HubFile("ana/bench", "questions.csv")),
        replace(PERSONAMEM_CONTEXTS, origin=contexts, sha256=sha256(CONTENT)),
    )
    folder, on = tmp_path / "data", console()
    assert get(*datasets, folder=folder, on=on) == folder / "personamem"
    assert (folder / PERSONAMEM_QUESTIONS.path).read_bytes() == b"a,b\n1,2\n"
    assert (folder / PERSONAMEM_CONTEXTS.path).read_bytes() == CONTENT
    assert len(files(folder)) == 2
    assert "the Hugging Face dataset ana/bench, file questions.csv, revision main" in printed(on)


def test_what_the_hub_does_not_have_or_has_otherwise_is_named(hub: Site, tmp_path: Path, monkeypatch) -> None:
    hub.pages["/datasets/ana/bench/resolve/main/contexts.jsonl"] = CONTENT
    absent = replace(PERSONAMEM_QUESTIONS, origin=HubFile("ana/bench", "absent.csv"))
    with pytest.raises(DeltaMemError, match=r"ana/bench, file absent\.csv, revision main could not be fetched: .*404"):
        get(absent, folder=tmp_path / "data")
    with pytest.raises(DeltaMemError, match="is not the published file"):
        get(replace(PERSONAMEM_CONTEXTS, origin=HubFile("ana/bench", "contexts.jsonl")), folder=tmp_path / "data")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(DeltaMemError, match=r"absent\.csv, revision main could not be fetched: .*offline mode"):
        get(absent, folder=tmp_path / "data")
    assert files(tmp_path / "data") == []
