"""The manager against the rules, in memory: what each method promises."""

import io
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from episode_texts import WordEmbedder, add, none, outputs, update
from rule_model import RulePolicy
from scripted_server import completion, serve

from deltamem.bank.store import MemoryStore
from deltamem.edits import Add
from deltamem.episode import Message
from deltamem.errors import ContextLengthError, DeltaMemError
from deltamem.ingest import Outcome
from deltamem.journal.records import ChangeEvent
from deltamem.llm import LLM, ResponseCache, seed_of_request
from deltamem.manager import ManagerSettings, MemoryManager, SyncMemoryManager
from deltamem.memory import MemoryState
from deltamem.policy import Completion, EndpointPolicy, Mode, Policy
from deltamem.sessions import Session, Turn

START = datetime(2026, 4, 5, 20, 1)


class Fixed:
    """Answers with given texts, one after the other; the last one again and again."""

    name = "fixed"

    def __init__(self, *texts: str) -> None:
        self._texts = list(texts)
        self.asked: list[list[Message]] = []

    async def complete(self, messages: Sequence[Message]) -> Completion:
        self.asked.append(list(messages))
        text = self._texts.pop(0) if len(self._texts) > 1 else self._texts[0]
        return Completion(text, truncated=False, tokens=3, prompt_tokens=5)


def manager(policy: Policy | None = None, owner: str = "ann", **settings: object) -> MemoryManager:
    made = ManagerSettings(person_name="Ann", **settings)  # type: ignore[arg-type]
    return MemoryManager(MemoryStore.in_memory(WordEmbedder()), owner, policy or RulePolicy(), made)


def said(memory: MemoryManager, session_id: str, *texts: str, day: int = 0) -> Session:
    turns = [turn for text in texts for turn in (Turn("user", text), Turn("assistant", "I see."))]
    return memory.session(session_id, START + timedelta(days=day), turns)


def texts(state: MemoryState) -> dict[str, str]:
    return {memory.id: memory.text for memory in state.memories}


async def test_a_correction_chain_leaves_one_memory_with_its_whole_history() -> None:
    memory = manager()
    first = await memory.ingest(said(memory, "s1", "Hello!", "My city is Boston.", day=0))
    second = await memory.ingest(said(memory, "s2", "News: my city is Denver.", day=1))
    third = await memory.ingest(said(memory, "s3", "No, wrong.", "It is cold.", "My city is Boulder.", day=2))
    assert [step.outcome for step in (first, second, third)] == [Outcome.APPLIED] * 3
    assert texts(memory.state()) == {"m1": "Ann's city is Boulder."}
    assert memory.state()["m1"].time == START + timedelta(days=2)
    origins = memory.blame("m1")
    assert [(origin.event, origin.session_id, origin.text) for origin in origins] == [
        (ChangeEvent.ADD, "s1", "Ann's city is Boston."),
        (ChangeEvent.UPDATE, "s2", "Ann's city is Denver."),
        (ChangeEvent.UPDATE, "s3", "Ann's city is Boulder."),
    ]
    assert [[(turn.number, turn.content) for turn in origin.turns] for origin in origins] == [
        [(3, "My city is Boston.")],
        [(1, "News: my city is Denver.")],
        [(5, "My city is Boulder.")],
    ]
    assert [step.change.event for step in memory.history("m1")] == ["ADD", "UPDATE", "UPDATE"]
    assert {step.entry.model for step in memory.history("m1")} == {"rules"}
    (old, new) = memory.diff("s1", "s3").changed[0]
    assert (old.text, new.text) == ("Ann's city is Boston.", "Ann's city is Boulder.")
    assert texts(memory.state(START + timedelta(days=1, hours=3))) == {"m1": "Ann's city is Denver."}


async def test_the_same_session_id_changes_nothing_the_second_time() -> None:
    memory = manager()
    _, again, other = [await memory.ingest(said(memory, "s1", f"My city is {city}.")) for city in ("A", "A", "B")]
    assert (again.outcome, again.notes, again.position) == (Outcome.KNOWN, (), 1)
    assert other.outcome is Outcome.KNOWN and "other content" in other.notes[0]
    assert texts(memory.state()) == {"m1": "Ann's city is A."}


async def test_what_is_valid_is_applied_and_the_rest_is_counted() -> None:
    dog = add("Ann has a dog.")
    written = outputs(dog, dog, add(" "), update("m9", "Ann has a cat."), none("m7", "x"))
    memory = manager(Fixed(written.replace('"event": "NONE"', '"event": "MERGE"')))
    done = await memory.ingest(said(memory, "s1", "I have a dog."))
    assert texts(memory.state()) == {"m1": "Ann has a dog."}
    assert done.violations == {"duplicate_operation": 1, "empty_text": 1, "unknown_target": 1, "bad_operation": 1}
    assert done.usage.calls == 1 and done.usage.completion_tokens == 3 and done.usage.prompt_tokens == 5


async def test_an_unreadable_answer_is_asked_for_again_and_records_nothing_if_it_stays_so() -> None:
    policy = Fixed("Sure, I will remember that!", outputs(add("Ann has a dog.")))
    memory = manager(policy)
    done = await memory.ingest(said(memory, "s1", "I have a dog."))
    assert done.outcome is Outcome.APPLIED and done.usage.calls == 2 and done.violations["no_action"] == 1
    memory = manager(Fixed("Sure, I will remember that!"))
    done = await memory.ingest(said(memory, "s1", "I have a dog."))
    assert done.outcome is Outcome.UNREADABLE and done.position is None and not memory.state()
    assert done.violations == {"missing_think": 2, "no_action": 2}


UNCLEAR = """<think>t</think><outputs>[{"text": "Ann said "no".", "event": "ADD"}]</outputs>"""
SEARCHES = '<think>t</think><tool_call>{"name": "search_memory", "arguments": {"query_list": ["dog"]}}</tool_call>'


@pytest.mark.parametrize(
    ("mode", "texts", "reason"),
    [
        ("react", ["No."], "no action found, write one tool_call block or one outputs block"),
        ("react", [UNCLEAR], "the block is not valid JSON"),
        ("react", [SEARCHES] * 4, "the last turn searched, where the outputs belong"),
        ("assisted", ["No."], "it holds no JSON list of facts"),
    ],
)
async def test_the_second_attempt_is_told_why_and_has_another_seed(
    mode: Mode, texts: list[str], reason: str, tmp_path: Path
) -> None:
    cache = ResponseCache(tmp_path / "responses.sqlite")
    answers = [*texts, outputs(add("Ann has a dog."))]
    with serve(lambda body: completion(answers[len(server.requests) - 1])) as server:
        for seed in (None, 4):
            server.requests.clear()
            for again in (False, True):
                policy = EndpointPolicy(LLM(server.url, "tiny", cache=cache), temperature=0, seed=seed)
                memory = manager(policy, mode=mode)
                done = await memory.ingest(said(memory, "s1", "I have a dog."))
                assert done.outcome is Outcome.APPLIED and done.usage.cached == again * done.usage.calls
                assert [known.text for known in memory.state().memories] == ["Ann has a dog."]
            first, *_, last = server.requests  # the second reading took all from the cache: it asked for the very same
            assert len(server.requests) == len(texts) + 1
            assert first.get("seed") == seed_of_request(seed, 0, first["messages"])
            assert last["seed"] == seed_of_request(seed or 0, 1, last["messages"])
            shown, told = (one["messages"][1 if mode == "react" else -1]["content"] for one in (first, last))
            assert told.removeprefix(shown).strip() == (
                f"Your last answer could not be read: {reason}. Answer in the form that is asked for."
            )


async def test_an_answer_that_is_cut_counts_as_far_as_it_is_whole_or_is_told_so() -> None:
    class Cut(Fixed):
        async def complete(self, messages: Sequence[Message]) -> Completion:
            return (await super().complete(messages))._replace(truncated=True)

    entry = '{"text": "Ann has a dog.", "event": "ADD"}, '
    memory = manager(policy := Cut("<think>t</think><outputs>[{", f"<think>t</think><outputs>[{entry * 40}{entry[:12]}"))
    done = await memory.ingest(said(memory, "s1", "I have a dog."))
    assert texts(memory.state()) == {"m1": "Ann has a dog."}
    assert (done.violations["token_limit"], done.violations["duplicate_operation"]) == (2, 39)
    assert "read: it was cut at the limit of tokens, write less and nothing twice." in policy.asked[1][-1]["content"]


async def test_a_long_session_is_read_in_parts_that_see_each_other() -> None:
    memory = manager(window_tokens=2300)
    filler = ["The weather was fine and we talked about nothing in particular, once more. " * 3] * 8
    session = said(memory, "s1", "My city is Boston.", *filler, "My city is Denver.", *filler, "My dog is Rex.")
    done = await memory.ingest(session)
    assert done.parts > 1 and str(done.parts) in done.notes[0]
    assert texts(memory.state()) == {"m1": "Ann's city is Denver.", "m2": "Ann's dog is Rex."}
    assert [change.event for change in done.changes] == ["ADD", "UPDATE", "ADD"]
    assert [change.turns for change in done.changes] == [(1,), (19,), (37,)]
    assert {memory.time for memory in memory.state().memories} == {START}
    assert memory.blame("m1")[-1].turns[0].content == "My city is Denver."


async def test_a_session_that_the_server_finds_too_long_is_split() -> None:
    class Narrow(RulePolicy):
        async def complete(self, messages: Sequence[Message]) -> Completion:
            if len(messages[1]["content"]) > 1500:
                raise ContextLengthError("too long")
            return await super().complete(messages)

    memory = manager(Narrow())
    done = await memory.ingest(said(memory, "s1", *(f"My thing{i} is {'red ' * 20}{i}." for i in range(30))))
    assert done.parts > 2 and len(memory.state()) == 30


class Brief(RulePolicy):
    """Its answers are cut after some characters; of those about `unread` there is nothing but a thought."""

    def __init__(self, most: int, unread: str = "\0") -> None:
        super().__init__()
        self._most, self._unread, self.cut = most, unread, 0

    async def complete(self, messages: Sequence[Message]) -> Completion:
        done = await super().complete(messages)
        if "<outputs>" not in done.text:
            return done
        if len(done.text) <= self._most:
            return Completion("<think>Hm", truncated=False, tokens=3) if self._unread in done.text else done
        self.cut += 1
        return Completion(done.text[: self._most], truncated=True, tokens=3, prompt_tokens=5)


def things(memory: MemoryManager, count: int) -> Session:
    return said(memory, "s1", *(f"My thing{i} is {'red ' * 20}{i}." for i in range(count)))


async def test_a_session_whose_answer_is_cut_is_read_again_in_halves() -> None:
    memory = manager(policy := Brief(1500))
    done = await memory.ingest(things(memory, 30))
    assert len(memory.state()) == 30 and done.parts == 4 and done.outcome is Outcome.APPLIED
    assert done.notes == ("the session is too much for one answer of the model and was read in 4 parts, all with its time",)
    assert [change.turns for change in done.changes] == [(2 * number + 1,) for number in range(30)]
    assert done.violations["token_limit"] == policy.cut == 3


async def test_without_safeguards_an_answer_that_is_cut_is_lost() -> None:
    memory = manager(Brief(1500), safeguards=False)
    assert (await memory.ingest(things(memory, 30))).outcome is Outcome.UNREADABLE


async def test_what_can_be_read_of_halves_is_kept() -> None:
    memory = manager(Brief(1500, unread="thing29"))
    done = await memory.ingest(things(memory, 30))
    assert 15 <= len(memory.state()) < 30 and done.outcome is Outcome.APPLIED
    assert done.notes[0].endswith("; 1 of them could not be read")


async def test_a_session_of_whose_halves_none_can_be_read_is_unreadable() -> None:
    memory = manager(Brief(1500, unread="thing"))
    assert (await memory.ingest(things(memory, 30))).outcome is Outcome.UNREADABLE


async def test_a_model_whose_answers_never_end_is_asked_seven_times() -> None:
    memory = manager(policy := Brief(250))
    done = await memory.ingest(things(memory, 300))
    assert policy.cut == 1 + 2 + 4 and done.parts == 4 == len(memory.state())


async def test_a_quoted_memory_counts_once_however_often_its_session_is_read() -> None:
    memory = manager()
    await memory.ingest(said(memory, "s0", "My city is Boston."))
    brief = MemoryManager(memory._store, "ann", Brief(1500), memory.settings)
    told = things(brief, 30)
    turns = [Turn("user", "What do you know?"), Turn("assistant", "Ann's city is Boston."), *told.dialogue]
    done = await brief.ingest(brief.session("s1", START + timedelta(days=1), turns))
    assert done.parts > 1 and done.violations["recalled_quote"] == 1


async def test_text_recalled_from_memory_is_not_stored_again() -> None:
    memory = manager()
    await memory.ingest(said(memory, "s1", "My city is Boston."))
    await memory.ingest(said(memory, "s2", "My city is Denver.", day=1))
    echo = Fixed(outputs(add("Ann's city is Denver."), add("Ann's city is Boston.")))
    quoting = MemoryManager(memory._store, "ann", echo, memory.settings)
    recalled = "- Ann's city is Denver.\n- Ann's city is Boston."
    turns = [Turn("user", "What do you know about me?"), Turn("assistant", recalled)]
    done = await quoting.ingest(quoting.session("s3", START + timedelta(days=2), turns))
    assert texts(memory.state()) == {"m1": "Ann's city is Denver."}
    assert done.violations == {"recalled_quote": 1, "duplicate_text": 1, "recalled_text": 1}
    assert "already stored: Ann's city is Denver." in echo.asked[0][1]["content"]


async def test_without_safeguards_the_session_is_shown_as_it_is_and_the_models_operations_are_what_is_applied() -> None:
    echo = Fixed(outputs(add("Ann's city is Boston.")))
    memory = manager(echo, safeguards=False)
    await memory.ingest(said(memory, "s1", "My city is Boston."))
    turns = [Turn("user", "Well?"), Turn("assistant", "Ann's city is Boston.")]
    done = await memory.ingest(memory.session("s2", START + timedelta(days=1), turns))
    assert texts(memory.state()) == {"m1": "Ann's city is Boston.", "m2": "Ann's city is Boston."} and not done.violations
    assert echo.asked[1][1]["content"].endswith("user: Well?\nassistant: Ann's city is Boston.")


@pytest.mark.parametrize(
    ("settings", "remembered"),
    [
        ({}, {"m1": "Ann has a dog called Rex.", "m2": 'Ann said: "I moved to Denver last week."'}),
        (
            {"support": 0},
            {
                "m1": "Ann's sister Ruth studies whales in Norway.",
                "m2": "Ann fled to Denver with her mother to save her marriage.",
            },
        ),
    ],
)
async def test_of_what_a_policy_makes_up_the_person_s_own_words_are_kept(
    settings: dict[str, object], remembered: dict[str, str]
) -> None:
    """As SmolLM2-135M does after 650,000 tokens of warm start (docs/results.md)."""
    invents = Fixed(
        outputs(add("Ann has a dog called Rex.")),
        outputs(
            add("Ann fled to Denver with her mother to save her marriage."),
            update("m1", "Ann's sister Ruth studies whales in Norway."),
            add("Ben has a job at NASA."),
        ),
    )
    memory = manager(invents, mode="react", **settings)
    await memory.ingest(said(memory, "s1", "Ann: I have a dog called Rex."))
    turns = [
        Turn("user", "Ann: I moved to Denver last week. Rex came along."),
        Turn("assistant", "Ben: I got a job at NASA!"),
        Turn("user", "Ann: Wow!"),
        Turn("assistant", "Ben: Yes!"),
    ]
    done = await memory.ingest(memory.session("s2", START + timedelta(days=1), turns))
    assert texts(memory.state()) == remembered
    assert done.violations == ({} if settings else {"unsupported_text": 2}) | {"other_subject": 1}


@pytest.mark.parametrize(("safeguards", "attempts", "asked"), [(True, None, 2), (False, None, 1), (False, 3, 3)])
async def test_an_answer_that_cannot_be_read_is_asked_for_again_only_with_safeguards(
    safeguards: bool, attempts: int | None, asked: int
) -> None:
    silly = Fixed("I am a teapot.")
    memory = manager(silly, safeguards=safeguards, attempts=attempts)
    done = await memory.ingest(said(memory, "s1", "My city is Boston."))
    assert done.outcome is Outcome.UNREADABLE and len(silly.asked) == asked


@pytest.mark.parametrize("safeguards", [True, False])
async def test_without_safeguards_answers_are_read_as_strictly_as_in_training(safeguards: bool) -> None:
    memory = manager(Fixed(outputs(add("Ann's city is Boston.")).removesuffix("</outputs>")), safeguards=safeguards)
    done = await memory.ingest(said(memory, "s1", "My city is Boston."))
    assert done.outcome is (Outcome.APPLIED if safeguards else Outcome.UNREADABLE)


async def test_forgetting_erases_one_memory_and_then_everything() -> None:
    memory = manager()
    await memory.ingest(said(memory, "s1", "My city is Boston.", "My dog is Rex."))
    await memory.forget("m2")
    assert texts(memory.state()) == {"m1": "Ann's city is Boston."}
    assert [hit.memory.id for hit in await memory.search("dog Rex", 5)] == ["m1"]
    assert all(step.change.erased for step in memory.history("m2"))
    with pytest.raises(DeltaMemError, match="m2"):
        memory.blame("m2")
    await memory.ingest(said(memory, "s2", "My cat is Tom.", day=1))
    assert texts(memory.state()) == {"m1": "Ann's city is Boston.", "m3": "Ann's cat is Tom."}
    erasure = await memory.forget_owner()
    assert (erasure.memories, erasure.dialogues) == (2, 2)
    with pytest.raises(DeltaMemError, match="erased"):
        await memory.search("city")
    with pytest.raises(DeltaMemError, match="erased"):
        await memory.ingest(said(memory, "s9", "My cat is Tom."))
    fresh = MemoryManager(memory._store, "ann", RulePolicy())
    assert not fresh.state() and not await fresh.search("city") and memory._store.owners() == []


async def test_bad_sessions_and_points_are_refused() -> None:
    memory = manager()
    for session, said_of_it in (
        (said(memory, "", "Hi."), "needs an id"),
        (Session("bob", "Bob", START, (Turn("user", "Hi."),), "s1"), "belongs to 'bob'"),
        (memory.session("s1", START, []), "no turns"),
    ):
        with pytest.raises(DeltaMemError, match=said_of_it):
            await memory.ingest(session)
    with pytest.raises(DeltaMemError, match="owner"):
        manager(owner="")
    with pytest.raises(DeltaMemError, match="not in the journal"):
        memory.state("s9")
    with pytest.raises(DeltaMemError, match="from 0 to 0"):
        await memory.rollback(4)
    with pytest.raises(ValueError, match="at least 1"):
        await memory.search("x", 0)


def test_the_sync_face_does_the_same() -> None:
    store = MemoryStore.in_memory(WordEmbedder())
    with SyncMemoryManager(lambda: MemoryManager(store, "ann", RulePolicy(), ManagerSettings(person_name="Ann"))) as memory:
        step = memory.ingest(memory.session("s1", START, [Turn("user", "My city is Boston.")]))
        assert step.outcome is Outcome.APPLIED and texts(memory.state()) == {"m1": "Ann's city is Boston."}
        assert memory.search("city")[0].memory.id == "m1"
        memory.rollback(0)
        assert not memory.state() and memory.owner == "ann"


async def test_the_state_at_hand_stands_for_the_last_position_after_every_kind_of_writing() -> None:
    memory = manager()
    seen = [memory.position]

    def moved() -> bool:
        seen.append(memory.position)
        return seen[-1] == memory.journal.head > seen[-2]

    await memory.ingest(said(memory, "s1", "My city is Boston."))
    assert moved()
    await memory.write([Add("Ann owns a kite.", START)], "Ruth")
    assert moved()
    await memory.rollback("s1")
    assert moved()
    await memory.forget("m1")
    assert moved()
    written = io.StringIO()
    memory.export(written)
    copy = manager(owner="ben")
    await copy.import_from(io.StringIO(written.getvalue()), rename=True)
    assert copy.position == copy.journal.head > 0
