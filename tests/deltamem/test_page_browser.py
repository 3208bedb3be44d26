"""The page in Chromium: search, filters, keyboard, blame, hostile texts, 10,000 memories. For widths see `test_ui`."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from browser_cases import Opened, in_chromium

from deltamem.journal.journal import Journal
from deltamem.journal.owner import OwnerJournal
from deltamem.journal.records import Change, ChangeEvent, EntryKind
from deltamem.memory import Memory, Metadata
from deltamem.page import memory_page
from deltamem.sessions import Session, Turn

ARROW_DOWN, ENTER, ESCAPE = "\ue015", "\ue007", "\ue00c"
pytestmark = in_chromium
EVIL = 'Ann says </script><script>window.hacked = 1</script> <img src=x onerror="window.hacked=1"> <b>bold</b>'
DAY = datetime(2026, 3, 2, 9)


@pytest.fixture
def ann(tmp_path: Path) -> Iterator[OwnerJournal]:
    """Two sessions that correct each other, an edit, a retraction, a rollback and an erasure."""
    with Journal.open(tmp_path / "journal.sqlite3") as journal:
        owner = journal.owner("ann")
        said = ["Hello!", "I moved to Boston, and my dog is Rex.", "No, I mean Denver."]
        boston, rex = Memory("m1", "Ann lives in Boston.", DAY), Memory("m2", "Ann's dog is Rex.", DAY)
        _session(owner, "monday", DAY, said[:2], _added(boston, 2), _added(rex, 2))
        denver = Memory("m1", "Ann lives in Denver.", DAY + timedelta(days=4))
        known = Change(ChangeEvent.NONE, "m2", rex, rex, (1,))
        _session(owner, "friday", denver.time, said[2:], Change(ChangeEvent.UPDATE, "m1", boston, denver, (1,)), known)
        evil = Memory("m3", EVIL, DAY + timedelta(days=5), Metadata({"topic": "work", "<b>": ["</script>"]}))
        _session(owner, "saturday </title><script>", evil.time, [EVIL], _added(evil, 1))
        tea, secret = Memory("m4", "Ann drinks tea.", DAY), Memory("m5", "Ann's secret.", DAY)
        owner.append(EntryKind.EDIT, [_added(tea), _added(secret)], actor="Bo")
        owner.append(EntryKind.EDIT, [Change(ChangeEvent.REMOVE, "m4", tea, None)], actor="Bo")
        owner.forget("m5")
        owner.append(EntryKind.EDIT, [_added(Memory("m6", "A mistake.", DAY))], actor="Bo")
        owner.rollback(6)
        yield owner


def _added(memory: Memory, *turns: int) -> Change:
    return Change(ChangeEvent.ADD, memory.id, None, memory, turns)


def _session(owner: OwnerJournal, name: str, time: datetime, said: list[str], *changes: Change) -> None:
    turns = tuple(Turn("user", text) for text in said)
    owner.append(EntryKind.SESSION, changes, session=Session("ann", "Ann", time, turns, name), model="tiny")


def test_search_and_filters(browser: Opened, ann: OwnerJournal) -> None:
    browser.show(memory_page(ann))
    assert browser.texts("#count") == ["3 memories"] and browser.title() == EVIL, "the newest one is chosen"
    browser.search("ann DENVER")
    assert browser.rows() == ["Ann lives in Denver."] and browser.texts(".row mark") == ["Ann", "Denver"]
    assert browser.texts("#count") == ["1 of 3 memories"] and browser.title() == "Ann lives in Denver."
    browser.search("topic: work")
    assert browser.rows() == [EVIL], "metadata are searched too"
    browser.search("boston")
    assert browser.rows() == [] and browser.texts("#empty p") == ["Nothing matches."]
    browser.click("#clear")
    assert browser.texts(".chip") == ["Current 3", "Retracted 1", "Erased 1", "Rolled back 1"]
    for number, text in ((2, "Ann drinks tea."), (3, "The text was erased."), (4, "A mistake.")):
        browser.click(f".chip:nth-child({number})")
        assert text in browser.rows()
    assert browser.texts("#count") == ["6 memories"]
    browser.click("#more")
    until = "const to = document.querySelectorAll('#filters input')[1]; to.value = '2026-03-02';"
    browser.script(until + "to.dispatchEvent(new Event('input'))")
    assert browser.texts("#count") == ["4 of 6 memories"]
    browser.click("#tabs a:nth-child(2)")
    browser.until(lambda: browser.texts("#count") == ["8 entries"])
    browser.search("rex")
    assert browser.texts(".row strong") == ["friday", "monday"], "what was said is searched, and what became of it"


def test_the_keyboard_does_everything(browser: Opened, ann: OwnerJournal) -> None:
    browser.show(memory_page(ann))
    focus = "return document.activeElement.id"
    browser.press("j")
    assert browser.title() == "Ann lives in Denver."
    browser.press("j", "j", "j", "k")
    assert browser.title() == "Ann lives in Denver.", "it ends at the end"
    browser.press("/")
    assert browser.script(focus) == "search"
    browser.press("rex", ARROW_DOWN, ENTER)
    assert browser.script(focus) == "detail" and browser.title() == "Ann's dog is Rex."
    browser.press(ESCAPE)
    assert browser.script(focus) == "list"
    assert browser.script("return document.getElementById('list').getAttribute('aria-activedescendant')") == "row-0"
    browser.press("/", ESCAPE)
    assert browser.texts("#count") == ["3 memories"] and browser.script(focus) == "search"
    browser.press(ESCAPE, "?")
    assert browser.script("return document.getElementById('keys').open")
    browser.press(ESCAPE)
    assert not browser.script("return document.getElementById('keys').open")
    browser.press("2")
    browser.until(lambda: browser.texts("#count") == ["8 entries"])
    browser.press("1")
    browser.until(lambda: browser.texts("#count") == ["3 memories"])


def test_a_memory_leads_to_the_turn_that_it_comes_from(browser: Opened, ann: OwnerJournal) -> None:
    browser.show(memory_page(ann), at="#memories/m1")
    assert browser.texts(".origins .line a") == ["monday", "friday"]
    assert browser.texts(".origins blockquote") == ["I moved to Boston, and my dog is Rex.", "No, I mean Denver."]
    assert browser.texts(".origins figcaption") == ["user, turn 2", "user, turn 1"]
    history = "section:last-child "
    assert browser.texts(history + "del") == ["Boston"] and browser.texts(history + "ins") == ["Denver"]
    browser.click(".origins .line a")
    browser.until(lambda: browser.title() == "monday")
    assert browser.texts(".turns .cited p.text") == ["I moved to Boston, and my dog is Rex."]
    assert browser.texts(".cites a") == ["m1", "m2"]
    browser.script("history.back()")
    browser.until(lambda: browser.title() == "Ann lives in Denver.")
    browser.show(memory_page(ann), at="#sessions/2")
    assert browser.texts(".steps .line a") == ["m1", "m2"] and browser.texts(".steps del") == ["Boston"]
    browser.show(memory_page(ann), at="#memories/m5")
    assert browser.title() == "The text was erased." and "secret" not in browser.driver.page_source
    browser.show(memory_page(ann), at="#memories/m4")
    assert browser.texts("#detail .badge") == ["Retracted"] and not browser.texts(".origins")


def test_hostile_texts_are_texts(browser: Opened, ann: OwnerJournal) -> None:
    for at, title in (("#memories/m3", EVIL), ("#sessions/3", "saturday </title><script>")):
        browser.show(memory_page(ann), at=at)
        assert browser.title() == title
        assert EVIL in browser.texts("#detail .text")
        assert browser.script("return document.querySelectorAll('img, b, script').length") == 2
        assert browser.script("return typeof window.hacked") == "undefined"
    assert browser.texts(".tag") == ["<b>: </script>", "topic: work"]


def test_the_policy_of_the_page_refuses_other_scripts(browser: Opened, ann: OwnerJournal) -> None:
    browser.show(memory_page(ann))
    refused = """
        window.refused = [];
        document.addEventListener("securitypolicyviolation", (event) => window.refused.push(event.effectiveDirective));
        const script = document.createElement("script");
        script.textContent = "window.hacked = 1";
        document.body.append(script);
        const picture = document.createElement("img");
        picture.src = "http://127.0.0.1:9/x.png";
        document.body.append(picture);
    """
    browser.script(refused)
    browser.until(lambda: set(browser.script("return window.refused")) == {"script-src-elem", "img-src"})
    assert browser.script("return typeof window.hacked") == "undefined"
    assert len(browser.errors()) == 2


def test_ten_thousand_memories(browser: Opened, tmp_path: Path) -> None:
    with Journal.open(tmp_path / "many.sqlite3") as journal:
        owner = journal.owner("ann")
        for first in range(0, 10_000, 50):
            when = DAY + timedelta(days=first / 50)
            made = [Memory(f"m{n + 1}", f"Ann visits house {n} in street {n % 97}.", when) for n in range(first, first + 50)]
            turns = [f"I went to house {n}." for n in range(first, first + 50)]
            _session(owner, f"day {first}", when, turns, *(_added(memory, at + 1) for at, memory in enumerate(made)))
        browser.show(memory_page(owner))
    drawn = "return document.querySelectorAll('.row').length"
    assert browser.texts("#count") == ["10,000 memories"] and browser.script(drawn) < 60
    browser.script("const list = document.getElementById('list'); list.scrollTop = list.scrollHeight")
    browser.until(lambda: "Ann visits house 0 in street 0." in browser.rows())
    assert browser.script(drawn) < 60
    browser.search("m10000")
    assert browser.rows() == ["Ann visits house 9999 in street 8."]
    browser.search("")
    browser.script("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.script(drawn) == 10_000, "on paper the whole list"
    browser.script("window.dispatchEvent(new Event('afterprint'))")
    assert browser.script(drawn) < 60


def test_a_narrow_page_shows_the_list_or_what_is_read(browser: Opened, ann: OwnerJournal) -> None:
    browser.show(memory_page(ann), width=400)
    shown = "return ['.browse', '#detail'].map((css) => document.querySelector(css).checkVisibility())"
    assert browser.script(shown) == [True, False]
    browser.click("#row-1")
    browser.until(lambda: browser.script(shown) == [False, True])
    assert browser.title() == "Ann lives in Denver."
    browser.click(".back")
    assert browser.script(shown) == [True, False]
