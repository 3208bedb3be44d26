"""From passages to an answer: prompts, the budget of context tokens, both answerers, and what is asked again."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

import pytest
from answering_cases import answerer, block, contents, model, prompt, request
from episode_texts import WordEmbedder
from hypothesis import given
from hypothesis import strategies as st
from scripted_server import Reply, completion, failure, replies, too_long

from deltamem.errors import DeltaMemError
from deltamem.llm import seed_of_request
from deltamem.prompts import Prompt
from deltamem.window import estimate_tokens
from eval.answer import (
    AnswerRequest,
    ContextBlock,
    ExtractiveAnswerer,
    Judge,
    QAGrader,
    cut_to_budget,
    load_prompt,
    render_all,
)
from eval.judge import ABSTENTION_FIELDS, ABSTENTION_LABELS, QUESTION_FIELDS, QUESTION_LABELS
from eval.metrics import abstains
from eval.records import AnswerRecord, Cost, QuestionRecord, Verdict
from eval.systems.base import Passage
from eval.tokens import TokenCount


@pytest.mark.parametrize(
    ("name", "fields", "said"),
    [
        ("answer_locomo", ("context", "question"), ["No information available"]),  # the official words of abstention
        ("judge_lenient", QUESTION_FIELDS, [f'"{label}"' for label in QUESTION_LABELS]),
        ("judge_strict", QUESTION_FIELDS, [f'"{label}"' for label in QUESTION_LABELS]),
        ("judge_abstention", ABSTENTION_FIELDS, [f'"{label}"' for label in ABSTENTION_LABELS]),
    ],
)
def test_own_prompts_take_their_fields(name: str, fields: Collection[str], said: list[str]) -> None:
    own = load_prompt(name, fields)
    filled = own.fill(**{one: f"<{one}>" for one in fields})
    assert all(filled.count(f"<{one}>") == 1 for one in fields) and "$" not in filled
    assert own.name == name and own.sha256 == hashlib.sha256(own.text.encode()).hexdigest()
    assert all(words in own.text for words in said)


@given(st.text(), st.text(), st.text())
def test_contents_are_never_expanded(gold: str, question: str, answer: str) -> None:
    odd = f"${{gold}} $answer {{0}} %s $$ {question}"
    filled = Prompt("x", "<$gold|${question}|$answer|$$>", "").fill(gold=gold, question=odd, answer=answer)
    assert filled == f"<{gold}|{odd}|{answer}|$>"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"Ask: $question", r"mine\.md has \$question; expected exactly \$context, \$question"),
        (b"$context $question $extra", r"has \$context, \$extra, \$question; expected exactly"),
        (b"none", "has no fields; expected"),
        (b"$context $question 5 $", r"write \$\$ for a dollar sign"),
        (b"\xff\xfe caf\xe9", r"mine\.md: not UTF-8 text"),
        (None, r"mine\.md cannot be read"),
    ],
)
def test_a_file_that_is_no_such_prompt_is_refused(text: bytes | None, said: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.md"
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(DeltaMemError, match=said):
        load_prompt(str(path), ("context", "question"))


def test_a_name_that_is_no_prompt_lists_those_that_are() -> None:
    with pytest.raises(DeltaMemError, match=r"'answer_lokomo' does not exist; there are: .*answer_locomo"):
        load_prompt("answer_lokomo", ())


def test_passages_are_lines_after_their_date() -> None:
    two = render_all([block("Ana moved.", "Two\nlines."), block("x", title="", time=None)], with_time=True)
    assert two == "Memories of Ana:\n[8 May 2023] Ana moved.\n[8 May 2023] Two\nlines.\n\nx"
    assert render_all([block("Ana moved.", title="")], with_time=False) == "Ana moved."


def test_blocks_take_turns_until_the_budget_is_full() -> None:
    """Titles 6 bytes with line end; a line 9 bytes; 2 bytes between blocks; then 10 bytes each: 15 + 17 + 10 + 10 = 52."""
    blocks = [block("a" * 9, "b" * 9, "c" * 9, title="first"), block("d" * 9, "e" * 9, title="other")]
    shown = cut_to_budget(blocks, 17, with_time=False)  # 51 bytes
    assert [[p.text[0] for p in one.passages] for one in shown.blocks] == [["a", "b"], ["d"]]
    assert (shown.passages, shown.tokens) == (3, 14)
    shown = cut_to_budget(blocks, 18, with_time=False)  # 54 bytes
    assert [[p.text[0] for p in one.passages] for one in shown.blocks] == [["a", "b"], ["d", "e"]]


def test_a_passage_that_does_not_fit_ends_its_block_only() -> None:
    long, short = block("x" * 400, "y", title=""), block("z", "z", title="")
    shown = cut_to_budget([long, short], 20, with_time=False)
    assert [one.passages for one in shown.blocks] == [short.passages]


def test_what_a_system_does_not_rank_is_cut_first_and_then_shown_by_time() -> None:
    """The newest are kept, and read from the oldest of them on."""
    days = [Passage(f"{day:02}" * 4 + "\n", datetime(2023, 5, day)) for day in (4, 3, 2, 1)]
    cut = cut_to_budget([ContextBlock("", tuple(days), by_time=True)], 10, with_time=False)  # 30 bytes, 10 each
    assert [passage.time.day for passage in cut.blocks[0].passages] == [2, 3, 4]
    undated = ContextBlock("", (days[0], Passage("x"), days[1]), by_time=True)
    assert cut_to_budget([undated], 100, with_time=False).blocks == (undated,)


PASSAGES = st.builds(Passage, st.text(max_size=40), st.none() | st.datetimes(datetime(1990, 1, 1), datetime(2040, 1, 1)))
BLOCKS = st.lists(st.builds(ContextBlock, st.text(max_size=12), st.lists(PASSAGES, max_size=6).map(tuple)), max_size=4)


@given(BLOCKS, st.integers(0, 120), st.booleans())
def test_the_budget_is_kept_and_every_block_shows_its_first_passages(
    blocks: list[ContextBlock], budget: int, with_time: bool
) -> None:
    shown = cut_to_budget(blocks, budget, with_time=with_time)
    assert shown.tokens == estimate_tokens(render_all(shown.blocks, with_time=with_time)) <= budget
    assert shown.passages == sum(len(one.passages) for one in shown.blocks)
    rest = iter(blocks)
    for one in shown.blocks:
        assert one.passages
        assert any(whole.title == one.title and whole.passages[: len(one.passages)] == one.passages for whole in rest), (
            "blocks in order, passages from the front"
        )


def test_what_is_ranked_may_end_with_the_last_whole_sentence_that_fits() -> None:
    one, two = block("One is here. Dr. Two is there! It goes on", "Six.", title=""), block("Seven.", title="")
    for budget, texts in ((5, ["One is here."]), (11, ["One is here. Dr. Two is there!"]), (3, [])):
        shown = cut_to_budget([one], budget, with_time=False, sentences=True)
        assert [passage.text for own in shown.blocks for passage in own.passages] == texts
        assert shown.passages == len(texts) and shown.tokens <= budget
    shown = cut_to_budget([one, two], 8, with_time=False, sentences=True)
    assert [own.passages[0].text for own in shown.blocks] == ["One is here.", "Seven."], "the other block goes on"
    by_time = replace(one, by_time=True)
    assert not cut_to_budget([by_time], 5, with_time=False, sentences=True).blocks, "the end of an old session is no gap"


def test_tokens_are_those_of_a_tokenizer_also_where_it_makes_more_of_the_whole() -> None:
    words = TokenCount("words", lambda text: len(text.split()))
    shown = cut_to_budget([block("a b c", "d e. F", "g", title="")], 5, with_time=False, counted=words, sentences=True)
    assert [passage.text for passage in shown.blocks[0].passages] == ["a b c", "d e."] and shown.tokens == 5
    odd = TokenCount("odd", lambda text: len(text.split()) + 3 * (len(text.splitlines()) > 2))
    shown = cut_to_budget([block("a b", "c d", "e f", title="")], 6, with_time=False, counted=odd)
    assert (shown.passages, shown.tokens) == (2, 4)


@given(BLOCKS, st.booleans())
def test_everything_is_shown_if_it_fits_exactly(blocks: list[ContextBlock], with_time: bool) -> None:
    filled = tuple(one for one in blocks if one.passages)
    needed = estimate_tokens(render_all(filled, with_time=with_time))
    assert cut_to_budget(blocks, needed, with_time=with_time).blocks == filled
    if needed:
        assert cut_to_budget(blocks, needed - 1, with_time=with_time).blocks != filled


async def test_one_message_holds_the_memories_and_the_question() -> None:
    async with model(lambda body: completion(" 8 May 2023\n", tokens=4, prompt_tokens=90)) as (llm, server):
        record = await answerer(llm).answer(request("Ana moved for $5 {today}.", question="When did $context move?"), 0)
    assert (record.text, record.error) == ("8 May 2023", None)
    assert record.cost.seconds > 0
    assert record.cost.model_copy(update={"seconds": 0.0}) == Cost(calls=1, prompt_tokens=90, completion_tokens=4)
    (body,) = server.requests
    (message,) = body["messages"]
    assert message["role"] == "user" and (body["temperature"], body["max_tokens"]) == (0.0, 32)
    assert body["seed"] == seed_of_request(5, 0, [message])
    assert "Memories of Ana:\n[8 May 2023] Ana moved for $5 {today}.\n" in message["content"]
    assert "When did $context move?" in message["content"]


async def test_options_and_what_was_not_found_are_shown() -> None:
    async with model(lambda body: completion("(b)")) as (llm, server):
        asked = request(question="Q", options=("(a) Tea.", "(b) Milk."))
        await answerer(llm, prompt("$context|$question|$options")).answer(asked, 0)
    assert contents(server) == ["(nothing was found)|Q|(a) Tea.\n(b) Milk."]


async def test_thinking_is_no_answer_and_a_cut_answer_is_one() -> None:
    thoughts = (
        "<think>June? No.</think>\n{}",
        "June? No.</think>{}",
        "{} <think>or June",
        "<think>a</think>b<think>c</think> {}",
    )
    said = [completion(one.format("8 May")) for one in thoughts]
    async with model(replies(*said, completion("8 May 20", finish="length"))) as (llm, _):
        kept = [(await answerer(llm).answer(request("x"), 0)).text for _ in range(5)]
    assert kept == ["8 May"] * 4 + ["8 May 20"]


CUT = (
    "the answerer returned nothing but thinking, which was stopped at 32 tokens: raise answer.max_tokens, or turn thinking "
    "off, for example (vLLM) with +answer.extra_body.chat_template_kwargs.enable_thinking=false"
)


SILENCE = (
    (completion(None), "the answerer returned nothing"),
    (completion(" \n"), "the answerer returned nothing"),
    (completion("", finish="length"), "the answerer returned nothing (stopped at 32 tokens)"),
    (completion("<think>So many", finish="length"), CUT),
    (completion(None, finish="length", reasoning_content="So many"), CUT),
    (completion(None, finish="length", reasoning="So many"), CUT),
    (completion("", reasoning="That is all."), "the answerer returned nothing but thinking"),
)


async def test_an_answer_without_a_word_is_drawn_once_more_and_then_an_error() -> None:
    script = [reply for nothing, _ in SILENCE for reply in (nothing, completion("8 May"), nothing, nothing)]
    async with model(replies(*script)) as (llm, server):
        for _, said in SILENCE:
            record = await answerer(llm).answer(request("x"), 0)
            assert (record.text, record.cost.calls) == ("8 May", 2)
            record = await answerer(llm).answer(request("x"), 1)
            assert (record.text, record.error, record.silent, record.cost.calls) == (None, said, True, 2)
            assert record.cut == ("stopped" in said)
        assert len({body["seed"] for body in server.requests}) == 4


async def test_a_failing_endpoint_is_an_error_record() -> None:
    for reply, said in (
        (failure(500), "500"),
        (failure(401, "no key"), "no key"),
        (too_long(), "maximum context length"),
        (Reply(b"<html>"), "<html>"),
    ):
        async with model(lambda body, reply=reply: reply) as (llm, _):
            record = await answerer(llm).answer(request("x"), 0)
        assert record.text is None and record.error is not None and said in record.error and "endpoint" in record.error
        assert not record.silent, "no doing of the answerer"


async def test_runs_and_scopes_are_kept_apart_and_a_second_run_costs_nothing(tmp_path: Path) -> None:
    async with model(lambda body: completion(f"answer {body['seed']}"), tmp_path / "cache") as (llm, server):
        asked = [(request("x"), 0), (request("x"), 1), (request("x", scope="c2"), 0)]
        first = [await answerer(llm).answer(*one) for one in asked]
        seeds = [seed_of_request(5, run, server.requests[0]["messages"]) for run in (0, 1, 0)]
        assert [record.text for record in first] == [f"answer {seed}" for seed in seeds] and seeds[0] != seeds[1]
        again = [await answerer(llm).answer(*one) for one in asked]
        assert [record.text for record in again] == [record.text for record in first]
        assert [(record.cost.calls, record.cost.cached, record.cost.seconds) for record in again] == [(1, 1, 0.0)] * 3
        assert len(server.requests) == 3


def extractive(*, with_time: bool = True) -> ExtractiveAnswerer:
    return ExtractiveAnswerer(WordEmbedder(), with_time=with_time, timed=asyncio.Semaphore(1))


MEMORIES = ("It rains. Ana plays the violin.\nShe likes it!", "Ana moved to Lisbon.")


@pytest.mark.parametrize("question", ["What does Ana play, the violin?", "Whenever Ana plays the violin, what?"])
async def test_the_most_similar_sentence_is_copied(question: str) -> None:
    record = await extractive().answer(request(*MEMORIES, question=question), 0)
    assert record.text == "Ana plays the violin." and record.error is None
    assert record.cost.model_copy(update={"seconds": 0.0}) == Cost()


@pytest.mark.parametrize(
    "question", ["When was it that Ana moved to Lisbon?", "which year: moved to Lisbon?", " In what month moved?"]
)
async def test_a_question_for_a_time_gets_the_date_of_the_passage(question: str) -> None:
    blocks = (block("Ana plays.", time=datetime(2021, 1, 2)), block("Ana moved to Lisbon.", time=datetime(2023, 5, 8)))
    asked = AnswerRequest(question, blocks)
    assert (await extractive().answer(asked, 0)).text == "8 May 2023"
    assert (await extractive(with_time=False).answer(asked, 0)).text == "Ana moved to Lisbon."
    undated = AnswerRequest(question, (block("Ana moved to Lisbon.", time=None),))
    assert (await extractive().answer(undated, 0)).text == "Ana moved to Lisbon."


@pytest.mark.parametrize("texts", [(), ("",), (" \n",)])
async def test_nothing_found_is_said_in_the_official_words(texts: tuple[str, ...]) -> None:
    record = await extractive().answer(request(*texts), 0)
    assert record.text is not None and abstains(record.text)


async def test_the_option_nearest_to_what_was_found_is_chosen() -> None:
    options = ("(a) Elephants.", "(b) Buy tea.", "(c) Drink milk.")
    asked = request("She drinks milk. Ana plays.", question="What would she like?", options=options)
    assert (await extractive().answer(asked, 0)).text == "<final_answer> (c)"
    bare = request("She drinks milk.", question="What would she like?", options=("tea", "milk"))
    assert (await extractive().answer(bare, 0)).text == "<final_answer> (b)"


async def test_waiting_for_a_search_is_no_part_of_an_answer() -> None:
    words, timed = WordEmbedder(), asyncio.Semaphore(1)
    begin = time.perf_counter()
    async with timed:
        task = asyncio.create_task(ExtractiveAnswerer(words, with_time=True, timed=timed).answer(request(*MEMORIES), 0))
        await asyncio.sleep(0.2)
        assert not task.done() and words.calls == []
    seconds = (await task).cost.seconds
    assert seconds < time.perf_counter() - begin - 0.1


RECORD = QuestionRecord(key="c1/0", group="c1", category="x", question="Q?", gold="g")


@dataclass
class Listed:
    """Answers from a list of texts; None is a failure."""

    texts: list[str | None]
    name: str = "listed"
    asked: list[tuple[int, AnswerRequest]] = field(default_factory=list)

    async def answer(self, request: AnswerRequest, run: int) -> AnswerRecord:
        self.asked.append((run, request))
        await asyncio.sleep(0)
        text = self.texts.pop(0)
        return AnswerRecord(text=text, error=None if text else "broken")


@dataclass
class Labels:
    """Judges from a list of labels; None is a failure."""

    name: str
    labels: list[str | None]
    asked: list[tuple[Mapping[str, str], str]] = field(default_factory=list)

    async def judge(self, fields: Mapping[str, str], scope: str) -> Verdict:
        self.asked.append((fields, scope))
        await asyncio.sleep(0)
        label = self.labels.pop(0)
        return Verdict(label=label, error=None if label else "unreadable")


def grader(answerer: Listed, *judges: Judge, runs: int = 1, budget: int = 1000) -> QAGrader:
    named = {judge.name: judge for judge in judges}

    def fields(record: QuestionRecord, text: str) -> dict[str, dict[str, str]]:
        return {name: {"gold": record.gold or "", "answer": text} for name in (*named, "not asked")}

    return QAGrader(answerer, named, runs, budget, True, lambda record, text: {"length": float(len(text))}, fields)


def labels_of(record: QuestionRecord, judge: str) -> list[str | None]:
    return [answer.verdicts[judge].label for answer in record.answers if judge in answer.verdicts]


async def test_a_question_is_answered_scored_and_judged_in_every_run() -> None:
    listed, strict = Listed(["a", "bb"]), Labels("strict", ["wrong", "correct"])
    lenient = Labels("lenient", ["correct"] * 2)
    asked: Sequence[ContextBlock] = [block("x"), block()]
    record = await grader(listed, strict, lenient, runs=2).ask(RECORD, asked, ("(a) 1",))
    assert record.complete and [answer.text for answer in record.answers] == ["a", "bb"]
    assert [answer.scores for answer in record.answers] == [{"length": 1.0}, {"length": 2.0}]
    assert labels_of(record, "strict") == ["wrong", "correct"]
    assert [run for run, _ in listed.asked] == [0, 1]
    (_, sent) = listed.asked[0]
    assert (sent.question, sent.options, sent.scope, len(sent.context)) == ("Q?", ("(a) 1",), "c1", 1)
    assert strict.asked[0] == ({"gold": "g", "answer": "a"}, "c1")
    assert (record.shown, record.context_tokens > 0) == (1, True)


async def test_asked_again_only_what_failed_is_done() -> None:
    listed, strict = Listed(["a", None, "c"]), Labels("strict", [None, "wrong"])
    lenient = Labels("lenient", ["correct"] * 2)
    first = await grader(listed, strict, lenient, runs=3).ask(RECORD, [])
    assert not first.complete and len(strict.asked) == 2, "no judge is asked about nothing"
    broken = Verdict(label=None, error="broken")
    assert first.answers[1].scores == {"length": 0.0} and list(first.answers[1].verdicts.values()) == [broken] * 2
    assert labels_of(first, "strict") == [None, None, "wrong"]
    listed.texts, strict.labels, lenient.labels = ["b"], ["correct", "correct"], ["wrong"]
    again = await grader(listed, strict, lenient, runs=3).ask(first, [])
    assert again.complete and [answer.text for answer in again.answers] == ["a", "b", "c"]
    assert labels_of(again, "strict") == ["correct", "correct", "wrong"]
    assert labels_of(again, "lenient") == ["correct", "wrong", "correct"]
    third = await grader(Listed([]), Labels("strict", []), Labels("lenient", []), runs=3).ask(again, [])
    assert third == again, "nothing is left to do"
    fourth = await grader(Listed([]), Labels("strict", []), Labels("new", ["correct"] * 3), runs=3).ask(again, [])
    assert labels_of(fourth, "new") == ["correct"] * 3, "another judge is added to kept answers"
    assert labels_of(fourth, "lenient") == labels_of(again, "lenient")
