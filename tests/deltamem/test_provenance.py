"""What results say about their making."""

import hashlib
import subprocess
from pathlib import Path

from deltamem.runs import config_hash, file_sha256, git_commit, versions


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_commit_is_named_and_changes_are_not_hidden(tmp_path: Path) -> None:
    assert git_commit(tmp_path) is None
    git(tmp_path, "init")
    assert git_commit(tmp_path) is None
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "-m", "one")
    git(tmp_path, "tag", "v1")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert git_commit(tmp_path) == commit
    (tmp_path / "a").write_text("2")
    assert git_commit(tmp_path) == f"{commit}-dirty"


def test_versions_leave_out_what_is_not_installed() -> None:
    found = versions(["numpy", "no-such-package-at-all"])
    assert set(found) == {"python", "platform", "deltamem", "numpy"}


def test_config_hash_depends_on_content_only() -> None:
    assert config_hash({"a": 1, "b": {"c": 2}}) == config_hash({"b": {"c": 2}, "a": 1})
    assert config_hash({"a": 1}) != config_hash({"a": 2})


def test_file_hash(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert file_sha256(tmp_path / "a") == hashlib.sha256(b"abc").hexdigest()
