"""The person's day at mem0's clients: whatever they give as a timestamp, whoever names the zone, and days in filters."""

from datetime import UTC, datetime
from typing import Any

import pytest
from server_cases import ANN, Server, ok

from deltamem import zones

ADD = "/v3/memories/add/"
EPOCH = 1780367400  # 2 June 2026, 02:30 in UTC


@pytest.fixture(autouse=True)
def evening(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zones, "utc_now", lambda: datetime.fromtimestamp(EPOCH, UTC))


def said(text: str = "My city is Boston.", **further: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "user_id": "ann", "async_mode": False, **further}


@pytest.mark.parametrize("infer", [True, False])
@pytest.mark.parametrize(
    ("given", "requested", "time", "dated"),
    [
        ("2026-06-01T21:30:00-05:00", None, "2026-06-01T21:30:00-05:00", None),
        ("2026-06-01T21:30:00-05:00", "Asia/Tokyo", "2026-06-01T21:30:00-05:00", None),
        ("2026-06-01T21:30:00", "Asia/Tokyo", "2026-06-01T21:30:00", None),
        (EPOCH, None, "2026-06-01T20:30:00-06:00", None),  # an instant, which the person's zone has a day for
        (EPOCH, "Asia/Tokyo", "2026-06-02T11:30:00+09:00", None),
        (None, None, "2026-06-01T20:30:00-06:00", {"name": "America/Denver", "source": "owner"}),
        (None, "Asia/Tokyo", "2026-06-02T11:30:00+09:00", {"name": "Asia/Tokyo", "source": "request"}),
    ],
)
def test_the_persons_day(
    server: Server, given: object, requested: str | None, time: str, dated: dict[str, str] | None, infer: bool
) -> None:
    http = server.client(**({} if requested is None else {"X-Timezone": requested}))
    ok(http.patch(ANN, json={"timezone": "America/Denver"}))
    answer = ok(http.post(ADD, json=said(infer=infer, **({} if given is None else {"timestamp": given}))))
    assert answer["status"] == "SUCCEEDED" and answer.get("timezone") == dated
    [memory] = ok(http.get(f"{ANN}/memories"))["memories"]
    assert memory["time"] == time
    [found] = ok(http.get("/memories", params={"user_id": "ann"}))["results"]
    assert found["created_at"] == time + ("" if time[19:] else "+00:00")
    ok(http.put(f"/v1/memories/{memory['uuid']}/", json={"text": "Ann runs.", "timestamp": EPOCH}))
    updated = ok(http.get(f"/v1/memories/{memory['uuid']}/"))["updated_at"]
    assert updated == ("2026-06-01T20:30:00-06:00" if requested is None else "2026-06-02T11:30:00+09:00")


def test_the_same_request_without_a_timestamp_is_one_session_through_a_change_of_the_zone(server: Server) -> None:
    http = server.client()
    for zone in ("Asia/Kathmandu", "America/Denver"):
        ok(http.post(ADD, json=said(), headers={"X-Timezone": zone}))
    assert [entry.session_time.isoformat() for entry in server.service.store.journal.owner("ann").entries()] == [  # type: ignore[union-attr]
        "2026-06-02T08:15:00+05:45"
    ]


def test_a_day_in_a_filter_is_the_persons(server: Server) -> None:
    http = server.client()
    for number, time in enumerate(("2026-06-01T21:30:00-05:00", "2026-06-01T01:00:00+09:00", "2026-06-02T00:00:00")):
        ok(http.post(ADD, json=said(f"I have number {number}.", infer=False, timestamp=time)))

    def found(**created: object) -> list[str]:
        filters = {"user_id": "ann", "created_at": created}
        return [one["memory"][-2] for one in ok(http.post("/v3/memories/", json={"filters": filters}))["results"]]

    assert found(gte="2026-06-01", lt="2026-06-02") == ["0", "1"]
    assert found(gt="2026-06-01T21:29:59", lte="2026-06-01T21:30:00") == ["0"]
    assert found(gte="2026-06-02T00:00:00Z") == ["0", "2"]
    assert found(gte="2026-06-01", lt="2026-06-01T00:00:00Z") == ["1"]
    assert found(eq=EPOCH) == ["0"]
    between = {"filters": {"user_id": "ann"}, "start_date": "2026-06-02", "end_date": "2026-06-03"}
    assert [one["memory"][-2] for one in ok(http.post("/v3/memories/", json=between))["results"]] == ["2"]


def test_a_zone_that_there_is_not(server: Server) -> None:
    answered = server.client(**{"X-Timezone": "Mars/Base"}).post(ADD, json=said())
    assert answered.status_code == 400 and "Mars/Base" in answered.json()["detail"]
