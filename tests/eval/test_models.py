from __future__ import annotations

from pathlib import Path

import pytest
from answering_cases import CORRECT, FIELDS, config, request
from scripted_server import completion, present_day, serve, unused_url

from deltamem.embedding import LazyEmbedder
from deltamem.errors import DeltaMemError
from deltamem.llm import seed_of_request
from eval.answer import ExtractiveAnswerer, LLMAnswerer
from eval.benchmark import JudgeSpec
from eval.judge import QUESTION_FIELDS, QUESTION_LABELS
from eval.models import check_models, open_models
from eval.parts import load_prompts, make_answerer, make_judge

FIELDS_OF_ANSWER = ("context", "question")
URL = "http://localhost:1/v1"
LENIENT = JudgeSpec("judge_lenient", QUESTION_FIELDS, QUESTION_LABELS)


async def test_offline_there_is_no_model_and_no_file(tmp_path: Path) -> None:
    offline = config(tmp_path / "out")
    async with open_models(offline) as models:
        assert (models.cache, models.manager, models.answer, models.judge, models.usage()) == (None, None, None, None, {})
        answerer = make_answerer(offline, models, LazyEmbedder(), None)
        assert isinstance(answerer, ExtractiveAnswerer)
        nobody = config(tmp_path / "out", answer__kind="none")
        assert make_answerer(nobody, models, LazyEmbedder(), None) is None
    assert not (tmp_path / "out").exists()


async def test_parts_with_the_same_model_share_a_client_with_the_most_slots(tmp_path: Path) -> None:
    named = {"manager__model": "other", "answer__model": "tiny"}
    settings = {"base_url": URL, "judge__base_url": URL + "/", "judge__slots": 80, **named}
    async with open_models(config(tmp_path / "out", **settings)) as models:
        assert models.answer is models.judge and models.manager is not models.answer
        assert list(models.usage()) == ["manager", "answer+judge"] and models.usage()["manager"]["requests"] == 0
        assert models.answer is not None and models.answer._max_concurrency == 80
        assert models.cache is not None and (tmp_path / "out" / "responses.sqlite").exists()
    async with open_models(config(tmp_path / "out", judge__model="grader", cache="null", **settings)) as models:
        assert list(models.by_parts()) == ["manager", "answer", "judge"] and models.cache is None
    async with open_models(config(tmp_path / "out", judge__api_key_env="JUDGE_KEY", **settings)) as models:
        assert models.answer is not models.judge, "another key may be another account"


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"answer__model": "tiny"}, "answer needs both base_url"),
        ({"answer__kind": "llm", "base_url": URL}, r"answer\.model=<name>"),
        ({"answer__model": "tiny", "base_url": "localhost"}, "is not the URL of an endpoint"),
        ({"answer__model": "tiny", "answer__base_url": URL}, "judge needs both"),
    ],
)
async def test_what_is_missing_is_told(keys: dict[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(DeltaMemError, match=said):
        async with open_models(config(tmp_path / "out", **keys)):
            pass


async def test_answerer_and_judge_work_as_configured(tmp_path: Path) -> None:
    with serve(lambda body: completion(CORRECT)) as server:
        limits = {"answer__max_tokens": 9, "judge__max_tokens": 8}
        limits |= {f"{part}__extra_body__chat_template_kwargs__enable_thinking": False for part in ("answer", "judge")}
        chosen = config(tmp_path / "out", base_url=server.url, answer__model="tiny", seed=3, **limits)
        async with open_models(chosen) as models:
            prompts = load_prompts(chosen, "answer_locomo", FIELDS_OF_ANSWER, {"lenient": LENIENT})
            assert list(prompts.hashes) == ["answer_locomo", "judge_lenient"]
            answerer = make_answerer(chosen, models, LazyEmbedder(), prompts.answer)
            assert isinstance(answerer, LLMAnswerer) and answerer.prompt.name == "answer_locomo"
            assert (await answerer.answer(request("x"), 0)).error is None
            judge = make_judge(chosen, models, "lenient", LENIENT, prompts.judges["lenient"])
            assert (await judge.judge(FIELDS, "c1")).label == "correct"
            assert models.usage()["answer+judge"]["requests"] == 2
        sent = [(body["max_tokens"], body["seed"], body["temperature"]) for body in server.requests]
        seeds = [seed_of_request(3, 0, body["messages"]) for body in server.requests]
        assert sent == [(9, seeds[0], 0.0), (8, seeds[1], 0.0)]
        assert all(body["chat_template_kwargs"] == {"enable_thinking": False} for body in server.requests)


def test_a_prompt_of_ones_own_is_taken_and_checked(tmp_path: Path) -> None:
    own = tmp_path / "mine.md"
    own.write_text("$context $question", encoding="utf-8")
    chosen = config(tmp_path / "out", base_url=URL, answer__model="tiny", answer__prompt=own)
    prompts = load_prompts(chosen, "answer_locomo", FIELDS_OF_ANSWER, {})
    assert prompts.answer is not None and prompts.answer.name == "mine"
    with pytest.raises(DeltaMemError, match=r"mine\.md has .*expected exactly"):
        load_prompts(chosen, "answer_locomo", ("context", "question", "options"), {})


async def test_a_dead_endpoint_is_told_and_a_live_one_is_asked_once(tmp_path: Path) -> None:
    with serve(lambda body: completion("y")) as server:
        keys = {"base_url": server.url, "answer__model": "tiny", "manager__model": "m", "manager__max_retries": 0}
        chosen = config(tmp_path / "out", manager__base_url=unused_url(), **keys)
        async with open_models(chosen) as models:
            with pytest.raises(DeltaMemError, match="cannot be reached"):
                await check_models(chosen, models)
            await check_models(chosen, models, ("answer", "judge"))
        assert [body["model"] for body in server.requests] == ["tiny"] * 2


@pytest.mark.parametrize("part", ["manager", "answer", "judge"])
async def test_a_model_that_may_write_its_whole_window_is_refused_before_it_is_asked(part: str, tmp_path: Path) -> None:
    keys = {f"{one}__max_tokens": 4096 if one == part else 4095 for one in ("manager", "answer", "judge")}
    with serve(lambda body: completion("y"), [{"id": "tiny", "max_model_len": 4096}]) as server:
        named = {"base_url": server.url, "answer__model": "tiny", "manager__model": "tiny"}
        chosen = config(tmp_path / "out", **named, **keys)
        async with open_models(chosen) as models:
            with pytest.raises(DeltaMemError, match=rf"{part}\.max_tokens=4096 leaves no room .* of 4096 tokens"):
                await check_models(chosen, models)


async def test_what_an_endpoint_refuses_is_learned_before_the_run_and_among_its_warnings(tmp_path: Path) -> None:
    with serve(present_day(completion(CORRECT))) as server:
        keys = {"base_url": server.url, "answer__model": "tiny", "judge__temperature": "null", "judge__max_tokens": "null"}
        chosen = config(tmp_path / "out", seed=3, **keys)
        async with open_models(chosen) as models:
            hashes = await check_models(chosen, models)
            checked = len(server.requests)
            prompts = load_prompts(chosen, "answer_locomo", FIELDS_OF_ANSWER, {"lenient": LENIENT})
            answerer = make_answerer(chosen, models, LazyEmbedder(), prompts.answer)
            assert answerer is not None and (await answerer.answer(request("x"), 0)).error is None
            judge = make_judge(chosen, models, "lenient", LENIENT, prompts.judges["lenient"])
            assert (await judge.judge(FIELDS, "c1")).label == "correct"
            (warning,) = models.warnings()
            assert warning == (
                "the endpoint of answer+judge refuses what was configured: its requests went with max_completion_tokens for "
                "max_tokens, without seed, without temperature, with at most 4096 tokens of an answer"
            )
            assert await check_models(chosen, models) == hashes, "a reply at another temperature is compared with none"
    sent = [sorted({"max_completion_tokens", "temperature", "seed"} & set(body)) for body in server.requests]
    assert checked == 3 and sent[2] == ["max_completion_tokens"]
    assert sent[checked + 2 : checked + 4] == [["max_completion_tokens"], []]  # after the seed and the length are refused
