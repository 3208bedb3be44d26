"""How likely points are to a model: which tokens count, beside a model whose losses are known, and the command."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chat_cases import qwen_tokenizer
from offline_people import labelled

from deltamem.episode import EpisodeConfig, read_turn
from deltamem.errors import DeltaMemError
from deltamem.sessions import FactKind, read_sessions, to_json_line
from eval.transfer.likelihood import Answer, Likelihood, compare, labelled_answers, less_than, likelihood

POINTS = ('Ana lives in "Porto".', "Ana: 東京.")
ANSWER = Answer("ana", [{"role": "user", "content": "Ana moved."}], POINTS, (FactKind.STATUS, FactKind.PLAN))


if TYPE_CHECKING:
    from transformers import LlamaForCausalLM


def model(*, even: bool) -> LlamaForCausalLM:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    made = LlamaForCausalLM(LlamaConfig(vocab_size=len(qwen_tokenizer()), tie_word_embeddings=True, **sizes)).eval()
    with torch.no_grad():  # All tokens are as likely as one another, or some of them are far likelier
        made.get_output_embeddings().weight.mul_(0 if even else 20)
    return made


def saved(folder: Path, *, even: bool) -> None:
    model(even=even).save_pretrained(folder)
    qwen_tokenizer().save_pretrained(folder)


def test_the_words_of_the_points_count_and_nothing_around_them() -> None:
    tokenizer = qwen_tokenizer()
    found = likelihood(model(even=True), tokenizer, ANSWER)
    assert [one.kind for one in found] == [FactKind.STATUS, FactKind.PLAN]
    for one, text in zip(found, ('Ana lives in \\"Porto\\".', "Ana: 東京."), strict=True):
        assert one.loss == pytest.approx(one.tokens * math.log(len(tokenizer)), rel=1e-5)
        words = len(tokenizer(text, add_special_tokens=False)["input_ids"])
        assert abs(one.tokens - words) <= 1, "but for what a token joins at either end"
    alone = likelihood(model(even=False), tokenizer, replace(ANSWER, points=POINTS[:1], kinds=ANSWER.kinds[:1]))
    both = likelihood(model(even=False), tokenizer, ANSWER)
    assert alone[0].tokens == both[0].tokens
    assert alone[0].loss == pytest.approx(both[0].loss, rel=1e-5), "what comes after a point does not change it"


def test_points_are_written_as_the_queries_of_a_turn() -> None:
    class Listener:
        text, apply_chat_template = "", staticmethod(qwen_tokenizer().apply_chat_template)

        def __call__(self, text: str, **settings: Any) -> Any:
            self.text = text
            return qwen_tokenizer()(text, **settings)

    heard = Listener()
    likelihood(model(even=True), heard, ANSWER)
    asked = qwen_tokenizer().apply_chat_template(ANSWER.messages, tokenize=False, add_generation_prompt=True)
    turn = f"{heard.text.removeprefix(asked).removesuffix(', ')}]}}}}</tool_call>"
    assert read_turn(turn, (), thinking=False).queries == POINTS


def test_tokens_that_a_model_would_have_written_are_counted() -> None:
    import torch

    tokenizer, made = qwen_tokenizer(), model(even=True)
    [preferred] = tokenizer("z", add_special_tokens=False)["input_ids"]
    with torch.no_grad():  # Every token means the same, and one is likelier than the others wherever it stands
        made.get_output_embeddings().weight[:, 0] = 1
        made.get_output_embeddings().weight[preferred, 0] = 2
    some, none = likelihood(made, tokenizer, replace(ANSWER, points=("z-z-y", "a dog")))
    assert (some.likeliest, some.tokens, none.likeliest) == (2, 5, 0)


def test_held_out_people_of_synthetic_data_are_asked_for_what_is_to_be_added(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sessions = labelled(6, 2, sizes="demanding")
    assert all(one.difficulty for one in sessions) and {one.split for one in sessions} == {"train", "heldout"}
    due = [
        (one.session.person_id, operation.text, planned.kind)
        for one in sessions
        if one.split == "heldout" and one.difficulty
        for operation, planned in zip(one.operations, one.difficulty.operations, strict=True)
        if operation.event == "ADD"
    ]
    file = tmp_path / "sessions.jsonl"
    file.write_text("".join(to_json_line(one) + "\n" for one in sessions), encoding="utf-8")
    asked = list(labelled_answers(read_sessions(file, split="heldout"), EpisodeConfig()))
    assert [(one.person, *point) for one in asked for point in zip(one.points, one.kinds, strict=True)] == due
    assert len({kind for _, _, kind in due}) > 3, "kinds, and one for which none was planned"

    for name, even in (("model", True), ("other", False)):
        saved(tmp_path / name, even=even)
    assert compare([str(tmp_path / "model"), str(tmp_path / "other"), str(file)]) == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    counts = {"all": len(due)} | Counter(str(kind) for _, _, kind in due if kind)
    assert [(kind, int(points)) for _, kind, _, _, _, points, _ in rows] == 2 * sorted(counts.items())
    for before, after in zip(rows[: len(counts)], rows[len(counts) :], strict=True):
        assert float(after[3].split()[0]) == pytest.approx(float(before[2]) - float(after[2]), abs=2e-3)
    unplanned = labelled_answers([replace(one, difficulty=None) for one in sessions], EpisodeConfig())
    assert {kind for one in unplanned for kind in one.kinds} == {None}
    with pytest.raises(DeltaMemError, match="its held-out people are asked whole; leave windows=4 out"):
        compare([str(tmp_path / "model"), str(file), "windows=4"])
    file.write_text("", encoding="utf-8")
    with pytest.raises(DeltaMemError, match="no session with a point"):
        compare([str(tmp_path / "model"), str(file)])


def test_what_another_model_gains_is_paired_by_session_and_resampled_by_person() -> None:
    first = [Likelihood(f"p{number}", 30.0 + number, 10, 3) for number in range(8)]
    gain = less_than(first, [replace(one, loss=one.loss - 5) for one in first])
    assert gain is not None and (gain.estimate, gain.low, gain.high) == (0.5, 0.5, 0.5)


def test_the_command_compares_models_on_the_chat_core(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, even in (("first", True), ("other", False)):
        saved(tmp_path / name, even=even)
    assert compare([str(tmp_path / "first"), str(tmp_path / "other"), "windows=4"]) == 0
    first, other = capsys.readouterr().out.splitlines()[2:]
    size = math.log(len(qwen_tokenizer()))
    assert first.startswith(f"| {tmp_path / 'first'} | all | {size:.3f} |  | ")
    assert "[" in other and float(other.split("|")[3]) != pytest.approx(size, abs=1e-3)
    with pytest.raises(DeltaMemError, match="nothing: no model that can be loaded"):
        compare([str(tmp_path / "nothing")])
    with pytest.raises(DeltaMemError, match="name a folder of a model"):
        compare(["windows=4"])
