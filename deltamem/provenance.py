"""What a result was made with: commit, versions, configuration and file hashes."""

from __future__ import annotations

import hashlib
import json
import platform
import subprocess
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import deltamem

PACKAGES = (
    "torch",
    "transformers",
    "verl",
    "vllm",
    "ray",
    "tensordict",
    "sentence-transformers",
    "numpy",
    "scipy",
    "hydra-core",
)
"""Packages whose version can change a result; those that are not installed are left out."""


def git_commit(folder: Path = Path(__file__).parent) -> str | None:
    """The commit of the checkout that a folder lies in.

    Returns:
        The full hash, with ``-dirty`` appended if tracked files were changed since; None outside a checkout, before the
        first commit or without git.
    """
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None


def versions(packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Versions of Python, the platform, deltamem and the packages that are installed."""
    found = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "deltamem": deltamem.__version__,
    }
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def config_hash(config: Mapping[str, Any]) -> str:
    """sha256 of a configuration; the order of its keys does not matter."""
    canonical = json.dumps(config, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode("utf-8")).hexdigest()


def file_sha256(path: Path) -> str:
    """sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
