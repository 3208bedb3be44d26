"""The agent loop with a scripted server: masks, search, limits, refusals, failures, info."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from chat_cases import QWEN3, qwen_tokenizer
from hypothesis import given
from hypothesis import strategies as st
from lazy import lazy, names
from loop_cases import ABORTED, CALL, CHATS, FIRST_WEIGHTS, NEVER, Chat, answer, make_loop, run
from preflight_cases import placed
from training_cases import labelled_session

from deltamem.episode import REFUSALS, EpisodeConfig, Violation, format_memories
from deltamem.sessions import to_json_line
from deltamem.training.config import Overlong, TrainSettings
from deltamem.training.launch import agent_loop_config
from deltamem.training.metrics import ROLLOUT_INFO
from rewards.scorer import DeltaMemScorer

GenerationConfig = names("transformers", "GenerationConfig")
AgentLoopOutput = names("verl.experimental.agent_loop.agent_loop", "AgentLoopOutput")
QwenContinuousTokenBuilder = names("verl.utils.tokenizer.continuous_token", "QwenContinuousTokenBuilder")
module = lazy("deltamem.training.agent_loop")
Services, services, turn_seed = names("deltamem.training.agent_loop", "Services services turn_seed")

TINY, QWEN, DIRECT = CHATS["tiny"], CHATS["qwen3"], CHATS["qwen3_direct"]
every_chat = pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)


def written(output: AgentLoopOutput) -> list[int]:
    """The tokens that are learnt from."""
    return [token for token, own in zip(output.response_ids, output.response_mask, strict=True) if own]


def sum_of(answers: list[list[int]]) -> list[int]:
    return [token for ids in answers for token in ids]


@every_chat
@pytest.mark.parametrize("turns", [1, 3])
async def test_tokens_of_the_model_and_nothing_else_are_learnt_from(chat: Chat, turns: int) -> None:
    loop, server, scorer = make_loop(chat, [*[chat.search] * (turns - 1), chat.final])
    assert isinstance(loop.continuous_token_builder, QwenContinuousTokenBuilder)
    output = await run(loop)
    assert len(server.answers) == turns
    assert written(output) == sum_of(server.answers)
    assert output.response_logprobs == [-0.5 * own for own in output.response_mask]

    # Token in, token out: each prompt is the one before, the model's tokens, and the rendered answer of the tool.
    found = format_memories([labelled_session(0).prior_state["m1"]], EpisodeConfig().memory_fields)  # k = 1
    before, after = chat.results
    delta = f"\n<|im_start|>user\n{before}{found}{after}<|im_end|>\n<|im_start|>assistant\n{chat.opening}"
    rendered = chat.tokenizer.encode(delta, add_special_tokens=False)
    assert server.prompts[0] == output.prompt_ids
    for number, prompt in enumerate(server.prompts[1:]):
        assert prompt == [*server.prompts[number], *server.answers[number], *rendered]
    assert output.prompt_ids + output.response_ids == server.prompts[-1] + server.answers[-1]

    assert scorer.seen.violations == ()
    assert scorer.seen.retrieved_ids == (("m1",),) * (turns - 1)
    assert [operation.text for operation in scorer.seen.operations or ()] == ["Person0 has a cat."]
    turns_read = [message["content"] for message in scorer.seen.messages if message["role"] == "assistant"]
    assert turns_read == [*[chat.opening + chat.search] * (turns - 1), chat.opening + chat.final]
    assert output.reward_score == 0.25
    assert output.extra_fields["reward_extra_info"] == {"format": 1.0, "count/episodes": 1.0, "failure": 0.0}
    assert output.extra_fields["min_global_steps"] == output.extra_fields["max_global_steps"] == FIRST_WEIGHTS
    assert output.as_dict()["rm_scores"].sum() == pytest.approx(0.25)
    assert output.num_turns == 2 * turns


async def test_tokens_are_never_made_of_text_again() -> None:
    tokenizer = QWEN.tokenizer
    spelled = [tokenizer.encode(char, add_special_tokens=False) for char in QWEN.search]
    ids = [*sum_of(spelled), tokenizer.eos_token_id]
    assert ids[:-1] != tokenizer.encode(QWEN.search, add_special_tokens=False)
    loop, server, scorer = make_loop(QWEN, [ids, QWEN.final])
    output = await run(loop)
    assert server.prompts[1][len(server.prompts[0]) :][: len(ids)] == ids
    assert written(output)[: len(ids)] == ids
    assert scorer.seen.violations == ()


@pytest.mark.parametrize("eos", ["<|im_end|>", "<|endoftext|>"])
async def test_a_turn_may_end_with_any_end_that_the_model_has(eos: str, tmp_path: Path) -> None:
    tokenizer = qwen_tokenizer(QWEN3, eos)
    text, end, newline = (tokenizer.convert_tokens_to_ids(mark) for mark in ("<|endoftext|>", "<|im_end|>", "Ċ"))
    GenerationConfig(eos_token_id=[end, text]).save_pretrained(tmp_path)
    search = [*tokenizer.encode(QWEN.search, add_special_tokens=False), text]
    final = [*tokenizer.encode(QWEN.final, add_special_tokens=False), end]
    loop, server, scorer = make_loop(QWEN, [search, final], tokenizer=tokenizer, model=str(tmp_path))
    output = await run(loop)
    assert server.sampling[0]["stop_token_ids"] == sorted({text, end})
    # The token that was sampled stays; the end that the template writes follows, and is not learnt from.
    assert server.prompts[1][len(server.prompts[0]) :][: len(search) + 2] == [*search, end, newline]
    assert written(output) == [*search, *final]
    assert output.response_mask[len(search)] == 0 and (output.response_logprobs or [])[len(search)] == 0.0
    assert scorer.seen.violations == ()


async def test_tool_answer_that_does_not_fit_ends_the_episode() -> None:
    search_tokens = len(TINY.tokenizer.encode(TINY.search, add_special_tokens=False)) + 1
    loop, server, scorer = make_loop(TINY, [TINY.search, "never"], response_length=search_tokens + 5)
    output = await run(loop)
    assert len(server.answers) == 1
    assert output.response_ids == server.answers[0]
    assert output.response_mask == [1] * search_tokens
    assert Violation.TOKEN_LIMIT in scorer.seen.violations
    assert scorer.seen.operations is None
    assert output.extra_fields[ROLLOUT_INFO]["truncated"]


@given(st.integers(1, 4096), st.integers(1, 4096), st.floats(0.01, 1.0), st.integers(0, 4096))
def test_the_penalty_for_length_grows_from_nothing_to_its_weight(limit: int, buffer: int, weight: float, used: int) -> None:
    overlong = Overlong(buffer=buffer, weight=weight)
    here, more = (overlong.penalty(tokens, limit) for tokens in (used, used + 1))
    assert 0.0 <= here <= more <= weight
    assert more - here <= weight / buffer + 1e-12, "no cliff"
    assert (here == 0.0) == (used <= limit - buffer)
    assert (here == weight) == (used >= limit)


async def test_only_training_rollouts_near_a_limit_lose_reward() -> None:
    search, final = (len(TINY.tokenizer.encode(text, add_special_tokens=False)) + 1 for text in (TINY.search, TINY.final))
    longest = max(search, final)

    async def earned(overlong: Overlong | None, split: str = "train", **limits: int) -> tuple[float, dict[str, float]]:
        loop, _, _ = make_loop(TINY, [TINY.search, TINY.final], overlong=overlong, **limits)
        output = await run(loop, split=split)
        return output.reward_score, output.extra_fields["reward_extra_info"]

    plain, figures = await earned(None, turn_tokens=longest + 1)
    assert plain == 0.25 and "overlong" not in figures
    # One token below the limit of a turn, of a buffer of four.
    reward, figures = await earned(Overlong(buffer=4, weight=0.2), turn_tokens=longest + 1)
    assert (reward, figures["overlong"]) == (pytest.approx(0.25 - 0.15), pytest.approx(0.15))
    reward, heldout = await earned(Overlong(buffer=4, weight=0.2), "heldout", turn_tokens=longest + 1)
    assert reward == 0.25 and "overlong" not in heldout
    assert (await earned(Overlong(buffer=4, weight=0.2), turn_tokens=longest + 4))[0] == 0.25
    # Cut in a turn, and a search whose answer does not fit any more.
    for limits in ({"turn_tokens": longest - 1}, {"response_length": search + 5}):
        reward, figures = await earned(Overlong(buffer=4, weight=0.2), **limits)
        assert (reward, figures["overlong"]) == (pytest.approx(0.05), 0.2)


@pytest.mark.parametrize("limit", ["turn_tokens", "response_length"])
async def test_turn_cut_at_a_limit(limit: str) -> None:
    loop, server, scorer = make_loop(QWEN, [QWEN.search], **{limit: 10})
    output = await run(loop)
    assert output.response_ids == server.answers[0] and len(output.response_ids) == 10
    assert {Violation.TOKEN_LIMIT, Violation.NO_ACTION} <= set(scorer.seen.violations)
    # An answer that fits exactly is whole.
    tokens = len(QWEN.tokenizer.encode(QWEN.final, add_special_tokens=False)) + 1
    loop, _, scorer = make_loop(QWEN, [QWEN.final], **{limit: tokens})
    assert len((await run(loop)).response_ids) == tokens and scorer.seen.violations == ()


async def test_window_of_the_server_is_kept() -> None:
    loop, server, _ = make_loop(QWEN, [QWEN.final])
    await run(loop)
    prompt = len(server.prompts[0])
    loop, server, scorer = make_loop(QWEN, [QWEN.search, QWEN.final], max_model_len=prompt + 20)
    output = await run(loop)
    assert server.sampling[0]["max_tokens"] == 20 == len(output.response_ids)
    assert Violation.TOKEN_LIMIT in scorer.seen.violations
    # A prompt that fits exactly has no room for a response; one that fits max_prompt_length exactly has.
    loop, _, _ = make_loop(QWEN, [QWEN.final], max_model_len=prompt)
    assert f"max_model_len={prompt}" in (await run(loop)).extra_fields["failure"]
    loop, _, _ = make_loop(QWEN, [QWEN.final], prompt_length=prompt)
    assert (await run(loop)).extra_fields["failure"] is None


@pytest.mark.parametrize(("chat", "text"), [(TINY, answer() + "<|im_start|>"), (DIRECT, f"<think>hm</think>{DIRECT.final}")])
async def test_stray_special_tokens_and_forbidden_thoughts_cost_the_format(chat: Chat, text: str) -> None:
    loop, _, scorer = make_loop(chat, [text])
    await run(loop)
    assert Violation.TEXT_OUTSIDE_TAGS in scorer.seen.violations


@every_chat
async def test_unreadable_turn_is_answered_by_an_error(chat: Chat) -> None:
    broken = chat.search.replace("search_memory", "find")
    loop, server, scorer = make_loop(chat, [broken, chat.search, chat.final], max_invalid_calls=1)
    output = await run(loop)
    assert written(output) == sum_of(server.answers) and len(server.answers) == 3
    told = chat.tokenizer.decode(server.prompts[1][len(server.prompts[0]) + len(server.answers[0]) :])
    before, after = chat.results
    assert f'{before}{{"error": "{REFUSALS[Violation.UNKNOWN_TOOL]}"}}{after}' in told
    assert scorer.seen.violations == (Violation.UNKNOWN_TOOL,)
    assert scorer.seen.operations is not None and scorer.seen.retrieved_ids == (("m1",),)
    assert output.extra_fields[ROLLOUT_INFO]["turns"] == 3


@pytest.mark.parametrize(
    ("chat", "script", "options", "session", "reason"),
    [
        (TINY, [TINY.search], {}, None, "IndexError"),
        (TINY, [TINY.search], {"prompt_length": 20}, None, "max_prompt_length=20"),
        (TINY, [TINY.search], {}, "{}", "DeltaMemError"),
        (TINY, [[]], {}, None, "broke a turn off after 0 tokens"),
        # What broke is not punished for its length.
        (TINY, [ABORTED], {"overlong": Overlong(buffer=512, weight=0.5)}, None, "broke a turn off after 2 tokens (aborted)"),
        (Chat(QWEN3, {"enable_thinking": False}, "", "", ""), [CALL], {}, None, "empty think block"),
        (TINY, [TINY.search, NEVER], {"seconds": 0.3}, None, "the episode was given up after 0.005 minutes; deltamem.stall"),
    ],
)
async def test_failures_become_counted_trajectories_without_gradient(chat, script, options, session, reason):
    loop, _, scorer = make_loop(chat, script, **options)
    output = await run(loop, session, split="heldout")
    assert scorer.trajectory is None
    assert reason in output.extra_fields["failure"]
    assert output.extra_fields["reward_extra_info"] == {"failure": 1.0}
    assert output.reward_score == 0.0
    assert sum(output.response_mask) == 0
    assert len(output.response_ids) == len(output.response_mask) == len(output.response_logprobs or []) == 1
    # A prompt that is too long for the trainer is not handed to it.
    assert 1 <= len(output.prompt_ids) <= loop.rollout_config.prompt_length
    assert output.extra_fields["max_global_steps"] == 6
    assert output.as_dict()["rm_scores"].shape == output.as_dict()["responses"].shape
    info = output.extra_fields[ROLLOUT_INFO]
    assert info["heldout"] and (info["turns"], info["model_tokens"], info["tool_tokens"]) == (0, 0, 0)


@pytest.mark.parametrize("script", [[TINY.search, TINY.final], [TINY.search]])
async def test_without_log_probs_there_are_none(script: list[str]) -> None:
    loop, _, _ = make_loop(TINY, script)
    output = await run(loop, log_probs=False)
    assert output.response_logprobs is None
    assert "rollout_log_probs" not in output.as_dict()


async def test_info_of_a_rollout() -> None:
    loop, _, scorer = make_loop(QWEN, [QWEN.search, QWEN.final], shown_sessions=2)
    line = to_json_line(labelled_session(0))
    output = await run(loop, split="heldout", index=1)
    assert scorer.threads and "MainThread" not in scorer.threads, "scoring leaves the event loop alone"
    info = output.extra_fields[ROLLOUT_INFO]
    expected = {"key": "p0/0", "heldout": True, "truncated": False, "turns": 2, "queries": 1, "retrieved": 1}
    assert info.items() >= expected.items()
    assert info["model_tokens"] == len(written(output))
    assert info["model_tokens"] + info["tool_tokens"] == len(output.response_ids)
    assert info["seconds"].keys() == {"generate", "search", "reward"} and min(info["seconds"].values()) > 0
    kept = info["generation"]
    assert kept["session"] == line
    assert [turn["role"] for turn in kept["turns"]] == ["assistant", "tool", "assistant"]
    assert (kept["queries"], kept["retrieved_ids"]) == ([["home"]], [["m1"]])
    assert kept["operations"] == [{"event": "ADD", "text": "Person0 has a cat.", "target_memory_id": None}]
    assert (kept["violations"], kept["score"]) == ([], {"reward": 0.25})


async def test_only_few_episodes_are_shown() -> None:
    for split, rollout, index in (("train", 0, 0), ("heldout", 1, 0), ("heldout", 0, 2)):
        loop, _, _ = make_loop(TINY, [TINY.final], shown_sessions=2)
        output = await run(loop, split=split, rollout=rollout, index=index)
        assert output.extra_fields[ROLLOUT_INFO]["generation"] is None


async def test_every_turn_has_a_seed_of_its_own_if_asked() -> None:
    loop, server, _ = make_loop(TINY, [TINY.search, TINY.final], seed=3)
    await run(loop, rollout=5)
    assert [asked["seed"] for asked in server.sampling] == [turn_seed(3, "p0/0", 7, 5, turn) for turn in (0, 1)]
    loop, server, _ = make_loop(TINY, [TINY.final])
    await run(loop)
    assert "seed" not in server.sampling[0]


async def test_rollouts_of_a_prompt_ask_the_same_engine_which_has_its_cache() -> None:
    asked: set[str] = set()
    for number in range(2):
        loop, server, _ = make_loop(TINY, [TINY.search, TINY.final])
        await run(loop, rollout=number)
        asked |= set(server.requests)
    assert asked == {"of the prompt"}
    # There verl hands the name on to vLLM, which takes each once.
    loop, server, _ = make_loop(TINY, [TINY.search, TINY.final])
    loop.rollout_config.full_determinism = True
    await run(loop)
    assert asked.isdisjoint(server.requests)


def test_seeds_differ_in_all_that_names_a_turn() -> None:
    seeds = {
        turn_seed(seed, key, step, rollout, turn)
        for seed in (1, 2)
        for key in ("p0/0", "p0/1")
        for step in (1, 2)
        for rollout in (0, 1)
        for turn in (0, 1)
    }
    assert len(seeds) == 32 and all(0 <= seed < 2**63 for seed in seeds)
    assert turn_seed(1, "p0/0", 1, 0, 0) == turn_seed(1, "p0/0", 1, 0, 0)


marks = st.sampled_from(["<|im_start|>", "<think>", "</think>", "<tool_call>", "</tool_response>", "<outputs>", "\n", "家"])
pieces = st.one_of(marks, st.text(max_size=8), st.sampled_from([CALL, answer()]))


@st.composite
def turns(draw: st.DrawFn, chat: Chat) -> list[int]:
    """What a model might write: sense, nonsense or a mixture, as text or as any tokens, ended in any way."""
    tokenizer = chat.tokenizer
    text = draw(st.one_of(st.sampled_from([chat.search, chat.final]), st.lists(pieces, max_size=6).map("".join)))
    ids = tokenizer.encode(text, add_special_tokens=False)
    ids += draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=4))
    end = draw(st.sampled_from([["<|im_end|>"], ["<|im_end|>"], ["<|endoftext|>"], []]))
    return [*ids, *tokenizer.convert_tokens_to_ids(end)] or [0]


@st.composite
def rollouts(draw: st.DrawFn) -> tuple[Chat, list[list[int]], dict[str, int]]:
    chat = draw(st.sampled_from(list(CHATS.values())))
    max_turns = draw(st.integers(1, 4))
    script = draw(st.lists(turns(chat), min_size=max_turns, max_size=max_turns))
    return (
        chat,
        script,
        {
            "max_turns": max_turns,
            "max_invalid_calls": draw(st.integers(0, 3)),
            "turn_tokens": draw(st.integers(1, 200)),
            "response_length": draw(st.integers(1, 600)),
            "max_model_len": draw(st.integers(200, 900)),
        },
    )


@given(rollouts())
def test_any_rollout_ends_well(rollout: tuple[Chat, list[list[int]], dict[str, int]]) -> None:
    chat, script, options = rollout

    async def play() -> None:
        loop, server, _ = make_loop(chat, script, **options)
        output = await run(loop)
        assert output.extra_fields["failure"] is None
        assert written(output) == sum_of(server.answers)
        assert len(output.response_ids) == len(output.response_mask) == len(output.response_logprobs or [])
        assert 1 <= len(output.response_ids) <= options["response_length"]
        assert len(output.prompt_ids + output.response_ids) <= options["max_model_len"]
        assert all(len(ids) <= options["turn_tokens"] for ids in server.answers)
        so_far: list[int] = []
        for prompt, ids in zip(server.prompts, server.answers, strict=True):
            assert prompt[: len(so_far)] == so_far
            so_far = prompt + ids
        assert output.prompt_ids + output.response_ids == so_far
        assert output.as_dict()["responses"].shape == output.as_dict()["response_mask"].shape

    asyncio.run(play())


def sent(monkeypatch: pytest.MonkeyPatch, **values: Any) -> tuple[TrainSettings, Services]:
    given = {f"deltamem.{key.replace('__', '.')}": value for key, value in values.items()}
    settings = placed(Path("/"), "+experiment=tiny", values=given)[1]
    monkeypatch.setattr("deltamem.training.agent_loop.connect", lambda **asked: asked)
    return settings, services(str(agent_loop_config(settings)[0].settings))


def test_settings_reach_the_rollouts(monkeypatch: pytest.MonkeyPatch) -> None:
    episode = {"episode__thinking": False, "episode__max_invalid_calls": 2}
    settings, found = sent(monkeypatch, seed=5, seeded_rollouts=True, shown_sessions=3, turn_tokens=99, **episode)
    assert found.episode == settings.episode.config()
    assert (found.episode.thinking, found.episode.max_invalid_calls) == (False, 2)
    assert (found.turn_tokens, found.seed, found.shown_sessions) == (99, 5, 3)
    assert found.overlong is None
    assert sent(monkeypatch, overlong={"buffer": 20, "weight": 0.3})[1].overlong == Overlong(buffer=20, weight=0.3)
    assert sent(monkeypatch, seeded_rollouts=False)[1].seed is None, "the server draws"


async def test_the_reward_of_the_configuration_scores_and_explains(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = sent(monkeypatch)[1].scorer
    assert isinstance(scorer, DeltaMemScorer)
    chat = CHATS["qwen3"]
    loop, _, _ = make_loop(chat, [chat.search, chat.final], shown_sessions=1)
    loop._shared = dataclasses.replace(loop._shared, scorer=scorer)
    output = await run(loop, split="heldout")
    assert output.extra_fields["failure"] is None
    # The addition is made, the update is not: its memory was found all the same.
    figures = output.extra_fields["reward_extra_info"]
    assert (figures["format"], figures["retrieval"]) == (1.0, 1.0)
    assert 0.2 < (output.reward_score or 0.0) < 1.0
    kept = json.loads(json.dumps(output.extra_fields[ROLLOUT_INFO]["generation"]))
    assert kept["score"]["reward"] == pytest.approx(output.reward_score)
