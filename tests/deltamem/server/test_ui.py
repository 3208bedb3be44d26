"""The page of the server: what it is sent with, and in Chromium everything that it shows and does."""

from __future__ import annotations

from datetime import datetime, timedelta

import httpx
import pytest
from browser_cases import Opened, in_chromium
from server_cases import ANN, LONG, Server, a_session, ok

from deltamem.page import live_page
from deltamem.server.keys import Scope

ENTER, ESCAPE, TAB = "\ue007", "\ue00c", "\ue004"
EVIL = 'Ann says </script><script>window.hacked = 1</script> <img src=x onerror="window.hacked=1"> <b>bold</b>'


@pytest.fixture
def browser(server: Server, browser: Opened) -> Opened:
    """The browser lets go of the page before the server ends."""
    return browser


def fill(http: httpx.Client) -> None:
    """Two sessions that correct each other, and an edit with hostile texts."""
    ok(http.post(f"{ANN}/sessions", json=a_session(1, "My city is Boston. My dog is Rex.", wait=LONG)))
    ok(http.post(f"{ANN}/sessions", json=a_session(2, "My city is Denver.", wait=LONG)))
    evil = {"text": EVIL, "time": "2026-03-05T09:00:00", "metadata": {"topic": "work", "<b>": ["</script>"], "year": 2026}}
    tea = {"text": "Ann drinks tea.", "time": "2026-03-04T09:00:00", "metadata": {"topic": "home", "year": 2024}}
    ok(http.post(f"{ANN}/memories", json={"memories": [tea, evil]}), 201)


def sign_in(browser: Opened, server: Server, token: str, **how: object) -> None:
    browser.visit(f"{server.url}/ui", **how)  # type: ignore[arg-type]
    browser.until(lambda: browser.texts(".gate h2") == ["Sign in"])
    browser.write(".gate input", token)
    browser.press(ENTER)


def opened(browser: Opened, count: str) -> None:
    browser.until(lambda: browser.texts("#count") == [count])


def test_it_is_sent_with_a_policy_that_lets_it_ask_its_own_server_only(server: Server) -> None:
    answer = server.client().get("/ui")
    assert answer.status_code == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
    allowed = dict(one.strip().partition(" ")[::2] for one in answer.headers["content-security-policy"].split(";"))
    assert allowed.pop("connect-src") == "'self'"
    assert allowed.pop("script-src").startswith("'sha256-") and allowed.pop("style-src").startswith("'sha256-")
    assert allowed == dict.fromkeys(("default-src", "base-uri", "form-action", "frame-ancestors"), "'none'")
    assert answer.headers["x-content-type-options"] == "nosniff" and answer.headers["referrer-policy"] == "no-referrer"
    assert answer.text == live_page()[0]
    assert server.client().get("/ui/").headers["location"] == "../ui"
    assert "/ui" not in server.client().get("/openapi.json").json()["paths"]


class TestInChromium:
    """Everything that needs the browser."""

    pytestmark = in_chromium

    def test_the_key_stays_in_the_tab(self, browser: Opened, server: Server) -> None:
        fill(server.client())
        token = server.key("ann")
        sign_in(browser, server, "wrong")
        browser.until(lambda: "not known" in "".join(browser.texts(".refused")))
        assert all("401" in line for line in browser.errors())
        browser.write(".gate input", token)
        browser.click(".gate .primary")
        opened(browser, "4 memories")
        assert browser.texts("#name") == ["ann"], "of the only owner that the key opens"
        assert token not in browser.driver.current_url and browser.driver.current_url == f"{server.url}/ui"
        assert not browser.driver.get_cookies() and token not in browser.driver.page_source
        assert browser.script("return [localStorage.length, Object.values(sessionStorage)]") == [0, [token]]
        browser.driver.refresh()
        opened(browser, "4 memories")
        browser.click("#account")
        browser.until(lambda: browser.texts(".owners button") == ["ann"])
        browser.click(".gate .plain")
        browser.until(lambda: browser.texts(".gate h2") == ["Sign in"])
        assert browser.script("return Object.values(sessionStorage)") == []
        browser.errors()  # the request without a key

    def test_of_many_owners_one_is_chosen(self, browser: Opened, server: Server) -> None:
        names = ["ann", "bob", "Åsa <b>", "carl"]
        for owner in names:
            url = f"/v1/owners/{owner}/memories"
            ok(server.client().post(url, json={"memories": [{"text": f"This is of {owner}."}]}), 201)
        browser.visit(f"{server.url}/ui")
        browser.until(lambda: browser.texts(".owners button") == sorted(names))
        browser.press("åSA", ENTER)
        opened(browser, "1 memory")
        assert browser.texts("#name") == ["Åsa <b>"] and browser.rows() == ["This is of Åsa <b>."]
        browser.script("sessionStorage.setItem('deltamem-owner', 'eve')")
        browser.driver.refresh()
        browser.until(lambda: browser.texts(".gate h2") == ["Owners"])

    def test_the_server_searches_by_meaning_and_filters(self, browser: Opened, server: Server) -> None:
        http = server.client()
        fill(http)
        browser.visit(f"{server.url}/ui")
        browser.until(lambda: browser.texts(".owners button") == ["ann"] or browser.texts("#count") == ["4 memories"])
        opened(browser, "4 memories")
        browser.search("which city")
        browser.until(lambda: "best match" in browser.texts("#count")[0])
        assert browser.rows()[0] == "Ann's city is Denver." and "% similar" in browser.texts(".row .under")[0]
        browser.search("tea")
        browser.until(lambda: browser.rows()[:1] == ["Ann drinks tea."])
        browser.search("")
        opened(browser, "4 memories")
        browser.click("#more")
        narrow = """
            const [key, operator, text] = [...document.querySelectorAll(".condition")].at(-1).children;
            key.value = `=${arguments[0]}`;
            key.dispatchEvent(new Event("change"));
            operator.value = arguments[1];
            operator.dispatchEvent(new Event("change"));
            text.value = arguments[2];
            text.dispatchEvent(new Event("input"));
        """
        browser.script(narrow, "year", "lte", "2025")
        opened(browser, "1 of 4 memories")
        assert browser.rows() == ["Ann drinks tea."]
        browser.search("Ann")
        browser.until(lambda: browser.texts("#count") == ["1 of 4 memories, best match first"])
        browser.script(narrow, "topic", "ne", "home")
        opened(browser, "0 of 4 memories, best match first")
        assert browser.texts("#empty p") == ["Nothing matches."]
        browser.click("#clear")
        opened(browser, "4 memories")
        browser.script(narrow, "<b>", "icontains", "</SCRIPT>")
        browser.until(lambda: browser.rows() == [EVIL])

    def test_hostile_texts_are_texts(self, browser: Opened, server: Server) -> None:
        http = server.client()
        fill(http)
        session = a_session(6, EVIL, id="<img src=x onerror=hacked()>", wait=LONG)
        ok(http.post(f"{ANN}/sessions", json=session))
        browser.visit(f"{server.url}/ui")
        opened(browser, "4 memories")
        assert browser.title() == EVIL
        for at in ("#sessions/4", "#jobs"):
            browser.script("location.hash = arguments[0]", at)
            browser.until(lambda: browser.title() == session["id"])
        assert browser.script("return document.querySelectorAll('img, b, script').length") == 2
        assert browser.script("return typeof window.hacked") == "undefined"

    def test_a_memory_is_restored_after_a_look_at_what_changes(self, browser: Opened, server: Server) -> None:
        http = server.client()
        fill(http)
        browser.visit(f"{server.url}/ui#memories/m1")
        browser.until(lambda: browser.title() == "Ann's city is Denver.")
        assert browser.texts(".origins blockquote") == ["My city is Boston. My dog is Rex.", "My city is Denver."]
        assert browser.texts(".steps > li > button") == ["Restore this text…"], "not the text that it has"
        browser.click(".steps > li > button")
        assert browser.texts(".ask del") == ["Denver"] and browser.texts(".ask ins") == ["Boston"]
        browser.press(ENTER)
        assert not browser.texts(".ask"), "a hasty Enter cancels"
        browser.click(".steps > li > button")
        browser.press(TAB, ENTER)
        browser.until(lambda: browser.title() == "Ann's city is Boston.")
        restored = ok(http.get(f"{ANN}/memories/m1"))
        assert (restored["text"], restored["time"]) == ("Ann's city is Boston.", "2026-03-01T09:00:00")
        assert len(ok(http.get(f"{ANN}/memories/m1/history"))["steps"]) == 3

    def test_a_rollback_says_what_it_will_change(self, browser: Opened, server: Server) -> None:
        http = server.client()
        fill(http)
        browser.visit(f"{server.url}/ui#sessions/2")
        browser.until(lambda: browser.title() == "s2")
        browser.click(".choices button:last-child")
        browser.until(lambda: browser.texts(".ask h2") == ["Roll back to the state after entry @2?"])
        assert browser.texts(".change > p")[0] == "2 memories are removed."
        assert EVIL in browser.texts(".ask .gone p")
        browser.press(ESCAPE)
        assert not browser.texts(".ask") and ok(http.get(ANN))["position"] == 3
        browser.click(".choices button:first-child")
        browser.until(lambda: browser.texts(".ask h2") == ["Roll back to the state after entry @1?"])
        assert browser.texts(".change > p")[0] == "1 memory changes, 2 memories are removed."
        assert browser.texts(".ask del") == ["Denver"] and browser.texts(".ask ins") == ["Boston"]
        ok(http.post(f"{ANN}/memories", json={"memories": [{"text": "Meanwhile."}]}), 201)
        browser.click(".ask .danger")
        browser.until(lambda: "changed meanwhile" in "".join(browser.texts(".refused")))
        assert ok(http.get(ANN))["position"] == 4
        browser.press(ESCAPE, "r")
        browser.until(lambda: len(browser.texts(".row strong")) == 4)
        browser.click(".choices button:first-child")
        browser.until(lambda: browser.texts(".change > p")[:1] == ["1 memory changes, 3 memories are removed."])
        browser.click(".ask .danger")
        browser.until(lambda: browser.title() == "Rolled back to @1")
        state = ok(http.get(f"{ANN}/memories"))["memories"]
        assert [memory["text"] for memory in state] == ["Ann's city is Boston.", "Ann's dog is Rex."]
        browser.press("1")
        opened(browser, "2 memories")

    def test_without_the_scope_nothing_changes_and_the_reason_is_said(self, browser: Opened, server: Server) -> None:
        fill(server.client())
        sign_in(browser, server, server.key("ann", scopes={Scope.READ}))
        opened(browser, "4 memories")
        browser.script("location.hash = '#sessions/3'")
        browser.until(lambda: browser.texts(".choices button:last-child")[-1:] == ["Undo this…"])
        browser.click(".choices button")
        browser.until(lambda: browser.texts(".ask .danger") == ["Roll back"])
        browser.click(".ask .danger")
        browser.until(lambda: "lacks the scope write" in "".join(browser.texts(".refused")))
        assert server.service.manager_of("ann").head == 3
        assert [line for line in browser.errors() if "403" in line]

    def test_jobs_are_shown_while_they_wait_and_when_they_are_done(self, browser: Opened, server: Server) -> None:
        http = server.client()
        fill(http)
        server.service.pause(True)
        waits = ok(http.post(f"{ANN}/sessions", json=a_session(6, "My cat is Tom.")), 202)
        browser.visit(f"{server.url}/ui#jobs/{waits['id']}")
        browser.until(lambda: browser.texts("#detail .state") == ["Waiting"])
        assert browser.texts(".chip") == ["Waiting 1", "Read 2"] and browser.title() == "s6"
        ok(http.put("/v1/admin/model", json={"paused": False}))
        browser.until(lambda: browser.texts("#detail .state") == ["Read"])  # without being asked
        browser.click("#detail dd a")
        browser.until(lambda: browser.texts(".turns p.text") == ["My cat is Tom."])

    def test_what_changed_meanwhile_is_offered_and_not_forced(self, browser: Opened, server: Server) -> None:
        http = server.client()
        fill(http)
        browser.visit(f"{server.url}/ui#memories/m2")
        browser.until(lambda: browser.title() == "Ann's dog is Rex.")
        ok(http.patch(f"{ANN}/memories/m2", json={"text": "Ann's dog is Max."}))
        browser.until(lambda: browser.texts("#notice p") == ["The memory has changed."])
        assert browser.title() == "Ann's dog is Rex."
        browser.click("#notice button")
        browser.until(lambda: browser.title() == "Ann's dog is Max.")

    def test_an_owner_of_whom_nothing_is_left(self, browser: Opened, server: Server) -> None:
        http = server.client()
        server.service.pause(True)
        ok(http.post(f"{ANN}/sessions", json=a_session(1, "Hello.")), 202)
        browser.visit(f"{server.url}/ui")
        browser.until(lambda: browser.texts("#empty p") == ["Nothing is remembered yet."])
        browser.press("2")
        browser.until(lambda: browser.texts("#empty p") == ["Nothing happened yet."])
        browser.press("3")
        browser.until(lambda: browser.title() == "s1")

    def test_keyboard_only(self, browser: Opened, server: Server) -> None:
        fill(server.client())
        sign_in(browser, server, server.key("ann"))
        opened(browser, "4 memories")
        browser.press("/", "which city", ENTER)
        browser.until(lambda: browser.script("return document.activeElement.id") == "detail")
        assert browser.title() == "Ann's city is Denver.", "Enter waits for what the server finds"
        browser.press(ESCAPE, "/", ESCAPE, ESCAPE)
        opened(browser, "4 memories")
        for key, title in (("2", "Edit by key of ann"), ("3", "s2"), ("1", EVIL)):
            browser.press(key)
            browser.until(lambda title=title: browser.title() in (title, "Edit by local"))
        browser.errors()

    def test_ten_thousand_memories(self, browser: Opened, server: Server) -> None:
        http = server.client()
        begin = datetime(2026, 3, 2, 9)
        for first in range(0, 10_000, 1000):
            numbers = range(first, first + 1000)
            texts = [(f"Ann visits house {n} in street {n % 97}.", begin + timedelta(days=n / 50)) for n in numbers]
            memories = [{"text": text, "time": time.isoformat(), "metadata": {"n": len(text)}} for text, time in texts]
            ok(http.post(f"{ANN}/memories", json={"memories": memories}), 201)
        browser.visit(f"{server.url}/ui")
        opened(browser, "10,000 memories")
        elements = "return document.querySelectorAll('*').length"
        assert browser.script(elements) < 1000
        browser.script("const list = document.getElementById('list'); list.scrollTop = list.scrollHeight")
        browser.until(lambda: "Ann visits house 0 in street 0." in browser.rows())
        browser.search("house 9999")
        browser.until(lambda: browser.rows()[:1] == ["Ann visits house 9999 in street 8."])
        browser.script("location.hash = '#sessions/3'")
        browser.until(lambda: browser.title() == "Edit by local")
        browser.click(".choices button:last-child")
        browser.until(lambda: browser.texts(".change > p")[:1] == ["7,000 memories are removed."])
        assert len(browser.texts(".change li")) == 100

    @pytest.mark.parametrize("width", [400, 900, 1400])
    def test_nothing_sticks_out_at_any_width(self, browser: Opened, server: Server, width: int) -> None:
        http = server.client()
        long = {"text": "Ann" + "x" * 300, "metadata": {"k" * 80: "v" * 200}}
        ok(http.post(f"{ANN}/memories", json={"memories": [long]}), 201)
        ok(http.post(f"{ANN}/sessions", json=a_session(1, "word" * 100, id="s" * 200, wait=LONG)))
        sticks = "const one = document.querySelector(arguments[0]); return one.scrollWidth - one.clientWidth"
        browser.visit(f"{server.url}/ui", width=width)
        opened(browser, "1 memory")
        for at, shown in (("memories/m1", "x" * 300), ("sessions/2", "s" * 200), ("sessions/1", "Edit"), ("jobs", "")):
            browser.script("location.hash = arguments[0]", at)
            browser.until(lambda shown=shown: shown in browser.title())
            for css in ("html", ".browse", "#detail", ".top"):
                assert browser.script(sticks, css) <= 0, (at, css)
        browser.script("location.hash = 'sessions/1'")
        browser.until(lambda: "Edit" in browser.title())
        browser.click(".choices button")
        browser.until(lambda: browser.texts(".ask .danger"))
        assert browser.script(sticks, ".ask") <= 0
