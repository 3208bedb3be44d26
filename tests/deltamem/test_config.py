"""How Hydra commands end: exit code and what stands on stderr."""

import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
defaults: [_self_, override hydra/hydra_logging: none, override hydra/job_logging: none]
act: nothing
needed: ???
out: runs
hydra: {output_subdir: null, run: {dir: .}}
"""
COMMAND = """
import subprocess
import sys
from pathlib import Path
from pydantic import BaseModel, ConfigDict
from deltamem.config import run_hydra, validated
from deltamem.errors import DeltaMemError

class Options(BaseModel):
    model_config = ConfigDict(extra="forbid")
    act: str
    needed: int
    out: Path

def main(config):
    match config.act:
        case "code": return 1
        case "child": return subprocess.run([sys.executable, __file__, "other=1"]).returncode
        case "bad": raise DeltaMemError("the file is bad")
        case "caused":
            try:
                config.absent
            except Exception as error:
                raise DeltaMemError("the file is bad") from error
        case "os": Path("absent").read_text()
        case "defect": raise KeyError("ours")
        case "validate": print(validated(config, Options))
        case "interrupt": raise KeyboardInterrupt

run_hydra(main, "main", Path(__file__).parent)
"""


@pytest.fixture(scope="module")
def command(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("command")
    (folder / "main.yaml").write_text(CONFIG)
    (folder / "command.py").write_text(COMMAND)
    return folder


@pytest.fixture
def run(command: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., BaseException]:
    """How the command ends in this process."""

    def ends(*arguments: str, full: str = "0") -> BaseException:
        monkeypatch.setenv("HYDRA_FULL_ERROR", full)  # restored afterwards, as the command changes it
        monkeypatch.setattr(sys, "argv", ["command.py", *arguments])
        with pytest.raises(BaseException) as ended:
            runpy.run_path("command.py", run_name="__main__")
        return ended.value

    monkeypatch.chdir(command)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # of the child
    return ends


@pytest.mark.parametrize(
    ("arguments", "code", "stderr"),
    [
        (["act=nothing"], 0, ""),
        (["act=code"], 1, ""),
        (["act=bad"], 2, "error: the file is bad\n"),
        (["act=caused"], 2, "error: the file is bad\n"),
        (["act=os"], 2, "error: absent: No such file or directory\n"),
        (["act=interrupt"], 130, "interrupted\n"),
        (["act=validate", "needed=3"], 0, ""),
        (["act=validate"], 2, "error: config key 'needed' has no value; give one with needed=...\n"),
        (["act=validate", "needed=x"], 2, "error: config key 'needed': Input should be a valid integer"),
        (["act=validate", "needed=3", "out="], 2, "error: config key 'out' is empty; give the folder to write to\n"),
        (["act=validate", "needed=3", "+more=1"], 2, "error: unknown config key 'more'; there are: act, needed, out\n"),
        (["other=1"], 2, "error: unknown config key 'other'; --cfg job shows the keys that there are\n"),
        (["act=child"], 2, "error: unknown config key 'other'; --cfg job shows the keys that there are\n"),
        (["+group=absent"], 0, ""),
        (["--config-name", "absent"], 2, "error: Cannot find primary config 'absent'"),
    ],
)
def test_exit_code_and_one_sentence(
    run: Callable[..., BaseException], arguments: list[str], code: int, stderr: str, capfd: pytest.CaptureFixture[str]
) -> None:
    ended = run(*arguments)
    said = capfd.readouterr().err
    assert isinstance(ended, SystemExit) and ended.code == code, said
    assert said.startswith(stderr)
    assert said.count("\n") == (1 if stderr else 0)
    assert sorted(path.name for path in Path().iterdir()) == ["command.py", "main.yaml"]


def test_our_own_defects_keep_their_trace_and_nothing_is_shortened_on_request(run: Callable[..., BaseException]) -> None:
    assert repr(run("act=defect")) == "KeyError('ours')"
    assert repr(run("act=bad", full="1")) == "DeltaMemError('the file is bad')"


def test_a_configuration_of_ones_own_may_begin_with_a_byte_order_mark(
    run: Callable[..., BaseException], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "group").mkdir()
    for encoding, code, said in (("utf-8-sig", 1, ""), ("utf-16", 2, "not UTF-8 text"), ("latin-1", 2, "not UTF-8 text")):
        (tmp_path / "group" / "mine.yaml").write_bytes("act: code # \u00e9\r\n".encode(encoding))
        ended = run("+group@_global_=mine", "--config-dir", str(tmp_path))
        assert isinstance(ended, SystemExit) and ended.code == code
        assert said in (stderr := capfd.readouterr().err) and stderr.count("\n") == bool(said)
