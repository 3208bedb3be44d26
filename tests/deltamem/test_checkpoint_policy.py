"""A checkpoint folder as a policy: requests share batches, greedy is deterministic, a bad folder is told in a sentence."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest
import torch
from offline_people import labelled

from deltamem.episode import EpisodeConfig, Message, opening_messages
from deltamem.errors import DeltaMemError
from deltamem.local_policy import CheckpointPolicy, Generated
from deltamem.policy import Completion
from deltamem.sessions import LabelledSession
from deltamem.training.tiny import TinyModelConfig, build

EPISODE = EpisodeConfig("manager_compact", "session_compact", memory_fields=("text", "time", "id"))
CONTEXT = 512


@pytest.fixture(scope="module")
def sessions() -> list[LabelledSession]:
    return labelled(4, 3, seed=3)


@pytest.fixture(scope="module")
def folder(sessions, tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("tiny") / "model"
    sizes = TinyModelConfig(hidden_size=64, layers=2, head_dim=16, mlp_size=96, vocabulary=400, context=CONTEXT)
    build(target, sessions, EPISODE, sizes, seed=0)
    return target


@pytest.fixture
def conversations(sessions) -> list[list[Message]]:
    return [opening_messages(labelled.session, EPISODE) for labelled in sessions]


def load(folder: Path, **options: object) -> CheckpointPolicy:
    return CheckpointPolicy(folder, threads=torch.get_num_threads(), **{"max_new_tokens": 12, **options})  # type: ignore[arg-type]


def batch_sizes(policy: CheckpointPolicy, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records how many prompts every call of the sampler gets."""
    sizes: list[int] = []
    generate = policy._generator.generate

    def recorded(prompts, limits, temperatures):
        sizes.append(len(prompts))
        return generate(prompts, limits, temperatures)

    monkeypatch.setattr(policy._generator, "generate", recorded)
    return sizes


async def complete_all(policy: CheckpointPolicy, conversations: list[list[Message]]) -> list[Completion]:
    return list(await asyncio.gather(*(policy.complete(messages) for messages in conversations)))


def test_concurrent_requests_share_one_batch(folder, conversations, monkeypatch):
    policy = load(folder)
    sizes = batch_sizes(policy, monkeypatch)
    answers = asyncio.run(complete_all(policy, conversations))
    assert sizes == [len(conversations)]
    assert len(answers) == len(conversations) == 12


def test_greedy_is_deterministic_and_does_not_depend_on_the_batch(folder, conversations):
    together = asyncio.run(complete_all(load(folder, temperature=0.0, seed=1), conversations))
    policy = load(folder, temperature=0.0, seed=2)
    alone = [asyncio.run(policy.complete(messages)) for messages in conversations[:4]]
    assert together[:4] == alone
    assert all(0 < answer.tokens <= 12 for answer in together)


def test_the_end_token_is_not_part_of_the_text(folder, conversations, monkeypatch):
    policy = load(folder, temperature=5.0, max_new_tokens=40)
    sampled: list[Generated] = []
    generate = policy._generator.generate
    monkeypatch.setattr(policy._generator, "generate", lambda *given: sampled.extend(generate(*given)) or sampled)
    answers = asyncio.run(complete_all(policy, conversations * 10))
    assert {answer.truncated for answer in answers} == {True, False}
    end = policy._tokenizer.eos_token_id
    for answer, generated in zip(answers, sampled, strict=True):
        assert answer.truncated == (end not in generated.token_ids)
        assert answer.tokens == len(generated.token_ids)
        assert answer.text == policy._tokenizer.decode([token for token in generated.token_ids if token != end])


def test_a_conversation_that_fills_the_context_is_truncated(folder, conversations):
    policy = load(folder, temperature=0.0, max_new_tokens=10_000)
    fits = policy._tokenizer.apply_chat_template(conversations[0], add_generation_prompt=True, return_dict=False)
    [answer] = asyncio.run(complete_all(policy, conversations[:1]))
    assert answer.tokens <= CONTEXT - len(fits)
    full = [*conversations[0], Message(role="tool", content="x y " * CONTEXT)]
    assert asyncio.run(policy.complete(full)) == Completion("", truncated=True, tokens=0)


def test_who_gives_up_waiting_does_not_hold_up_the_others(folder, conversations):
    policy = load(folder)

    async def impatient() -> Completion:
        leaving = asyncio.create_task(policy.complete(conversations[0]))
        staying = asyncio.create_task(policy.complete(conversations[1]))
        await asyncio.sleep(0)
        leaving.cancel()
        return await asyncio.wait_for(staying, timeout=30)

    assert asyncio.run(impatient()).tokens > 0


def test_a_sampler_that_breaks_tells_every_request_and_the_next_one_works(folder, conversations, monkeypatch):
    policy = load(folder)

    def broken(*_: object) -> None:
        raise RuntimeError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(policy._generator, "generate", broken)

        async def both() -> list[object]:
            calls = (policy.complete(messages) for messages in conversations[:2])
            return await asyncio.gather(*calls, return_exceptions=True)

        assert [str(answer) for answer in asyncio.run(both())] == ["no memory"] * 2
    assert asyncio.run(policy.complete(conversations[0])).tokens > 0


@pytest.fixture
def switched(folder, tmp_path) -> Path:
    """The model with Qwen3's switch in its template, and one more end of a turn."""
    target = tmp_path / "switched"
    shutil.copytree(folder, target)
    template = target / "chat_template.jinja"
    block = "{% if not enable_thinking | default(true) %}{{ '<think>\\n\\n</think>\\n\\n' }}{% endif %}"
    template.write_text(template.read_text("utf-8") + block, encoding="utf-8")
    values = json.loads((target / "generation_config.json").read_text("utf-8"))
    (target / "generation_config.json").write_text(json.dumps({**values, "eos_token_id": [0, 2]}), encoding="utf-8")
    return target


def test_a_model_that_must_not_think_is_told_and_its_turn_is_whole(switched, conversations, monkeypatch):
    policy = load(switched, thinking=False)
    prompts: list[list[int]] = []

    def answered(given, limits, temperatures):
        prompts.extend(given)
        return [Generated(policy._tokenizer.encode("done"), [0.0], True)]

    monkeypatch.setattr(policy._generator, "generate", answered)
    text = asyncio.run(policy.complete(conversations[0])).text
    assert text.startswith("<think>\n\n</think>\n\n")
    assert policy._tokenizer.decode(prompts[0]).endswith("assistant\n<think>\n\n</think>\n\n")
    thinking = load(switched)
    assert not asyncio.run(thinking.complete(conversations[0])).text.startswith("<think>\n\n</think>")


def test_every_end_of_a_turn_is_known(switched):
    assert load(switched)._format.ends == {0, 2}


def test_a_template_that_does_not_fit_is_told(switched):
    template = switched / "chat_template.jinja"
    template.write_text(template.read_text("utf-8") + "{{ '<think>' }}", encoding="utf-8")
    with pytest.raises(DeltaMemError, match=f"{switched}: the chat template opens a think block"):
        load(switched, thinking=False)


@pytest.mark.parametrize(
    ("file", "damaged", "sentence"),
    [
        ("config.json", None, "config.json is missing"),
        ("config.json", lambda content: b"{nope", "not a valid JSON"),
        ("config.json", lambda content: content.replace(b'"qwen3"', b'"llama"'), "'llama'"),
        ("model.safetensors", lambda content: content[:3000], "cannot be loaded"),
        (
            "model.safetensors",
            lambda content: content.replace(b"model.norm.weight", b"model.nurm.weight"),
            "model.norm.weight",
        ),
        ("tokenizer.json", lambda content: b"{}", "cannot be loaded"),
        ("chat_template.jinja", None, "chat template"),
        ("tokenizer_config.json", lambda content: content.replace(b'"eos_token"', b'"eos"'), "end-of-turn token"),
    ],
)
def test_a_bad_folder_is_one_sentence(folder, tmp_path, file, damaged, sentence, capfd):
    target = tmp_path / "model"
    shutil.copytree(folder, target)
    content = (target / file).read_bytes()
    (target / file).unlink()
    if damaged is not None:
        (target / file).write_bytes(damaged(content))
    with pytest.raises(DeltaMemError) as caught:
        load(target)
    message = str(caught.value)
    assert message.startswith(f"{target}: ") and sentence in message and "\n" not in message
    assert capfd.readouterr().err == ""
