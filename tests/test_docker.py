"""docker/: linted, and agreeing with the command; images are not built here."""

import inspect
import subprocess
import sys
from pathlib import Path

import yaml

from deltamem.cli.serve import serve

ROOT = Path(__file__).resolve().parents[1]


def test_the_dockerfile_is_clean() -> None:
    program = Path(sys.executable).parent / "hadolint"
    done = subprocess.run([program, ROOT / "docker" / "Dockerfile"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "")


def test_all_that_is_copied_is_there() -> None:
    text = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8")
    copied = [line.split()[1:-1] for line in text.splitlines() if line.startswith("COPY ") and "--from" not in line]
    assert copied and all((ROOT / name).exists() for names in copied for name in names)


def test_compose_names_the_port_and_the_variables_of_the_command() -> None:
    compose = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8"))
    server = compose["services"]["deltamem"]
    port = inspect.signature(serve).parameters["port"].default
    assert (
        server["ports"] == [f"127.0.0.1:{port}:{port}"] and (ROOT / "docker" / server["build"]["context"]).resolve() == ROOT
    )
    assert server["environment"].keys() == {"DELTAMEM_BASE_URL", "DELTAMEM_MODEL"}
    used = {volume.partition(":")[0] for service in compose["services"].values() for volume in service["volumes"]}
    assert used == compose["volumes"].keys()
