"""`deltamem add --checkpoint` without an endpoint: the model of the folder runs in this process."""

import json
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from command_cases import MONDAY, lines_of, one_sentence, run, run_json, session
from episode_texts import add, outputs
from offline_people import labelled

from deltamem.episode import EPISODE_FILE, EpisodeConfig, save_episode_config

EPISODE = EpisodeConfig("manager_compact", "session_compact", memory_fields=("text", "time", "id"))
WINDOW = 1024


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with random weights."""
    from deltamem.training.config import TinyModelConfig
    from deltamem.training.tiny import build

    target = tmp_path_factory.mktemp("tiny") / "policy"
    sizes = TinyModelConfig(hidden_size=64, layers=2, head_dim=16, mlp_size=96, vocabulary=400, context=WINDOW)
    build(target, labelled(4, 3, seed=3), EPISODE, sizes, seed=0)
    save_episode_config(target, EPISODE)
    return target


@pytest.fixture
def asked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Lengths of the prompts and limits of the answers of a sampler that always adds the same memory."""
    from transformers import AutoTokenizer

    from deltamem.local_policy import BatchGenerator, Generated

    tokenizer = AutoTokenizer.from_pretrained(folder)
    said = tokenizer.encode(outputs(add("Ann's city is Boston.")), add_special_tokens=False)
    requests: list[tuple[int, int]] = []

    def generate(
        self: object, prompts: Sequence[Sequence[int]], limits: Sequence[int], temperatures: Sequence[float]
    ) -> list[object]:
        assert set(temperatures) == {0.0}
        requests.extend(zip(map(len, prompts), limits, strict=True))
        return [Generated([*said, tokenizer.eos_token_id], [], True) for _ in prompts]

    monkeypatch.setattr(BatchGenerator, "generate", generate)
    return requests


def test_the_model_of_the_folder_answers(bank: Path, folder: Path, asked: list[tuple[int, int]]) -> None:
    done = run("add", "-", "--json", "--checkpoint", str(folder), given=lines_of(MONDAY))
    assert (done.exit_code, done.stderr) == (0, "")
    monday, last = map(json.loads, done.stdout.splitlines())
    assert (monday["outcome"], monday["changes"][0]["after"]) == ("applied", "Ann's city is Boston.")
    [(prompt, limit)] = asked
    assert (limit, last["summary"]["usage"]["prompt_tokens"]) == (WINDOW // 4, prompt)
    assert str(folder) in run("export").stdout
    assert run_json("show")["memories"][0]["text"] == "Ann's city is Boston."


def test_without_a_limit_of_the_answer_the_prompt_has_room_all_the_same(
    bank: Path, folder: Path, asked: list[tuple[int, int]]
) -> None:
    done = run("add", "-", "--max-tokens", "none", "--checkpoint", str(folder), given=lines_of(MONDAY))
    assert done.exit_code == 0, done.output
    assert [limit for _, limit in asked] == [WINDOW // 2]


def test_random_weights_give_unreadable_answers(bank: Path, folder: Path) -> None:
    done = run("add", "-", "--json", "--window", "700", "--checkpoint", str(folder), given=lines_of(MONDAY))
    assert (done.exit_code, done.stderr) == (1, "")
    monday, last = map(json.loads, done.stdout.splitlines())
    assert (monday["outcome"], last["summary"]["usage"]["calls"]) == ("unreadable", 2)
    assert 0 < last["summary"]["usage"]["completion_tokens"] <= 2 * (700 // 4)


def test_a_session_longer_than_the_window_is_split(bank: Path, folder: Path, asked: list[tuple[int, int]]) -> None:
    # Letters that the tokenizer never saw take more tokens than the estimate has, so that parts are split again.
    long = session("long", "2026-03-02T09:00", *["My city is Boston.", "\N{LATIN SMALL LETTER THORN}" * 120] * 10)
    done = run("add", "-", "--checkpoint", str(folder), given=lines_of(long))
    assert done.exit_code == 0 and "does not fit the model's window and was read in" in done.stdout
    assert len(asked) > 2 and all(prompt + limit <= WINDOW for prompt, limit in asked)
    small = run("add", "-", "--window", "64", "--checkpoint", str(folder), given=lines_of(MONDAY))
    assert small.exit_code == 1 and "context window is too small for the prompt" in small.stdout


def test_doctor_loads_it(bank: Path, folder: Path, tmp_path: Path) -> None:
    shown = {check["name"]: check for check in run_json("doctor", "--checkpoint", str(folder))["checks"]}
    assert shown["model"]["status"] == "ok" and f"window of {WINDOW} tokens" in shown["model"]["detail"]
    broken = run("doctor", "--json", "--checkpoint", str(tmp_path))
    assert broken.exit_code == 1 and "no episode.json there" in broken.stdout


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:3000])


@pytest.mark.parametrize(
    ("file", "damage", "sentence"),
    [
        (EPISODE_FILE, Path.unlink, "no episode.json there"),
        ("tokenizer.json", Path.unlink, "cannot be loaded"),
        ("chat_template.jinja", Path.unlink, "chat template"),
        ("model.safetensors", Path.unlink, "cannot be loaded"),
        ("model.safetensors", cut, "cannot be loaded"),
    ],
)
def test_a_bad_folder_is_one_sentence_and_makes_no_bank(
    bank: Path, folder: Path, tmp_path: Path, file: str, damage: Callable[[Path], None], sentence: str
) -> None:
    target = tmp_path / "policy"
    shutil.copytree(folder, target)
    damage(target / file)
    said = one_sentence(run("add", "-", "--checkpoint", str(target), given=lines_of(MONDAY)))
    assert str(target) in said and sentence in said
    assert not bank.exists()


def test_a_file_is_no_checkpoint(bank: Path, tmp_path: Path) -> None:
    file = tmp_path / "policy.gguf"
    file.write_bytes(b"GGUF")
    said = one_sentence(run("add", "-", "--checkpoint", str(file), given=lines_of(MONDAY)))
    assert said.startswith(f"{file}: ") and "folder of a trained model" in said and not bank.exists()


def test_missing_packages_are_named(bank: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "deltamem.local_policy")
    monkeypatch.setitem(sys.modules, "transformers", None)
    said = one_sentence(run("add", "-", "--checkpoint", str(folder), given=lines_of(MONDAY)))
    assert "torch and transformers" in said and "pip install 'deltamem[local]'" in said
    assert not bank.exists()
