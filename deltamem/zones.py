"""The person's local time: in which zone they are where a time is not given, and what the clock shows there.

"Today" is a day of the person's wall clock. A time therefore keeps the offset that it is given with, and one that is given
without an offset is the person's wall clock as it stands. What has no time at all took place now, and the zone of that is,
in this order: the request's, the owner's, that of the settings, and only then UTC, or the machine's own zone where the
machine is the person's (`deltamem mcp`, the command line).
"""

from __future__ import annotations

import os
import time
import zoneinfo
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timezone, tzinfo
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

from deltamem.errors import DeltaMemError
from deltamem.text import shortened

HEADER = "X-Timezone"
"""Names the zone of a request over HTTP."""
ZoneSource = Literal["request", "owner", "setting", "machine", "default"]
_NO_PLACES = {"localtime", "Factory", "posixrules"}
"""Files among the zones of some systems that stand for no place."""


@dataclass(frozen=True, slots=True)
class Zone:
    """A time zone, and who named it."""

    name: str
    source: ZoneSource
    rules: tzinfo | None = field(default=UTC, repr=False, compare=False)
    """None for the machine's own."""

    def at(self, instant: datetime) -> datetime:
        """What the clock shows there at an instant, with the offset of that instant.

        The offset is fixed: times that carry the rules of a zone compare wrongly in the hour that a change repeats.
        """
        local = instant.astimezone(self.rules)
        offset = local.utcoffset()
        assert offset is not None
        return local.replace(tzinfo=timezone(offset), fold=0)


class LocalTime(NamedTuple):
    """The present time of a person, to the second, and the zone that it was read in."""

    time: datetime
    zone: Zone


def iso_time(text: str) -> datetime:
    """A time as ISO 8601 writes it, or RFC 3339 in small letters; its offset is kept.

    Raises:
        ValueError: If it is none.
    """
    return datetime.fromisoformat(text.upper())


def utc_now() -> datetime:
    """The present time. Everything that dates what a person says reads this clock."""
    return datetime.now(UTC)


@cache
def _known() -> frozenset[str]:
    return frozenset(zoneinfo.available_timezones() - _NO_PLACES)


def named_zone(name: str, source: ZoneSource) -> Zone:
    """The zone of an IANA name.

    Raises:
        DeltaMemError: If there is none by this name.
    """
    # By the list, because `ZoneInfo` looks a name up as a path.
    if name not in _known():
        where = {"request": HEADER, "setting": "--timezone"}.get(source, "time zone")
        raise DeltaMemError(f"{where}: {shortened(repr(name), 80)} is no IANA name of a time zone such as Europe/Berlin")
    return Zone(name, source, zoneinfo.ZoneInfo(name))


def requested_zone(headers: Mapping[str, str] | None) -> str | None:
    """The name that the headers of a request give; None without one. The mapping must not mind case."""
    return None if headers is None else headers.get(HEADER.lower())


def process_zone(setting: str | None, *, serves: bool) -> Zone:
    """The zone of those who have named none: that of the settings, else the machine's own, or UTC if it `serves` others.

    A server whose environment has TZ takes that for a setting: somebody chose it.

    Raises:
        DeltaMemError: If there is no zone by the name that is set.
    """
    if setting is not None:
        return named_zone(setting, "setting")
    chosen = os.environ.get("TZ")
    name = (chosen or "").removeprefix(":")
    if serves and not name:
        return Zone("UTC", "default")
    if chosen is None or name.startswith("/"):  # an empty one stands for UTC
        name = str(Path(name or "/etc/localtime").resolve()).partition("zoneinfo/")[2]
    return Zone(name or time.tzname[0], "machine", None)


def local_now(requested: str | None, owners: str | None, otherwise: Zone) -> LocalTime:
    """The present time in the first zone that is named: by the request, by the owner, or otherwise.

    Raises:
        DeltaMemError: If there is no zone by the name.
    """
    zone = otherwise
    if requested is not None:
        zone = named_zone(requested, "request")
    elif owners is not None:
        zone = named_zone(owners, "owner")
    return LocalTime(zone.at(utc_now().replace(microsecond=0)), zone)
