"""Cron the slow way, independent of what is tested: every minute of real time is looked at, and asked for its local time.

The rules are those of docs/guides/schedules.md, applied as they are worded there.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
_LAST = (59, 23, 31, 12, 7)
_FIRST = (0, 0, 1, 1, 0)


def _values(field: str, first: int, last: int) -> frozenset[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        low, _, high = span.partition("-")
        start, end = (first, last) if low == "*" else (int(low), int(high or (last if step else low)))
        found |= set(range(start, end + 1, int(step or 1)))
    return frozenset(found)


class SlowCron:
    """Numbers, lists, ranges and steps, which is what the tests use."""

    def __init__(self, expression: str) -> None:
        fields = expression.split()
        self.fixed = not fields[0].startswith("*") and not fields[1].startswith("*")
        self._both = fields[2].startswith("*") or fields[4].startswith("*")
        sets = [_values(f, a, b) for f, a, b in zip(fields, _FIRST, _LAST, strict=True)]
        self._minutes, self._hours, self._days, self._months, self._weekdays = sets

    def matches(self, local: datetime) -> bool:
        if local.minute not in self._minutes or local.hour not in self._hours or local.month not in self._months:
            return False
        day = local.day in self._days
        weekday = local.isoweekday() in self._weekdays or local.isoweekday() % 7 in self._weekdays
        return (day and weekday) if self._both else (day or weekday)


def walk(zone: ZoneInfo, start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    """(real time, local time without zone) of each minute in (start, end]."""
    moment = start
    while moment < end:
        moment += MINUTE
        yield moment, moment.astimezone(zone).replace(tzinfo=None)


def scan(crons: dict[str, SlowCron], zone: ZoneInfo, start: datetime, end: datetime) -> dict[str, list[datetime]]:
    """The fires of each expression in (start, end]."""
    fires: dict[str, list[datetime]] = {name: [] for name in crons}
    furthest = start.astimezone(zone).replace(tzinfo=None)  # the latest local time that there has been
    for moment, local in walk(zone, start, end):
        skipped = []
        minute = furthest + MINUTE
        while minute < local:  # the clocks went forward over these
            skipped.append(minute)
            minute += MINUTE
        is_new = local > furthest
        for name, cron in crons.items():
            due = cron.matches(local)
            if cron.fixed:
                due = (due and is_new) or any(cron.matches(minute) for minute in skipped)
            if due:
                fires[name].append(moment)
        furthest = max(furthest, local)
    return fires


def changes(zone: ZoneInfo, start: datetime, end: datetime) -> list[datetime]:
    """The first minutes with another offset, looked for hour by hour."""
    found = []
    moment = start
    while moment < end:
        later = moment + timedelta(hours=1)
        if moment.astimezone(zone).utcoffset() != later.astimezone(zone).utcoffset():
            minute = moment
            while minute.astimezone(zone).utcoffset() == moment.astimezone(zone).utcoffset():
                minute += MINUTE
            found.append(minute)
        moment = later
    return found


def utc(*parts: int) -> datetime:
    return datetime(*parts, tzinfo=UTC)  # type: ignore[misc,arg-type]
