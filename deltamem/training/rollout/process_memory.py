"""Memory of all processes of a run on this machine, read from within one of ray's workers."""

from __future__ import annotations

import psutil

_GB = 1024**3


def run_processes(start: psutil.Process) -> list[psutil.Process]:
    """The processes of the run that a process belongs to.

    Ray's workers descend from its ``raylet``. Where the run has started ray itself, the raylet descends from the driver, and
    so do ray's other processes; a raylet that ``ray start`` made has no driver above it, and its descendants are what can
    be told to belong to the run.

    Args:
        start: A process of the run, for example a worker.

    Returns:
        The common ancestor and all that descend from it; `start` and its own descendants if there is no raylet above it.
    """
    root = start
    for ancestor in start.parents():
        if ancestor.name() == "raylet":
            driver = ancestor.parent()
            root = driver if driver is not None and driver.name().startswith("python") else ancestor
            break
    return [root, *root.children(recursive=True)]


def memory_figures(processes: list[psutil.Process]) -> dict[str, float]:
    """Their memory.

    Returns:
        ``rss_gb``, which counts memory that processes share once for each of them; ``pss_gb``, which shares it out among
        them, where the system tells it; ``processes``, their number. Processes that have ended are left out.
    """
    used = [memory for process in processes if (memory := _memory(process)) is not None]
    figures = {"rss_gb": sum(rss for rss, _ in used) / _GB, "processes": float(len(used))}
    shares = [pss for _, pss in used if pss is not None]
    return figures | ({"pss_gb": sum(shares) / _GB} if len(shares) == len(used) else {})


def _memory(process: psutil.Process) -> tuple[int, int | None] | None:
    try:
        rss: int = process.memory_info().rss
        try:
            return rss, process.memory_full_info().pss
        except (psutil.AccessDenied, AttributeError):
            return rss, None
    except psutil.NoSuchProcess:
        return None
