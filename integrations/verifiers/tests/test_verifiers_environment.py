"""The environment under verifiers itself, against a scripted endpoint: its rewards are ours, its traces are whole."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from episode_texts import WordEmbedder, add, outputs, search, update
from offline_people import labelled
from scripted_server import Reply, Served, completion, failure, serve

vf = pytest.importorskip("verifiers.v1", reason="verifiers is not installed; `make verifiers` has an environment of its own")

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # noqa: E402
from transformers import PreTrainedTokenizerFast  # noqa: E402

from deltamem.bank.base import SnapshotBank, merge_hits  # noqa: E402
from deltamem.embedding import CachedEmbedder  # noqa: E402
from deltamem.episode import EpisodeConfig, opening_messages  # noqa: E402
from deltamem.errors import DeltaMemError  # noqa: E402
from deltamem.llm import LLM  # noqa: E402
from deltamem.policy import EndpointPolicy, run_episodes  # noqa: E402
from deltamem.sessions import LabelledSession, from_json_line, to_json_line  # noqa: E402
from integrations.verifiers import environment  # noqa: E402
from integrations.verifiers.environment import PLUGIN, DeltaMemEnv, load_environment, scorer  # noqa: E402

SESSIONS = labelled(14, 25)
CONFIG = EpisodeConfig()
BY_OPENING = {opening_messages(item.session, CONFIG)[1]["content"]: item for item in SESSIONS}


@pytest.fixture(autouse=True)
def words(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(environment, "load_embedder", lambda name, **settings: CachedEmbedder(WordEmbedder()))
    environment.embedder.cache_clear()
    yield
    environment.embedder.cache_clear()


def write(path: Path, sessions: list[LabelledSession]) -> Path:
    path.write_text("".join(f"{to_json_line(item)}\n" for item in sessions), encoding="utf-8")
    return path


def script(body: dict[str, Any]) -> Reply:
    """A policy of every kind, right, wrong and unreadable, drawn by the session."""
    messages = body["messages"]
    item = BY_OPENING[messages[1]["content"]]
    target, searched = item.operations, messages[-1]["role"] != "user"
    kind = hashlib.sha256(item.key.encode()).digest()[0] % 9
    asked = search(*[operation.text for operation in target] or ["anything"])
    answers = {
        0: lambda: completion(outputs(*target)),
        1: lambda: completion(outputs(*target) if searched else asked),
        2: lambda: completion(outputs(*(add(operation.text) for operation in target)) if searched else asked),
        3: lambda: completion("<think>Well.</think><outputs>{not json}</outputs>"),
        4: lambda: completion(outputs(*target, *target, add("Somebody keeps a goat."))),
        5: lambda: completion(outputs(*target)[:-9], finish="length"),
        6: lambda: (
            completion(asked.partition("</think>")[2], reasoning_content="What is known?")
            if not searched
            else completion(outputs(*target).partition("</think>")[2], reasoning_content="That is all.")
        ),
        7: lambda: completion(outputs(update("m999", "Somebody moved."), *target[:1])),
        8: lambda: completion(asked),  # until there are no turns left
    }
    return answers[kind]()


def run(env: DeltaMemEnv, server: Served, client: Any = None, **settings: Any) -> list[Any]:
    """An episode of each task."""
    client = client or vf.EvalClientConfig(base_url=server.url, api_key_var="UNSET")
    context = vf.ModelContext(client=client, model="tiny", sampling=vf.SamplingConfig(**settings))

    async def all_of_them() -> list[Any]:
        slots = [slot for task in env.taskset for slot in env.slots(task)]
        at_once = asyncio.Semaphore(32)
        async with env.serving():
            return await asyncio.gather(*(env.run_slot(slot, context, at_once) for slot in slots))

    return asyncio.run(all_of_them())


@pytest.mark.parametrize("reward", ["paper", "demanding"])
def test_rewards_are_ours_to_the_last_digit_on_300_sessions(tmp_path: Path, reward: str) -> None:
    env = load_environment(write(tmp_path / "sessions.jsonl", SESSIONS), reward=reward, embedder="words")
    own = CachedEmbedder(WordEmbedder())
    with serve(script) as server:
        episodes = run(env, server, temperature=1.0, max_tokens=512)
        sent = server.requests[:]
        policy = EndpointPolicy(LLM(server.url, "tiny"))
        chosen = [item for item in SESSIONS if item.split == "train"]
        rollouts = asyncio.run(run_episodes(chosen, policy, own, CONFIG))
        ours = server.requests[len(sent) :]
    expected = {}
    for item, rollout in zip(chosen, rollouts, strict=True):
        expected[item.key], _ = scorer(reward)(item, rollout.trajectory, own.documents)
    got = {}
    for episode in episodes:
        (trace,) = episode.traces
        assert episode.ok and len(trace.branches) == 1, trace.errors
        got[trace.task.key] = {"reward": trace.reward, **trace.metrics}
    assert got == expected and len(got) >= 300
    # The same questions, so that nothing is learned of one prompt and asked with another.
    assert Counter(json.dumps(body["messages"][:2]) for body in sent) == Counter(json.dumps(b["messages"][:2]) for b in ours)
    assert {body["temperature"] for body in sent} == {1.0} and {body["max_tokens"] for body in sent} == {512}
    rewards = Counter(round(figures["reward"], 1) for figures in got.values())
    assert len(rewards) > 4 and rewards[1.0]  # not all alike


def one_session(tmp_path: Path, **keys: Any) -> DeltaMemEnv:
    item = next(item for item in SESSIONS if item.prior_state and item.operations)
    return load_environment(write(tmp_path / "one.jsonl", [item]), embedder="words", split=item.split, **keys)


def test_a_server_that_takes_turns_apart_is_read_and_known_again(tmp_path: Path) -> None:
    """A parser of thinking and calls, as vLLM and trainers' renderers have them."""
    call = {"id": "call_0", "type": "function", "function": {"name": "search_memory", "arguments": '{"query_list": ["a"]}'}}

    def taken_apart(body: dict[str, Any]) -> Reply:
        if body["messages"][-1]["role"] == "user":
            return completion(None, reasoning_content="What is known?", tool_calls=[call])
        return completion(outputs(add("A goat.")).partition("</think>")[2], reasoning_content="That is all.")

    with serve(taken_apart) as server:
        ((trace,),) = [episode.traces for episode in run(one_session(tmp_path), server)]
        _, second = server.requests
    assert trace.info["trajectory"]["queries"] == [["a"]] and trace.info["trajectory"]["violations"] == []
    assert trace.info["trajectory"]["operations"][0]["text"] == "A goat."
    assert len(trace.branches) == 1 and trace.num_turns == 2  # one sequence for a trainer
    assistant, tool = second["messages"][2:]
    assert assistant["reasoning_content"] == "What is known?" and assistant["tool_calls"][0]["id"] == tool["tool_call_id"]


def bytes_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """A token for each byte, and for each mark of Qwen3's chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE(vocab={byte: number for number, byte in enumerate(alphabet)}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    marks = ("think", "tool_call", "tool_response")
    made.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    made.add_tokens([AddedToken(f"<{end}{mark}>", normalized=False) for mark in marks for end in ("", "/")])
    template = (Path(__file__).parents[3] / "tests" / "qwen3_template.jinja").read_text(encoding="utf-8")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<|im_end|>", chat_template=template)
    tokenizer.save_pretrained(folder)
    return tokenizer


def test_a_trainer_gets_one_sequence_of_the_tokens_that_were_sampled(tmp_path: Path) -> None:
    """verifiers' client for trainers, which speaks to vLLM in tokens and takes turns apart by the model's renderer."""
    tokenizer = bytes_tokenizer(tmp_path)
    env = one_session(tmp_path)
    (item,) = (from_json_line(task.data.session) for task in env.taskset)
    sampled: list[list[int]] = []

    def engine(body: dict[str, Any]) -> Reply:
        asked = search(*(operation.text for operation in item.operations))
        text = outputs(*item.operations) if sampled else asked
        sampled.append(tokenizer.encode(f"{text}<|im_end|>", add_special_tokens=False))
        content = [{"logprob": -0.5, "token": f"token_id:{token}"} for token in sampled[-1]]
        choice = {"index": 0, "token_ids": sampled[-1], "finish_reason": "stop", "logprobs": {"content": content}}
        return Reply({"request_id": "r", "choices": [choice]})

    with serve(engine) as server:
        client = vf.TrainClientConfig(
            base_url=server.url, api_key_var="UNSET", renderer={"name": "qwen3"}, renderer_model_name=str(tmp_path)
        )
        ((trace,),) = [episode.traces for episode in run(env, server, client)]
    assert trace.info["trajectory"]["violations"] == [] and len(trace.branches) == 1
    got = [[token for token, own in zip(one.token_ids, one.mask, strict=True) if own] for one in trace.nodes if one.sampled]
    assert got == sampled and len(got) == 2
    own = CachedEmbedder(WordEmbedder())
    bank = SnapshotBank("a", item.prior_state, own.documents([memory.text for memory in item.prior_state.memories]))
    found = merge_hits(bank.search(own.queries([operation.text for operation in item.operations]), CONFIG.k))
    assert trace.info["trajectory"]["retrieved_ids"] == [[memory.id for memory in found]]
    assert trace.metrics["transition"] == 1.0


def test_services_that_refuse_tool_messages_are_sent_the_users(tmp_path: Path) -> None:
    with serve(lambda body: completion(search("a") if len(body["messages"]) == 2 else outputs())) as server:
        run(one_session(tmp_path, tool_role="user", episode={"k": 1}), server)
        last = server.requests[-1]["messages"][-1]
    assert last["role"] == "user" and last["content"].startswith("<tool_response>\n[{")
    assert len(json.loads(last["content"].split("\n")[1])) == 1  # k memories


@pytest.mark.parametrize("settings", [{}, {"max_turns": 1}])
def test_what_breaks_is_an_error_and_not_a_zero_and_a_limit_is_scored(tmp_path: Path, settings: dict[str, Any]) -> None:
    def breaks(body: dict[str, Any]) -> Reply:
        return completion(search("a")) if len(body["messages"]) == 2 else failure(400, "no")

    with serve(breaks) as server:
        (episode,) = run(one_session(tmp_path, agent=settings), server)
    (trace,) = episode.traces
    assert trace.info["trajectory"]["queries"] == [["a"]]  # what went before is kept
    if settings:
        assert trace.ok and trace.stop_condition == "max_turns" and trace.reward < 0.2
    else:
        assert not episode.ok and "no" in trace.errors[0].message and trace.reward in (None, 0)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"split": "heldout"}, "no session is of the split 'heldout'"),
        ({"reward": "generous"}, "generous"),
        ({"sessions": "none.jsonl"}, "none.jsonl"),
        ({"episode": {"thinking": False}}, "asks for a think block"),
    ],
)
def test_what_cannot_be_loaded_is_one_sentence(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    sessions = write(tmp_path / "one.jsonl", [item for item in SESSIONS if item.split == "train"][:1])
    with pytest.raises(DeltaMemError, match=said):
        list(load_environment(**({"sessions": sessions} | keys)).taskset)


@pytest.mark.slow
def test_the_commands_of_verifiers_find_it_and_score_again(tmp_path: Path) -> None:
    """``vf-eval`` over the module's name, then ``vf-replay`` of its traces by another reward."""
    sessions = write(tmp_path / "sessions.jsonl", SESSIONS[:3])
    taskset = ["--env.taskset.sessions", sessions, "--env.taskset.embedder", "all-MiniLM-L6-v2"]
    model = ["-m", "tiny", "--client.api-key-var", "UNSET"]
    bin_ = Path(sys.executable).parent
    where: Any = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}}
    with serve(lambda body: completion(outputs())) as server:
        command = [bin_ / "vf-eval", PLUGIN, *model, "--client.base-url", server.url, *taskset]
        subprocess.run([*command, "--no-push", "--no-rich", "--output-dir", "out", "-n", "2"], check=True, **where)
    (folder,) = (tmp_path / "out").iterdir()
    episodes = [json.loads(line) for line in (folder / "traces.jsonl").read_text().splitlines()]
    rewards = [trace["rewards"]["reward"]["score"] for episode in episodes for trace in episode.get("traces", [episode])]
    assert len(rewards) == 2 and all(0 <= reward <= 1 for reward in rewards)
    replay = [bin_ / "vf-replay", folder, "--no-rich", "--output-dir", "again", "--taskset.task.reward", "demanding"]
    subprocess.run(replay, check=True, **where)
    lines = (tmp_path / "again" / "traces.jsonl").read_text().splitlines()
    scored = [trace["rewards"]["reward"] for line in lines for trace in json.loads(line).get("traces", [json.loads(line)])]
    assert len(scored) == 2 and all(one["score"] is not None for one in scored)
