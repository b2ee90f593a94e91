"""Cron in every zone of the IANA database against a slow walk through each minute of real time (tests/support/slow_cron.py).

Kinds: fires lost, doubled, or an hour off around a change of the clocks, whatever its hour, its size, and which day it skips
(CRON-02 to CRON-05, 17, 18, 23, 41, 54 to 58, 60); zones (CRON-01, 25). 2024 to 2030; in the ordinary run the hours around each
change, with SKIPLOCK_HAMMER=full every minute of these years (about an hour).

To see them fail: let Cron._real (core/schedule.py) go on where it is at a change, without `change` (doubled and lost hours); take
`fire > latest` out of Cron._fixed; or walk by cronsim alone, which loses half an hour in Australia/Lord_Howe.
"""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from functools import cache
from itertools import takewhile
from zoneinfo import ZoneInfo, available_timezones

import pytest

from skiplock.core.schedule import Cron
from tests.support.slow_cron import SlowCron, changes, scan, utc

FULL = os.environ.get("SKIPLOCK_HAMMER") == "full"
START, END = utc(2024, 1, 1), utc(2031, 1, 1)
AROUND = timedelta(hours=7)
PARTS = 6
ALWAYS = (
    "*/15 * * * *",
    "30 2 * * *",
    "7 * * * *",
    "10,40 0-4,22,23 * * *",
    "30 */2 * * 0",
    "0 0 * * *",
    "59 23 * * 6",
    "20 1 1-7 * 0",
)


@cache
def grouped() -> list[tuple[str, list[datetime]]]:
    """One zone for all that are alike in these years, with its changes. Every zone is in one of the groups."""
    found: dict[object, tuple[str, list[datetime]]] = {}
    for name in sorted(available_timezones() - {"localtime", "Factory", "posixrules"}):
        zone = ZoneInfo(name)
        # Twice a day tells them apart: no zone changes its clocks forth and back within twelve hours.
        looks = [START + timedelta(hours=12 * n) for n in range((END - START).days * 2)]
        alike = tuple(look.astimezone(zone).utcoffset() for look in looks)
        if alike not in found:
            found[alike] = (name, changes_of(zone, looks))
    return list(found.values())


def changes_of(zone: ZoneInfo, looks: list[datetime]) -> list[datetime]:
    offsets = [look.astimezone(zone).utcoffset() for look in looks]
    days = [look for look, one, next_one in zip(looks, offsets, offsets[1:], strict=False) if one != next_one]
    return [change for day in days for change in changes(zone, day, day + timedelta(hours=12))]


def near(change: datetime, zone: ZoneInfo) -> list[str]:
    """Expressions at the very hours that come twice, or not at all."""
    before, after = [(change - timedelta(minutes=back)).astimezone(zone) for back in (1, 0)]
    return [
        f"{before.minute} {before.hour} * * *",
        f"{after.minute} {after.hour} * * *",
        f"5,35,59 {min(before.hour, after.hour)}-{max(before.hour, after.hour)} * * *",
        f"* {after.hour} * * *",
        f"*/20 {(after.hour + 1) % 24} * * *",
    ]


def check(name: str, expressions: list[str], start: datetime, end: datetime) -> int:
    slow = scan({e: SlowCron(e) for e in expressions}, ZoneInfo(name), start, end)
    for expression in expressions:
        fast = list(takewhile(lambda fire: fire <= end, Cron(expression, name).after(start)))
        assert fast == slow[expression], (name, expression, start)
    return sum(map(len, slow.values()))


@pytest.mark.parametrize("part", range(PARTS))
def test_every_zone_around_its_changes(part: int) -> None:
    looked_at = 0
    for name, moments in grouped()[part::PARTS]:
        for change in moments:
            zone = ZoneInfo(name)
            expressions = [*ALWAYS, *near(change, zone)]
            assert check(name, expressions, change - AROUND, change + AROUND) > 0
            looked_at += 1
    assert looked_at > 5


STRANGE = [
    ("Australia/Lord_Howe", utc(2024, 4, 6, 15)),  # half an hour back
    ("Australia/Lord_Howe", utc(2024, 10, 5, 15, 30)),
    ("Pacific/Chatham", utc(2024, 4, 6, 14)),  # at 3:45
    ("Antarctica/Troll", utc(2024, 3, 31, 1)),  # two hours
    ("Antarctica/Troll", utc(2024, 10, 27, 1)),
    ("America/Santiago", utc(2024, 9, 8, 4)),  # midnight does not exist
    ("America/Santiago", utc(2024, 4, 7, 3)),
    ("Africa/Cairo", utc(2024, 4, 25, 22)),
    ("Asia/Beirut", utc(2024, 3, 30, 22)),
    ("America/St_Johns", utc(2010, 11, 7, 2, 31)),  # from 0:01 into the day before
    ("Pacific/Apia", utc(2011, 12, 30, 10)),  # a day skipped
    ("Pacific/Kwajalein", utc(1993, 8, 21, 12)),
    ("Asia/Pyongyang", utc(2018, 5, 4, 15)),  # half an hour forward for good
    ("America/Caracas", utc(2007, 12, 9, 7)),  # half an hour back for good
]


@pytest.mark.parametrize(("name", "change"), STRANGE, ids=[f"{n} {c:%Y-%m-%d}" for n, c in STRANGE])
def test_strange_changes(name: str, change: datetime) -> None:
    zone = ZoneInfo(name)
    assert changes(zone, change - timedelta(hours=2), change + timedelta(hours=2)), "else nothing changed there"
    expressions = [*ALWAYS, *near(change, zone), "30 12 30 12 *"]
    assert check(name, expressions, change - timedelta(days=2), change + timedelta(days=2)) > 100


if FULL:

    @pytest.mark.timeout(7200)
    @pytest.mark.parametrize("part", range(PARTS))
    def test_every_zone_every_minute(part: int) -> None:
        for name, moments in grouped()[part::PARTS]:
            hours = [near(change, ZoneInfo(name)) for change in moments[:1]]
            check(name, [*ALWAYS, *[e for found in hours for e in found]], START, END)


def test_29_february_over_a_century_without_one() -> None:
    """Kinds: a search that gives up (CRON-21)."""
    for zone in ("UTC", "Europe/Berlin"):
        for expression in ("0 0 29 2 *", "*/30 * 29 2 *", "0 0 12 29 2 *"):
            fire = next(Cron(expression, zone).after(utc(2096, 3, 1)))
            assert fire.astimezone(ZoneInfo(zone)).date().isoformat() == "2104-02-29"
