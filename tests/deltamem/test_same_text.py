"""Which texts are one fact and which are two: every part of the project that asks gives the same answer, in four scripts."""

# ruff: noqa: RUF001 - characters that look alike are the subject
from __future__ import annotations

import unicodedata
from collections.abc import Callable
from datetime import datetime

import numpy as np
import pytest
from episode_texts import add, none

from deltamem.audit import FindingKind, audit
from deltamem.bank.base import Hit
from deltamem.dedup import KnownTexts, drop_known, mark_recalled
from deltamem.journal.journal import Journal
from deltamem.journal.records import Change, ChangeEvent, EntryKind, Forgotten
from deltamem.memory import Memory, MemoryState, Operation
from deltamem.sessions import Session, Turn
from deltamem.text import normalised
from synth.validators.base import repeated

TIME = datetime(2026, 4, 5, 20, 1)
SMALL_TALK = (Turn("user", "What a day."), Turn("assistant", "Indeed."))

MARKS = [
    *[("C", "C#"), ("C", "C++"), ("C#", "C++"), ("C", "C*"), ("C", "ℂ"), ("NET", ".NET"), ("f", "f()")],
    *[("5", "5%"), ("5", "5‰"), ("5", "٪5"), ("5", "-5"), ("5", "−5"), ("5", "±5"), ("5", "~5"), ("5", ">5"), ("5", "5+")],
    *[("5", "$5"), ("5", "€5"), ("$5", "€5"), ("5", "5€"), ("5", "5°"), ("5", "5′"), ("5′", "5″"), ("5", "#5"), ("5", "5*")],
    *[("A", "A-"), ("A", "A+"), ("A-", "A+"), ("A-", "A−−"), ("A", "A*"), ("kim", "kim_"), ("kim", "_kim"), ("kim", "@kim")],
    *[("x", "x²"), ("x2", "x²"), ("x2", "x₂"), ("x²", "x³"), ("1", "①"), ("1/2", "½"), ("m2", "㎡"), ("1o", "1º")],
    *[("env", ".env"), ("a", "a.txt"), ("a", "a/"), ("a", "/a"), ("a", "a\\"), ("home", "~home"), ("&", "|")],
    *[("Who", "Who?"), ("谁", "谁？"), ("من", "من؟"), ("Ποιος", "Ποιος;"), ("👍", "👎"), ("👍", "👍🏽"), ("ok", "ok👍")],
    *[("🐻❄️", "🐻‍❄️"), ("🏴", "🏴󠁧󠁢󠁷󠁬󠁳󠁿"), ("US", "us"), ("IT", "it"), ("WHO", "who")],
]
"""Words that marks tell apart, or capitals."""
ASKED = {("Who", "Who?"), ("谁", "谁？"), ("من", "من؟"), ("Ποιος", "Ποιος;"), ("ok", "ok👍")}
TYPED = {("US", "us"), ("IT", "it"), ("WHO", "who")}
"""What is erased nevertheless: a text is there also where somebody asks for it, laughs about it, or shouts."""
LETTERS = [
    *[("C", "С"), ("i", "ı"), ("Maße", "Masse"), ("все", "всё"), ("resume", "résumé"), ("a.txt", "b.txt"), ("Kim", "Kim's")],
    *[("ice", "ice-cream"), ("well", "we'll"), ("5", "5,000"), ("5", "5.5"), ("5", "5:30")],
]
"""Words that letters or longer words tell apart."""

FRAMES = {
    "latin": ("Ben's word is {}", "{} is Ben's word", ".!;…"),
    "cyrillic": ("Слово Бена — {}", "{} и есть слово Бена", ".!,…"),
    "chinese": ("本的词是{}", "{}是本的词", "。！，．"),
    "arabic": ("كلمة بن هي {}", "{} هي كلمة بن", ".!،۔"),
}

SAME = {
    "latin": "Ana Zoë lives in İzmir",
    "cyrillic": "Анна живёт в Москве",
    "chinese": "安娜住在罗马",
    "arabic": "تعيش آنا في روما",
}
WRITTEN: list[Callable[[str], str]] = [
    *(lambda text, form=form: form.format(text) for form in ("{}.", "{}!", "{}...", "{}…", "  {} \n", "{} .", "{}\u00a0!")),
    *(lambda text, form=form: form.format(text) for form in ("{}。", "{}！", "{}،", "{}۔", "{}।", "{}։", "\ufeff{}\u200f")),
    *(
        lambda text, form=form: form.format(text)
        for form in ('"{}."', "“{}”.", "«{}»", "‘{}’", "„{}.“", "「{}。」", "({}.)")
    ),
    *(lambda text, form=form: unicodedata.normalize(form, text) for form in ("NFC", "NFD")),
    lambda text: text.replace(" ", " \u00a0\t"),
    lambda text: text.replace(" ", "\u200d \u200b"),
    lambda text: f"\u202b{text}.\u202c",
    str.lower,
    lambda text: "".join(chr(ord(one) + 0xFEE0) if "!" <= one <= "~" else one for one in f"{text}."),
]


def ends_alike(first: str, second: str) -> bool:
    return normalised(first) == normalised(second)


def written(known: KnownTexts, *texts: str, hits: tuple[Hit, ...] = ()) -> tuple[Operation, ...]:
    """What is left of operations that add some texts, of which the person says nothing."""
    return drop_known(
        list(map(add, texts)),
        known=known,
        neighbours={0: hits},
        dialogue=SMALL_TALK,
        person_name="Ben",
        earlier_text=lambda _: None,
    ).operations


def added(first: str, second: str, hits: tuple[Hit, ...] = ()) -> bool:
    """Whether the second text is taken for the first one, which is stored."""
    return written(KnownTexts(MemoryState([Memory("m1", first, TIME)])), second, hits=hits) == (none("m1", second),)


def added_beside(first: str, second: str) -> bool:
    """The same, with embeddings that cannot tell the two apart."""
    return added(first, second, (Hit(Memory("m1", first, TIME), 0.999),))


def added_at_once(first: str, second: str) -> bool:
    return len(written(KnownTexts(MemoryState()), first, second)) == 1


def had_earlier(first: str, second: str) -> bool:
    """By the index of earlier texts in the journal."""
    old, new = Memory("m1", first, TIME), Memory("m1", "Ben says nothing.", TIME)
    with Journal.open(None) as journal:
        ben = journal.owner("ben")
        ben.append(EntryKind.EDIT, [Change(ChangeEvent.ADD, "m1", None, old)], actor="x")
        ben.append(EntryKind.EDIT, [Change(ChangeEvent.UPDATE, "m1", old, new)], actor="x")
        return ben.text_owner(second) == "m1"


def erased(first: str, second: str) -> bool:
    """Whether forgetting the first text empties a queued turn that says the second one among other things."""
    with Journal.open(None) as journal:
        ben = journal.owner("ben")
        ben.append(EntryKind.EDIT, [Change(ChangeEvent.ADD, "m1", None, Memory("m1", first, TIME))], actor="x")
        job = ben.enqueue(Session("ben", "Ben", TIME, (Turn("user", f"Listen: {second}\nIs that right?"),), "s1"))
        ben.forget("m1")
        queued = ben.job_session(job.id)
        assert queued is not None
        return queued.dialogue[0].content == ""


def recalled(first: str, second: str) -> bool:
    known = KnownTexts(MemoryState([Memory("m1", first, TIME)]))
    counts = {mark_recalled([Turn("assistant", text)], known)[1] for text in (second, f"- {second}\n", f"* [m7] “{second}”")}
    assert len(counts) == 1
    return counts == {1}


def listed_twice(first: str, second: str) -> bool:
    return list(repeated([first, second])) == [second]


def audited(first: str, second: str) -> bool:
    state = MemoryState([Memory("m1", first, TIME), Memory("m2", second, TIME)])
    found = {finding.kind for finding in audit(state, np.ones((2, 1), np.float32), {}).findings}
    assert FindingKind.NEAR_DUPLICATE not in found
    return FindingKind.EXACT_DUPLICATE in found


USERS = [ends_alike, added, added_beside, added_at_once, had_earlier, erased, recalled, listed_twice, audited]
every_user = pytest.mark.parametrize("is_same", USERS, ids=[user.__name__ for user in USERS])


@every_user
@pytest.mark.parametrize("script", FRAMES)
def test_what_distinguishes_facts_is_kept(is_same: Callable[[str, str], bool], script: str) -> None:
    behind, before, marks = FRAMES[script]
    wrong = []
    # Where embeddings have said that two texts are near, their stems are compared, and the marks beside them.
    pairs = MARKS if is_same in (added_beside, audited) else MARKS + LETTERS
    expected = []
    for number, pair in enumerate(pairs):
        for frame, end in ((behind, ""), (behind, marks[number % len(marks)]), (before, marks[0])):
            first, second = (frame.format(word) + end for word in pair)
            wrong += [(one, other) for one, other in ((first, second), (second, first)) if is_same(one, other)]
            if is_same is erased and (pair in TYPED or (pair in ASKED and frame is behind)):
                expected += [(first, second), (second, first)][: 1 + (pair in TYPED)]
    assert wrong == expected


@every_user
@pytest.mark.parametrize("script", SAME)
def test_what_only_writes_it_otherwise_is_folded(is_same: Callable[[str, str], bool], script: str) -> None:
    text = SAME[script]
    variants = [change(text) for change in WRITTEN]
    assert [other for other in variants if not is_same(f"{text}.", other)] == []


@pytest.mark.parametrize(
    "written",
    [
        *("{}?", "{}؟", "Is it true? “{}?!” Yes.", "¿{}?", "{}?Then why", "{}👍", "{}~", ".....{}", "{}.¹", "{},so what"),
        *("*{}*", "_{}_", "so **_{}_**!", "~~{}~~", "`{}`", "a_b and _{}_.", "<li>{}</li>", "&quot;{}&quot;", "{}&nbsp;or"),
        *("Note:{}", "note:{}", "{}.She likes it", "{}.I know", "Rome:{}–all year", "{}--Bob"),
        *(r'{{"said": "Hi.\n{}\nBye."}}', r"\"{}\"", r"\u201c{}\u201d"),
    ],
)
def test_a_text_is_erased_however_it_is_written(written: str) -> None:
    for text in ("Ana Zoë lives in Rome", "анна живёт в Риме", "Ana has *two* dogs"):
        assert erased(f"{text}.", written.format(text)), text
    assert erased("Ana lives in the US.", "ANA LIVES IN THE US") and erased("ANA LIVES IN THE US", "ana lives in the us.")
    with_a_number = Forgotten.of((), ["5 dogs are Ana's."])
    assert with_a_number.repeated_in("5 dogs are Ana's") and not with_a_number.repeated_in("-5 dogs are Ana's")
    assert erased("Ana lives in Rome", "Ana lives in **Rome**") and erased("Ana lives in **Rome**", "Ana lives in Rome")
    assert erased("Ana lives in Rome", "Fine.Ana lives in Rome") and erased(
        "Ana lives in Zoë", '{"text": "Ana lives in Zo\\u00eb."}'
    )


@pytest.mark.parametrize("text", ["Ben uses {}", "{} is Ben's word"])
def test_a_text_is_not_erased_with_a_part_of_its_words(text: str) -> None:
    for pair in (
        ("ASP", "ASP.NET"),
        ("Node", "Node.js"),
        ("kim", "kim_x"),
        ("5", "5~6"),
        ("a", "a-b"),
        ("page", "page/two"),
    ):
        assert not erased(text.format(pair[0]), text.format(pair[1])), pair


@pytest.mark.parametrize(
    "form", ["*{}*", "_{}_.", "***{}***", "~~{}~~", "- `{}`", "# {}", "### **{}**", "- [ ] {}", "1. _“{}”_"]
)
def test_a_memory_is_marked_in_whatever_layout_it_is_recalled(form: str) -> None:
    known = KnownTexts(MemoryState([Memory("m1", "Ana knows C#.", TIME), Memory("m2", "kim has an A", TIME)]))
    for text in ("Ana knows C#.", "Ana knows C#", "kim has an A"):
        assert mark_recalled([Turn("assistant", form.format(text))], known)[1] == 1
    for text in ("Ana knows C*", "_kim has an A", "kim has an A-", "kim has an A_"):
        assert mark_recalled([Turn("assistant", form.format(text))], known)[1] == 0
