"""The page of the server: what it is sent with, and in Chromium everything that it shows and does."""

from __future__ import annotations

import httpx
import pytest
from browser_cases import Opened, in_chromium
from server_cases import ANN, LONG, Server, a_session, ok

from deltamem.page import live_page

ENTER = "\ue007"
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
