"""What this machine has for training (GPUs, processors, memory, packages), and the memory that a run's processes take."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import psutil
from pydantic import BaseModel, ValidationError

_SECONDS = 20.0


class Gpu(NamedTuple):
    """A GPU of this machine."""

    name: str
    memory: int  # bytes
    driver: str
    used: int = 0  # bytes, by all processes


def gpus() -> list[Gpu]:
    """The GPUs that a job may use, from nvidia-smi: torch might initialise CUDA in this process."""
    command = [
        "nvidia-smi",
        "--query-gpu=index,name,memory.total,driver_version,memory.used",
        "--format=csv,noheader,nounits",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    found = {
        row[0]: Gpu(row[1], int(row[2]) << 20, row[3], int(row[4]) << 20 if row[4].isdigit() else 0)
        for row in rows
        if len(row) == 5 and row[2].isdigit()
    }
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not all(name in found for name in visible.split(",")):
        return list(found.values()) if visible != "" else []
    return [found[name] for name in visible.split(",")]


def cpus() -> int:
    """As many processors as a Ray instance of this job would count: it knows the quotas of containers."""
    from ray._private.utils import get_num_cpus

    return int(get_num_cpus())


def shared_memory() -> int | None:
    """Size of ``/dev/shm`` in bytes; None where there is none."""
    folder = Path("/dev/shm")
    return shutil.disk_usage(folder).total if folder.is_dir() else None


def memory() -> int:
    """Bytes of memory that this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def installed(package: str) -> bool:
    """Whether a package is there; it may still fail to be imported."""
    return importlib.util.find_spec(package) is not None


class Imports(BaseModel):
    """What a process found that imported packages as the processes of a run do."""

    errors: dict[str, str]  # the packages that cannot be imported, and why
    cuda: str | None  # version of CUDA that torch was built for; None is a build for processors
    usable: bool  # whether torch can use a GPU
    architectures: frozenset[str] | None  # that vLLM can serve; None if vLLM was not asked


_IMPORT = """
import importlib, json, sys
errors, architectures = {}, None
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        errors[name] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
if "vllm" in sys.argv and "vllm" not in errors:
    try:
        from vllm import ModelRegistry
        architectures = list(ModelRegistry.get_supported_archs())
    except BaseException as error:
        errors["vllm"] = f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
cuda, usable = None, False
if "torch" not in errors:
    import torch
    cuda, usable = torch.version.cuda, torch.cuda.is_available()
print("\\n" + json.dumps({"errors": errors, "cuda": cuda, "usable": usable, "architectures": architectures}))
"""


def try_imports(packages: Sequence[str], seconds: float = 300.0) -> Imports:
    """Import packages in a process of its own, because vLLM may touch a GPU."""
    command = [sys.executable, "-c", _IMPORT, *packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, check=False)
        return Imports.model_validate_json((done.stdout.strip().splitlines() or [""])[-1])
    except subprocess.TimeoutExpired:
        why = f"not done after {seconds:g} s"
    except ValidationError:
        # A package may end the whole process.
        why = f"the process ended with {done.returncode}: {(done.stderr.strip().splitlines() or ['no word'])[-1]}"
    return Imports(errors={", ".join(packages): why}, cuda=None, usable=False, architectures=None)


_GB = 1024**3


def run_processes(start: psutil.Process) -> list[psutil.Process]:
    """The processes of the run that `start`, for example a worker, belongs to: a common ancestor and its descendants.

    Ray's workers descend from its ``raylet``. Where the run has started ray itself, the raylet descends from the driver, and
    so do ray's other processes; a raylet that ``ray start`` made has no driver above it, and only its own descendants are
    known to belong to the run. Without a raylet it is `start` itself with its descendants.
    """
    root = start
    for ancestor in start.parents():
        if ancestor.name() == "raylet":
            driver = ancestor.parent()
            root = driver if driver is not None and driver.name().startswith("python") else ancestor
            break
    return [root, *root.children(recursive=True)]


def memory_figures(processes: list[psutil.Process]) -> dict[str, float]:
    """Memory of processes in GiB, without those that have ended.

    ``rss_gb`` counts memory that processes share once for each of them; ``pss_gb`` shares it out among them, where the
    system reports it; ``processes`` is their number.
    """
    resident: list[int] = []
    shares: list[int] = []
    for process in processes:
        try:
            try:
                full = process.memory_full_info()
                rss, pss = full.rss, [full.pss]
            except (psutil.AccessDenied, AttributeError):  # somebody else's, or not of Linux
                rss, pss = process.memory_info().rss, []
        except psutil.NoSuchProcess:
            continue
        resident.append(rss)
        shares += pss
    figures = {"rss_gb": sum(resident) / _GB, "processes": float(len(resident))}
    return figures | ({"pss_gb": sum(shares) / _GB} if len(shares) == len(resident) else {})
