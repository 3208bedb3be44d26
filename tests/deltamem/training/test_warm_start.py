"""Supervised fine-tuning of a pretrained model: what is trained, passes, resuming, limits, and the stage in a run."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import islice, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chat_cases import qwen_tokenizer
from lazy import lazy, names
from preflight_cases import placed
from rich.console import Console
from smol_cases import needs_smol, smol_folder
from tiny_cases import COMPACT, sessions
from training_cases import write_sessions

from deltamem.errors import DeltaMemError
from deltamem.runs import RunStoppedError, run_stages
from deltamem.training import pipeline
from deltamem.training.config import SupervisedConfig
from deltamem.training.interruption import apart
from deltamem.training.launch import changed_since
from deltamem.training.model_card import front_matter
from deltamem.training.pipeline import stages
from deltamem.training.pretrained import chatml
from deltamem.training.teacher import TrajectoryTokenizer
from deltamem.training.token_limits import Limits

torch = lazy("torch")
warm_start = lazy("deltamem.training.warm_start")
export = lazy("deltamem.training.export")
AutoModelForCausalLM, GraniteConfig, GraniteForCausalLM, LlamaConfig, LlamaForCausalLM = names(
    "transformers", "AutoModelForCausalLM GraniteConfig GraniteForCausalLM LlamaConfig LlamaForCausalLM"
)
Example, Tuning, check, examples, faster_in_bfloat16, next_token_losses, pad, plan = names(
    "deltamem.training.warm_start", "Example Tuning check examples faster_in_bfloat16 next_token_losses pad plan"
)

CHECKPOINT = "checkpoint.pt"
OPTIONS: dict[str, Any] = {
    **{"kind": "pretrained", "steps": 6, "tokens": 2048, "passes": 2, "layers": None, "lora_rank": None, "lr": 3e-3},
    **{"warm_up": 1, "decay_share": 0.5, "weight_decay": 0.0, "max_grad_norm": 1.0, "gradient_checkpointing": False},
    **{"careless": (0.0, 0.0), "heldout_sessions": 4, "test_every": 3, "save_every": 2},
}


def options(**changes: Any) -> SupervisedConfig:
    return SupervisedConfig(**{**OPTIONS, **changes})


def new_model(layers: int = 2, dropout: float = 0.0) -> LlamaForCausalLM:
    torch.manual_seed(0)
    tokenizer = qwen_tokenizer(chatml())
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": layers, "num_attention_heads": 2}
    ends = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    shape = LlamaConfig(vocab_size=len(tokenizer), tie_word_embeddings=True, attention_dropout=dropout, **sizes, **ends)
    return LlamaForCausalLM(shape)


@cache
def drawn(count: int) -> list[Example]:
    tokenize = TrajectoryTokenizer(qwen_tokenizer(chatml()), model_type="llama", template_kwargs={})
    found = examples(sessions(), COMPACT, tokenize, careless=(0.0, 0.0), rng=random.Random(0))
    return list(islice(found, count))


def tuned(
    folder: Path, config: SupervisedConfig, *, stop_at: int | None = None, dropout: float = 0.0
) -> tuple[Tuning, list[dict[str, float]]]:
    rows = drawn(24)
    passes = [rows[2 * number : 2 * number + 2] for number in range(12)]
    folder.mkdir(exist_ok=True)
    tuning, records = Tuning(new_model(dropout=dropout), config, "cpu", folder, "same"), list[dict[str, float]]()
    tuning.run(passes, rows[:3], report=records.append, stop=lambda: tuning.step == stop_at)
    return tuning, records


def test_the_loss_falls_and_the_accuracy_is_measured_by_kind(tmp_path: Path) -> None:
    tuning, records = tuned(tmp_path, options())
    assert [record["step"] for record in records] == list(range(7))
    assert records[-1]["loss"] < 0.95 * records[1]["loss"]
    measured = [record["step"] for record in records if "heldout/accuracy" in record]
    assert measured == [0, 3, 6]
    kinds = {name.rpartition("/")[2] for name in records[-1] if name.startswith("heldout/accuracy/")}
    assert kinds == {"format", "query", "text", "event", "id"}
    assert all(0.0 <= record["accuracy"] <= 1.0 and record["tokens_per_second"] > 0 for record in records[1:])
    assert [record["lr"] for record in records[1:4]] == [3e-3] * 3 and records[-1]["lr"] < 2e-3
    assert not tuning.finish().training


@pytest.mark.parametrize(("dropout", "lora_rank"), [(0.3, None), (0.0, 2)])
def test_an_interrupted_tuning_takes_the_same_steps(tmp_path: Path, dropout: float, lora_rank: int | None) -> None:
    config = options(steps=3, passes=1, lora_rank=lora_rank)
    whole, _ = tuned(tmp_path / "whole", config, dropout=dropout)
    stopped, first = tuned(tmp_path / "parts", config, stop_at=2, dropout=dropout)
    assert stopped.step == 2 and (tmp_path / "parts" / CHECKPOINT).is_file()
    # How often it is measured makes no difference.
    resumed, rest = tuned(tmp_path / "parts", config.model_copy(update={"test_every": 1}), dropout=dropout)
    assert [record["step"] for record in (*first, *rest)] == list(range(4))
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    # What was made with other settings is not gone on with, and what cannot be read is said. What a killed save left goes.
    partial = tmp_path / "parts" / f".{CHECKPOINT}.partial"
    partial.touch()
    other = Tuning(new_model(), options(), "cpu", tmp_path / "parts", "other")
    assert other.step == 0 and not partial.exists()
    (tmp_path / "parts" / CHECKPOINT).write_bytes(b"PK cut")
    with pytest.raises(DeltaMemError, match="no checkpoint that can be read"):
        tuned(tmp_path / "parts", options())


def test_passes_of_a_step_count_like_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In bfloat16 the order of the sum shows.
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {})
    rows = drawn(6)
    models = [new_model(), new_model()]
    for model, passes in zip(models, ([rows], [rows[:1], rows[1:]]), strict=True):
        config = options(passes=len(passes), steps=1, tokens=10**6)
        Tuning(model, config, "cpu", tmp_path, "x").run(passes, [], report=lambda record: None, stop=lambda: False)
    for one, other, start in zip(*(model.parameters() for model in (*models, new_model())), strict=True):
        assert torch.allclose(one, other, atol=2e-5) and not torch.equal(one, start)


@pytest.mark.parametrize("native", [True, False])
def test_a_cpu_computes_in_bfloat16_where_it_does_not_have_to_emulate_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, native: bool
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, "avx512_bf16": native})
    tuning = Tuning(new_model(), options(steps=1), "cpu", tmp_path, "x")
    computed = []
    layer = tuning.model.base_model.layers[0].mlp
    layer.register_forward_hook(lambda _module, _given, result: computed.append(result.dtype))
    tuning.run([drawn(2), drawn(2)], [], report=lambda record: None, stop=lambda: False)
    assert set(computed) == {torch.bfloat16 if native else torch.float32}
    assert {weight.dtype for weight in tuning.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("changes", [{"layers": 1}, {"lora_rank": 2}, {"gradient_checkpointing": True}])
def test_only_what_is_chosen_is_trained(tmp_path: Path, changes: dict[str, Any]) -> None:
    tuning, _ = tuned(tmp_path, options(steps=2, **changes))
    model, start = tuning.finish(), new_model().state_dict()
    found = model.state_dict()
    assert found.keys() == start.keys()
    changed = {name for name in start if not torch.equal(found[name], start[name])}
    layer = {name for name in start if name.startswith("model.layers.1.")}
    if "layers" in changes:
        assert changed == layer
    elif "lora_rank" in changes:
        assert changed == {name for name in start if "_proj." in name}
        assert all(int(torch.linalg.matrix_rank(found[name] - start[name], rtol=1e-3)) <= 2 for name in changed)
    else:
        assert changed == set(start)
    assert all(weight.requires_grad for weight in model.parameters())


def test_more_layers_than_there_are(tmp_path: Path) -> None:
    with pytest.raises(DeltaMemError, match=r"deltamem\.warm_start\.layers is 3, the model has 2"):
        tuned(tmp_path, options(layers=3))


def test_padding_changes_nothing() -> None:
    model, rows = new_model().eval(), sorted(drawn(5), key=lambda one: len(one.token_ids))
    assert len(rows[0].token_ids) < len(rows[-1].token_ids)
    with torch.no_grad():
        together, hits, kinds = next_token_losses(model, pad(rows, torch.int8))
        alone = [next_token_losses(model, pad([one], torch.int8))[0] for one in rows]
    assert torch.allclose(together, torch.cat(alone), atol=1e-5)
    # Exactly the assistant's tokens, each predicted from what stands before it.
    assert len(together) == len(hits) == sum(one.own for one in rows)
    assert kinds.tolist() == [kind for one in rows for kind in one.marks if kind > 0]


def test_passes_are_filled_with_neighbours_in_length() -> None:
    found = plan(iter(drawn(120)), passes=8, tokens=2048, limits=None, window=8192, rng=random.Random(0))
    widths = [max(len(one.token_ids) for one in rows) for rows in found]
    assert len(found) == 8 and all(width * len(rows) <= 2048 for width, rows in zip(widths, found, strict=True))
    padded = sum(width * len(rows) for width, rows in zip(widths, found, strict=True))
    real = sum(len(one.token_ids) for rows in found for one in rows)
    assert real > 0.93 * padded > 0.93 * 0.7 * 8 * 2048
    assert widths != sorted(widths), "short and long ones alternate"


def test_a_token_of_a_short_answer_counts_no_more_than_another(tmp_path: Path) -> None:
    """Passes are of one length, those of silent answers have few tokens: a mean over each step would teach silence most."""
    short, *_, long = sorted(drawn(20), key=lambda one: one.own)
    assert 2 * short.own < long.own

    def norms(*passes: list[Example]) -> list[float]:
        """Of the gradients of a training that hardly moves the weights."""
        records: list[dict[str, float]] = []
        config = options(steps=len(passes), passes=1, lr=1e-12, save_every=100)
        Tuning(new_model(), config, "cpu", tmp_path, "x").run(passes, [], report=records.append, stop=lambda: False)
        return [record["grad_norm"] for record in records if record["step"] > 0]

    (alone,), (beside_long, _) = norms([short]), norms([short], [long])
    assert beside_long == pytest.approx(alone * 2 * short.own / (short.own + long.own), rel=0.02)  # bfloat16


def test_every_session_of_a_pass_over_the_data_turns_up() -> None:
    count = len(sessions())
    taken: list[Example] = []

    def planned(passes: int) -> list[list[Example]]:
        taken.clear()
        source = (taken.append(one) or one for one in drawn(2 * count))
        return plan(source, passes=passes, tokens=4096, limits=None, window=8192, rng=random.Random(0))

    planned(1)
    pool = len(taken)
    passes = len(list(takewhile(lambda passes: planned(passes) and len(taken) == pool, range(1, 50))))
    found = planned(passes)
    assert sorted(one.key for rows in found for one in rows) == sorted(one.key for one in taken)
    assert {one.key for one in taken} == {one.key for one in sessions()}


def test_dropping_ends_where_it_is_measured(tmp_path: Path) -> None:
    tuning = Tuning(new_model(dropout=0.5), options(tokens=10**6), "cpu", tmp_path, "x")
    drops: list[bool] = []
    tuning.model.base_model.register_forward_pre_hook(lambda module, _given: drops.append(module.training))
    tuning.measure(drawn(3))
    tuning.run([[one] for one in drawn(2)], [], report=lambda record: None, stop=lambda: tuning.step == 1)
    assert drops == [False, True, True]


def test_a_model_that_scales_its_logits_is_refused(tmp_path: Path) -> None:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = GraniteForCausalLM(GraniteConfig(vocab_size=64, logits_scaling=8.0, num_key_value_heads=2, **sizes))
    with pytest.raises(DeltaMemError, match="GraniteForCausalLM: a warm start cannot train a model that scales or caps"):
        Tuning(model, options(), "cpu", tmp_path, "x")


def row(prompt: int, *turns: int) -> Example:
    """A trajectory of a prompt and turns of the assistant with one token between them."""
    kinds = [0] * prompt + [kind for turn in turns for kind in (*[1] * turn, 0)][:-1]
    return Example("p0/0", np.zeros(len(kinds), dtype=np.int32), np.array(kinds, dtype=np.int8))


@pytest.mark.parametrize(
    ("limits", "tokens", "window", "sentence"),
    [
        (Limits(10, 50, 20), 100, 100, r"needs 11 tokens for the prompt, data\.max_prompt_length has 10"),
        (Limits(11, 20, 20), 100, 100, r"needs 21 tokens after the prompt, data\.max_response_length has 20"),
        (Limits(11, 21, 12), 100, 100, r"needs 15 tokens for a turn, deltamem\.turn_tokens has 12"),
        (None, 30, 100, r"needs 31 tokens in all, deltamem\.warm_start\.tokens has 30"),
        (None, 100, 30, r"needs 31 tokens in all, the model's window has 30"),
    ],
)
def test_a_trajectory_that_does_not_fit_is_one_sentence(limits, tokens, window, sentence):
    check(row(10, 5, 15), tokens=100, limits=Limits(11, 21, 15), window=31)
    with pytest.raises(DeltaMemError, match=f"^session p0/0: the target trajectory {sentence}"):
        check(row(10, 5, 15), tokens=tokens, limits=limits, window=window)


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pretrained model of 30 thousand parameters."""
    folder = tmp_path_factory.mktemp("pretrained") / "start"
    new_model().save_pretrained(folder)
    qwen_tokenizer(chatml()).save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: apache-2.0\nbase_model: someone/small\n---\n")
    return folder


GIVEN = {**OPTIONS, "careless": "[0.0,0.5]", "tokens": 1024, "passes": 1}
RUN = (
    *("+experiment=smollm135m", "deltamem.synth=null", "deltamem.out=/PLACE/run"),
    *(f"deltamem.warm_start.{key}={'null' if value is None else value}" for key, value in GIVEN.items()),
    *("deltamem.sessions=/PLACE/sessions.jsonl", "actor_rollout_ref.model.path=/PLACE/start"),
    *("deltamem.data.skip_people=8", "deltamem.data.heldout_sessions=4"),
    *("data.max_prompt_length=640", "data.max_response_length=640", "deltamem.turn_tokens=320"),
)
WARM = "deltamem.warm_start"


def run_of(folder: Path, start: Path, values: Mapping[str, Any]) -> tuple[Any, Any, dict[str, pipeline.Stage]]:
    """The resolved configuration, the settings and the stages of a run in ``folder/run``."""
    write_sessions(folder / "sessions.jsonl", train=24, heldout=4)
    config, settings = placed(folder, *RUN, values={"actor_rollout_ref.model.path": str(start)} | dict(values))
    return config, settings, {one.name: one for one in stages(config, settings, Console(quiet=True))}


def stage(folder: Path, start: Path, values: Mapping[str, Any] = {}) -> pipeline.Stage:
    """The stage of the warm start."""
    return run_of(folder, start, values)[2]["warm_start"]


def ask_in_step(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Let the process get a request to stop when it notes a step."""
    add = pipeline.MetricsFile.add

    def ask(self: pipeline.MetricsFile, record: dict[str, float]) -> None:
        if record["step"] == step:
            os.kill(os.getpid(), signal.SIGUSR1)
        return add(self, record)

    monkeypatch.setattr(pipeline.MetricsFile, "add", ask)


def test_the_stage_goes_on_and_grpo_starts_from_its_model(tmp_path, start, monkeypatch):
    out = tmp_path / "run"
    config, settings, listed = run_of(tmp_path, start, {})
    found = listed["warm_start"]
    ask_in_step(monkeypatch, 1)
    with pytest.raises(RunStoppedError, match="warm_start: stopped with a checkpoint after step 1 of 6; the same command"):
        found.run()
    assert not found.output.exists()
    monkeypatch.undo()
    found.run()
    records = [json.loads(line) for line in (out / "warm_start.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records] == list(range(7))
    model = AutoModelForCausalLM.from_pretrained(found.output)
    assert model.config.model_type == "llama" and not (out / "warm_start" / CHECKPOINT).exists()
    assert torch.get_float32_matmul_precision() == "highest", "embeddings and adapters of this process would be rounded"
    noted = json.loads((found.output / "episode.json").read_text())
    assert (noted["thinking"], noted["turn_tokens"]) == (False, settings.turn_tokens)
    assert export.export_run(out, tmp_path / "policy", step=0) == 0
    assert "| warm start | 6 steps on target trajectories" in (tmp_path / "policy" / "README.md").read_text()
    assert front_matter(found.output) == {"license": "apache-2.0", "base_model": "someone/small"}
    assert pipeline.final(config, settings)[0].actor_rollout_ref.model.path == str(found.output)
    assert config.actor_rollout_ref.model.path == str(start), "the preflight looks at what there is"


@pytest.mark.parametrize(
    ("values", "depends"),
    [
        ({f"{WARM}.lr": 1e-4}, True),
        ({"deltamem.turn_tokens": 310}, True),
        ({"deltamem.data.skip_people": 9}, True),
        ({"actor_rollout_ref.model.custom_chat_template": "abc"}, True),
        ({"actor_rollout_ref.actor.optim.lr": 1e-3}, False),
        ({f"{WARM}.{key}": 1 for key in ("heldout_sessions", "save_every", "test_every")}, False),
    ],
)
def test_the_stage_depends_on_what_its_result_does(tmp_path, start, values, depends):
    config, _, first = run_of(tmp_path, start, {})
    other, _, found = run_of(tmp_path, start, values)
    assert (found["warm_start"].inputs != first["warm_start"].inputs) is depends
    if not depends and WARM in next(iter(values)):
        changed_since(tmp_path / "identity.json", config, resuming=False)
        changes = changed_since(tmp_path / "identity.json", other, resuming=True)
        assert [line.partition("=")[0] for line in changes] == list(values)


def edit_template(folder: Path) -> None:
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text() + "{# #}")


def edit_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    raw = bytearray(path.read_bytes())
    raw[-3] ^= 1
    path.write_bytes(raw)


def touch(folder: Path) -> None:
    os.utime(folder / "model.safetensors", (1, 1))
    (folder / "README.md").write_text("Said better.")


@pytest.mark.parametrize(
    ("edit", "changed"), [(edit_template, {"lengths", "warm_start"}), (edit_weights, {"warm_start"}), (touch, set())]
)
def test_stages_depend_on_the_files_of_the_model_and_not_on_their_path(tmp_path, start, edit, changed):
    def inputs(folder: Path) -> dict[str, Any]:
        listed = run_of(tmp_path, folder, {"deltamem.limits.fit": True})[2]
        assert list(listed).index("lengths") < list(listed).index("warm_start"), "before the minutes of the warm start"
        return {name: listed[name].inputs for name in ("lengths", "warm_start")}

    first = inputs(start)
    moved = shutil.copytree(start, tmp_path / "moved")
    assert inputs(moved) == first
    edit(moved)
    found = inputs(moved)
    assert {name for name in found if found[name] != first[name]} == changed


def test_a_request_in_the_last_step_ends_the_run_after_the_stage(tmp_path, start, monkeypatch):
    found, lines = stage(tmp_path, start, {f"{WARM}.steps": 1}), list[str]()
    ask_in_step(monkeypatch, 1)
    with pytest.raises(RunStoppedError, match="stopped after its last step, the model is saved; the same command goes on"):
        run_stages([found], tmp_path / "stages", lines.append)
    assert (found.output / "model.safetensors").is_file()
    run_stages([found], tmp_path / "stages", lines.append)
    assert lines[-1].endswith("done before")


def test_a_request_before_the_first_step_is_heard(tmp_path: Path, start: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = warm_start.supervised_data

    def ask(*given: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGUSR1)
        return made(*given, **options)

    monkeypatch.setattr("deltamem.training.warm_start.supervised_data", ask)
    with pytest.raises(RunStoppedError, match="after step 0 of 6"):
        stage(tmp_path, start).run()


def test_on_a_gpu_it_has_a_process_of_its_own(tmp_path: Path, start: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(pipeline, "apart", lambda *given: asked.append(given))
    stage(tmp_path, start, {"deltamem.cpu_threads": None}).run()
    assert asked[0][0] is pipeline.tune and not (tmp_path / "run" / "warm_start").exists()


@pytest.mark.slow
def test_that_process_hears_a_request_and_its_work_leaves_the_model(tmp_path: Path, start: Path) -> None:
    config, settings, listed = run_of(tmp_path, start, {})
    request = tmp_path / "run" / "warm_start.stop"
    request.parent.mkdir()
    request.touch()
    with pytest.raises(RunStoppedError, match="after step 0 of 6"):
        apart(pipeline.tune, config, settings, "same")
    # Here, because a process of its own first loads torch and more for five seconds.
    request.unlink()
    pipeline.tune(config, settings, "same")
    assert (listed["warm_start"].output / "model.safetensors").is_file()


@pytest.mark.slow
def test_checkpoints_of_grpo_keep_what_they_come_from(tmp_path: Path, start: Path) -> None:
    out, listed = tmp_path / "run", run_of(tmp_path, start, {})[2].values()
    before = [replace(one, run=lambda: None) for one in listed if one.name not in ("grpo", "export")]
    for one in before:
        one.output.mkdir(parents=True)
    run_stages(before, out / "stages", lambda _line: None)
    marker = (out / "stages" / "warm_start.json").read_text()
    checkpoint = out / "grpo" / "checkpoints" / "global_step_1"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text('{"step": 1, "files": {}, "metrics": {}}')
    given = [one.replace("/PLACE/start", str(start)).replace("/PLACE", str(tmp_path)) for one in RUN]
    root = Path(__file__).resolve().parents[3]
    command = [sys.executable, "train.py", *given, f"{WARM}.lr=1e-4"]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 2
    assert "made with another configuration (stage warm_start would run again); choose another deltamem.out" in done.stderr
    assert (out / "stages" / "warm_start.json").read_text() == marker
    assert list((out / "warm_start" / "model").iterdir()) == []


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({f"{WARM}.tokens": 200}, "deltamem.warm_start.tokens has 200; take shorter sessions"),
        ({"data.max_prompt_length": 20}, "data.max_prompt_length has 20"),
        ({f"{WARM}.lora_rank": 4, f"{WARM}.layers": 1}, "layers and lora_rank exclude each other"),
        ({f"{WARM}.steps": "many"}, "config key 'warm_start.steps': "),
        ({f"{WARM}.kind": "magic"}, "config key 'warm_start': "),
        ({"actor_rollout_ref.model.path": "models/elsewhere/smollm2-135m"}, "make it with: make smol"),
    ],
)
def test_bad_input_is_one_sentence_before_anything_is_trained(tmp_path, start, values, sentence):
    with pytest.raises(DeltaMemError) as caught:
        stage(tmp_path, start, values).run()
    assert sentence in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "run" / "warm_start").exists() and not (tmp_path / "run" / "warm_start.jsonl").exists()


@pytest.mark.slow
@needs_smol
def test_the_pretrained_model_knows_more_than_chance_and_learns(tmp_path: Path) -> None:
    stage(tmp_path, smol_folder(), {f"{WARM}.{key}": 2 for key in ("steps", "layers", "heldout_sessions")}).run()
    before, *_, after = [json.loads(line) for line in (tmp_path / "run" / "warm_start.jsonl").read_text().splitlines()]
    assert before["heldout/accuracy"] > 0.3
    assert after["heldout/accuracy"] > before["heldout/accuracy"]


@pytest.mark.parametrize(
    ("device", "cpu", "faster"),
    [
        ("cuda", {}, True),
        ("cpu", {"cpu_name": "AMD EPYC", "avx512_bf16": True}, True),
        ("cpu", {"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": True}, True),
        ("cpu", {"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": False}, False),  # Half as fast
        ("cpu", {"cpu_name": "Intel Xeon"}, False),
        ("cpu", {}, False),
    ],
)
def test_products_are_rounded_only_where_that_is_faster(
    device: str, cpu: dict[str, Any], faster: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: cpu)
    assert faster_in_bfloat16(device) is faster


def test_products_are_as_they_were_after_the_warm_start_of_a_model_from_scratch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"amx_bf16": True})
    with pytest.raises(KeyError), pipeline._rounded_products():
        assert torch.get_float32_matmul_precision() == "medium"
        raise KeyError
    assert torch.get_float32_matmul_precision() == "highest"
