"""The person's day in conversations through the proxy."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from proxy_cases import CHAT, chat, end, headers, models, proxying
from server_cases import ANN, ok, problem

from deltamem import zones


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[datetime]]:
    """The present time, which a test may set."""
    now = [datetime(2026, 6, 2, 2, 30, tzinfo=UTC)]
    monkeypatch.setattr(zones, "utc_now", lambda: now[0])
    yield now


def test_a_conversation_is_of_the_persons_day_on_which_it_began(tmp_path: Path, clock: list[datetime]) -> None:
    with models() as upstream, proxying(tmp_path, upstream) as server:
        http = server.client()

        def say(session: str, zone: str | None = None, *texts: str) -> str:
            named = {} if zone is None else {"X-Timezone": zone}
            answered = http.post(CHAT, json=chat(*texts or ("My city is Boston.",)), headers=headers(session, **named))
            ok(answered)
            return str(answered.headers["X-DeltaMem-Timezone"])

        assert say("nobody's") == "UTC; source=default"
        assert say("asked", "Asia/Tokyo") == "Asia/Tokyo; source=request"
        ok(http.patch(ANN, json={"timezone": "America/New_York"}))
        # The night of the change: one goes on past midnight, another from the hour to its repetition.
        clock[0] = datetime(2026, 11, 1, 3, 59, tzinfo=UTC)
        assert say("night") == "America/New_York; source=owner"
        clock[0] = datetime(2026, 11, 1, 5, 30, tzinfo=UTC)
        say("night", None, "My city is Boston.", "echo", "My dog is Rex.")
        say("change")
        clock[0] = datetime(2026, 11, 1, 6, 30, tzinfo=UTC)
        say("change", None, "My city is Boston.", "echo", "My dog is Rex.")
        say("later")
        end(server)
        clock[0] = datetime(2026, 11, 1, 6, 45, tzinfo=UTC)
        say("night", None, "My city is Boston.", "echo", "My dog is Rex.", "echo", "My cat is Tom.")
        end(server)
        times = {one.session_id: one.session_time for one in server.service.store.journal.owner("ann").entries()}
        assert {name: time.isoformat() for name, time in times.items() if name and time} == {
            "nobody's": "2026-06-02T02:30:00+00:00",
            "asked": "2026-06-02T11:30:00+09:00",
            "night": "2026-10-31T23:59:00-04:00",
            "change": "2026-11-01T01:30:00-04:00",
            "later": "2026-11-01T01:30:00-05:00",
            "night/2": "2026-11-01T01:45:00-05:00",
        }
        assert not any("x-timezone" in asked.headers for asked in upstream.asked)
        for mode in ("on", "read", "off"):
            named = headers("s", **{"X-Timezone": "Mars/Base", "X-DeltaMem-Mode": mode})
            assert "Mars/Base" in problem(http.post(CHAT, json=chat("Hello."), headers=named), 400)
