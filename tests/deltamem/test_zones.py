"""The person's local time: changes of the clock, whose zone counts, and what the journal makes of it."""

import io
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo, available_timezones

import pytest
from episode_texts import WordEmbedder
from hypothesis import given
from hypothesis import strategies as st

from deltamem import zones
from deltamem.bank.store import MemoryStore
from deltamem.edits import Add
from deltamem.errors import DeltaMemError
from deltamem.journal.journal import Journal
from deltamem.journal.owner import OwnerJournal
from deltamem.journal.records import EntryKind
from deltamem.journal.transfer import export_owner, import_owner
from deltamem.sessions import Session, Turn
from deltamem.zones import Zone, local_now, named_zone, process_zone

BERLIN, DENVER = "Europe/Berlin", "America/Denver"


def shown(name: str, instant: str) -> str:
    return named_zone(name, "owner").at(datetime.fromisoformat(instant)).isoformat()


@pytest.mark.parametrize(
    ("name", "instant", "clock"),
    [
        ("America/New_York", "2026-11-01T05:30:00Z", "2026-11-01T01:30:00-04:00"),  # the hour that comes twice
        ("America/New_York", "2026-11-01T06:30:00Z", "2026-11-01T01:30:00-05:00"),
        ("America/New_York", "2026-03-08T06:59:59Z", "2026-03-08T01:59:59-05:00"),  # the hour that is left out
        ("America/New_York", "2026-03-08T07:00:00Z", "2026-03-08T03:00:00-04:00"),
        ("Australia/Lord_Howe", "2026-04-04T14:45:00Z", "2026-04-05T01:45:00+11:00"),  # half an hour comes twice
        ("Australia/Lord_Howe", "2026-04-04T15:15:00Z", "2026-04-05T01:45:00+10:30"),
        ("Africa/Cairo", "2026-04-23T21:59:59Z", "2026-04-23T23:59:59+02:00"),  # midnight is left out
        ("Africa/Cairo", "2026-04-23T22:00:00Z", "2026-04-24T01:00:00+03:00"),
        ("Pacific/Apia", "2011-12-30T09:59:59Z", "2011-12-29T23:59:59-10:00"),  # a day is left out
        ("Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-31T00:00:00+14:00"),
        ("Asia/Kathmandu", "2026-06-01T18:15:00Z", "2026-06-02T00:00:00+05:45"),
        ("UTC", "2026-06-01T23:59:59+00:00", "2026-06-01T23:59:59+00:00"),
    ],
)
def test_the_clock_at_its_changes(name: str, instant: str, clock: str) -> None:
    assert shown(name, instant) == clock


@given(st.sampled_from(sorted(available_timezones() & {BERLIN, DENVER, "Asia/Tokyo", "Australia/Lord_Howe"})), st.data())
def test_a_clock_keeps_the_instant_and_the_order(name: str, data: st.DataObject) -> None:
    instants = st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1), timezones=st.just(UTC))
    one, other = data.draw(instants), data.draw(instants)
    local = [named_zone(name, "owner").at(instant) for instant in (one, other)]
    assert local == [one, other] and (local[0] < local[1]) == (one < other)
    assert [datetime.fromisoformat(time.isoformat()) for time in local] == local
    assert local[0].replace(tzinfo=None) == one.astimezone(ZoneInfo(name)).replace(tzinfo=None)


def test_who_is_asked_for_the_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zones, "utc_now", lambda: datetime(2026, 6, 2, 2, 30, 0, 5, tzinfo=UTC))
    server = named_zone("Asia/Tokyo", "setting")
    assert local_now(DENVER, BERLIN, server) == (datetime.fromisoformat("2026-06-01T20:30-06:00"), Zone(DENVER, "request"))
    assert local_now(None, BERLIN, server).zone == Zone(BERLIN, "owner")
    found = local_now(None, None, server)
    assert (found.time.isoformat(), found.zone) == ("2026-06-02T11:30:00+09:00", Zone("Asia/Tokyo", "setting"))


def test_the_zone_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TZ", raising=False)
    assert process_zone(None, serves=True) == Zone("UTC", "default")
    assert process_zone(None, serves=False).source == "machine"
    assert process_zone(BERLIN, serves=True) == process_zone(BERLIN, serves=False) == Zone(BERLIN, "setting")
    try:
        # Whoever sets TZ for a server has chosen it; the C library reads more than IANA names.
        for chosen, clock in ((":America/Denver", "19:30:00-07:00"), ("LOC-13", "15:30:00+13:00")):
            monkeypatch.setenv("TZ", chosen)
            time.tzset()
            for serves in (True, False):
                zone = process_zone(None, serves=serves)
                assert zone == Zone(chosen.removeprefix(":"), "machine")
                assert zone.at(datetime(2026, 1, 2, 2, 30, tzinfo=UTC)).isoformat()[11:] == clock
        # As the C library has it, an empty one stands for UTC; a path is not part of a name.
        for chosen, name in (("", "UTC"), (":/usr/share/zoneinfo/Asia/Tokyo", "Asia/Tokyo")):
            monkeypatch.setenv("TZ", chosen)
            time.tzset()
            assert process_zone(None, serves=False) == Zone(name, "machine")
        monkeypatch.setenv("TZ", "")
        assert process_zone(None, serves=True) == Zone("UTC", "default")
    finally:
        monkeypatch.undo()
        time.tzset()


NO_ZONES = ("", " ", "Mars/Base", "Europe", "Europe/Berlin ", "Europe/Berlin\0", "+02:00", "localtime", "right/UTC")
NO_ZONES += ("../../etc/passwd", "/usr/share/zoneinfo/UTC", "Z\u00fcrich", "x" * 10_000)


@pytest.mark.parametrize("name", NO_ZONES)
def test_what_is_no_zone_is_refused_in_a_sentence(name: str) -> None:
    with pytest.raises(DeltaMemError, match="Europe/Berlin") as refused:
        named_zone(name, "request")
    assert str(refused.value).startswith("X-Timezone: ") and len(str(refused.value)) < 200 and "\n" not in str(refused.value)


@pytest.fixture
def ann() -> Iterator[OwnerJournal]:
    with Journal.open(None) as journal:
        yield journal.owner("ann")


def ingest(journal: OwnerJournal, *times: str) -> None:
    for number, text in enumerate(times, start=journal.head + 1):
        session = Session("ann", "Ann", datetime.fromisoformat(text), (Turn("user", "Hello."),), f"s{number}")
        journal.append(EntryKind.SESSION, (), session=session)


def test_a_point_without_an_offset_is_the_persons_wall_clock(ann: OwnerJournal) -> None:
    # An evening in New York is the next day in UTC; and a time without an offset stands for itself.
    ingest(ann, "2026-06-01T21:30:00-04:00", "2026-06-02T09:00:00.5-04:00", "2026-06-03T09:00:00")
    points = ("2026-06-01", "2026-06-01T21:30", "2026-06-01T23:59", "2026-06-02T09:00", "2026-06-02T09:00:01", "2026-06-04")
    assert [ann.position_at(datetime.fromisoformat(point)) for point in points] == [0, 1, 1, 1, 2, 3]
    instants = ("2026-06-02T01:29Z", "2026-06-02T01:30Z", "2026-06-02T01:30+14:00")
    assert [ann.position_at(datetime.fromisoformat(point)) for point in instants] == [0, 1, 0]


def test_who_travels_west_or_through_a_change_stays_in_order(ann: OwnerJournal) -> None:
    # The clock is set back by eight hours of flight, then by an hour of the autumn, then by somebody without an offset.
    times = ["2026-10-31T23:00:00+01:00", "2026-10-31T17:00:00-06:00", "2026-11-01T01:30:00-06:00"]
    times += ["2026-11-01T01:10:00-07:00", "2026-11-01T01:00:00"]
    ingest(ann, *times)
    assert [str(entry.session_time.isoformat()) for entry in ann.entries() if entry.session_time] == times
    assert [ann.position_at(datetime.fromisoformat(time)) for time in times[1:4]] == [2, 5, 5]
    assert ann.position_at(datetime.fromisoformat("2026-10-31T22:59:59Z")) == 1
    assert ann.verify() == []
    ann.rollback(1)
    ingest(ann, "2026-10-31T16:30:00-06:00")
    assert ann.position_at(datetime(2026, 10, 31, 16, 45)) == 7 and ann.verify() == []


def test_the_owners_zone_survives_rollback_and_export_and_goes_with_the_owner(ann: OwnerJournal) -> None:
    ingest(ann, "2026-11-01T01:30:00-06:00", "2026-11-01T01:30:00-07:00")
    bare = io.StringIO()
    export_owner(ann, bare)
    assert "timezone" not in bare.getvalue()
    for zone in (BERLIN, DENVER):
        ann.set_timezone(zone)
    ann.rollback(0)
    assert ann.timezone == DENVER
    written = io.StringIO()
    export_owner(ann, written)
    with Journal.open(None) as other:
        copy = other.owner("ann")
        import_owner(copy, io.StringIO(written.getvalue()))
        again = io.StringIO()
        export_owner(copy, again)
        assert copy.timezone == DENVER and again.getvalue() == written.getvalue()
        other.erase_owner("ann")
        assert copy.timezone is None
        with pytest.raises(DeltaMemError, match=r"line 1: .*'Mars/Base'"):
            import_owner(copy, io.StringIO(written.getvalue().replace(DENVER, "Mars/Base")))
        copy.set_timezone(None)
        assert other.owners() == [], "nothing to forget makes no owner"
    ann.set_timezone(None)
    assert ann.timezone is None
    with pytest.raises(DeltaMemError):
        ann.set_timezone("Mars/Base")


def test_two_memories_of_an_hour_that_comes_twice_are_kept_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = datetime(2026, 11, 1, 7, 30, tzinfo=UTC)
    with MemoryStore.in_memory(WordEmbedder()) as store:
        owned = store.bank("ann")
        owned.set_timezone(DENVER)
        for hour, text in enumerate(("Ann is up.", "Ann is still up.")):
            monkeypatch.setattr(zones, "utc_now", lambda hour=hour: clock + timedelta(hours=hour))
            owned.edit([Add(text, owned.now().time)], "test")
        times = [memory.time for memory in owned.journal.state().memories]
        assert [time.isoformat() for time in times] == ["2026-11-01T01:30:00-06:00", "2026-11-01T01:30:00-07:00"]
        assert times == [memory.time for memory in owned.bank.state.memories] and times[0] < times[1]
        assert owned.now("Asia/Tokyo").time == datetime(2026, 11, 1, 17, 30, tzinfo=timezone(timedelta(hours=9)))
