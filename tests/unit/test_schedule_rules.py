"""When schedules fire, what is made of missed fires, and what is refused before it is stored.

Kinds: zones and changes of the clocks (CRON-01 to 05, 17, 23 to 26, 58), ticks that are canonical whatever the moment of looking
(CRON-07, 54), missed fires by policy (CRON-06, 34, 37 to 39), typos (CRON-14), rare and impossible dates (CRON-21), instants
without zone and out of range (CRON-10, 66), the host's own zone (CRON-24). Each by its rule; every zone is in
tests/property/test_schedule_scan.py.
"""

from __future__ import annotations

import os
import time
from datetime import datetime, timedelta
from itertools import islice, pairwise
from zoneinfo import ZoneInfo

import pytest

from skiplock import OptionError, Skiplock, TaskDefinitionError
from skiplock.core.errors import ArgumentError
from skiplock.core.schedule import Cron, Every, Rule, Window, due, every, fires, next_fire, run_at
from tests.support.slow_cron import utc

ALWAYS = Window()


def local(rule: Rule, zone: str, after: datetime, count: int) -> list[str]:
    return [f"{f.astimezone(ZoneInfo(zone)):%d %H:%M %z}" for f in islice(rule.after(after), count)]


@pytest.mark.parametrize(
    ("zone", "expression", "after", "expected"),
    [
        ("Africa/Blantyre", "0 8 * * *", utc(2026, 5, 1), ["01 08:00 +0200", "02 08:00 +0200"]),
        # Eight in the morning, all year.
        ("America/New_York", "0 8 * * *", utc(2026, 3, 7), ["07 08:00 -0500", "08 08:00 -0400", "09 08:00 -0400"]),
        ("America/New_York", "0 17 * * *", utc(2026, 10, 31), ["31 17:00 -0400", "01 17:00 -0500", "02 17:00 -0500"]),
        # Asked in February for a day in May: the offset of that day.
        ("America/Los_Angeles", "0 0 1 5 *", utc(2026, 2, 1), ["01 00:00 -0700"]),
        # An hour that does not exist; its fires are made once, at its end.
        ("America/New_York", "30 2 * * *", utc(2026, 3, 7), ["07 02:30 -0500", "08 03:00 -0400", "09 02:30 -0400"]),
        ("America/New_York", "0,20,40 2 * * *", utc(2026, 3, 8, 6), ["08 03:00 -0400", "09 02:00 -0400"]),
        ("America/New_York", "*/20 2 * * *", utc(2026, 3, 8, 6), ["09 02:00 -0400", "09 02:20 -0400"]),
        # An hour that comes twice.
        ("Europe/Ljubljana", "30 2 * * *", utc(2026, 10, 24, 22), ["25 02:30 +0200", "26 02:30 +0100"]),
        ("Europe/Berlin", "*/30 2 * * *", utc(2026, 10, 24, 22), ["25 02:00 +0200", "25 02:30 +0200", "25 02:00 +0100", "25 02:30 +0100", "26 02:00 +0100"]),
        ("Europe/Berlin", "0 30 2 * * *", utc(2026, 10, 24, 22), ["25 02:30 +0200", "25 02:30 +0100", "26 02:30 +0100"]),
        ("Australia/Lord_Howe", "45 1 * * *", utc(2026, 4, 4), ["05 01:45 +1100", "06 01:45 +1030"]),
        ("America/Santiago", "0 0 * * *", utc(2026, 9, 5, 12), ["06 01:00 -0300", "07 00:00 -0300"]),
    ],
)  # fmt: skip
def test_by_the_clocks_of_a_zone(zone: str, expression: str, after: datetime, expected: list[str]) -> None:
    assert local(Cron(expression, zone), zone, after, len(expected)) == expected


def test_every_minute_goes_on_in_real_time_when_the_clocks_go_back() -> None:
    """One a minute, never two at once and never a pause (CRON-04, 18, 57)."""
    found = list(islice(Cron("* * * * *", "America/Los_Angeles").after(utc(2026, 11, 1, 7)), 240))
    assert {later - one for one, later in pairwise(found)} == {timedelta(minutes=1)}


@pytest.mark.parametrize("host", ["UTC", "Europe/London", "Pacific/Kiritimati"])
def test_the_zone_of_the_host_has_no_effect(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "TZ", host)
    time.tzset()
    try:
        found = list(islice(Cron("30 1 * * *", "UTC").after(utc(2026, 10, 24, 12)), 3))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [fire.isoformat() for fire in found] == [f"2026-10-{day}T01:30:00+00:00" for day in (25, 26, 27)]


@pytest.mark.parametrize(
    "rule", [Cron("*/5 * * * *", "Europe/Berlin"), Cron("5 3 * * *"), Cron("*/7 * * * * *"), Every(300.0)]
)
def test_the_moment_of_looking_changes_nothing(rule: Rule) -> None:
    """To see it fail: let Every.after count from `moment`."""
    found = list(islice(rule.after(utc(2026, 1, 1, 11, 59)), 4))
    assert all(fire.microsecond == 0 for fire in found)
    first, second = found[:2]
    for before in (0.000001, 0.5, 0.999999):
        assert next(rule.after(first - timedelta(seconds=before))) == first
    for later in (0.0, 0.000001, 0.5, 1.0):
        assert next(rule.after(first + timedelta(seconds=later))) == second


def test_intervals_are_counted_from_their_anchor() -> None:
    assert list(islice(every("7d").after(utc(2026, 12, 2)), 2)) == [utc(2026, 12, 3), utc(2026, 12, 10)]
    anchored = every(timedelta(hours=5), utc(2026, 12, 1, 9))
    assert list(islice(anchored.after(utc(2026, 11, 30)), 2)) == [utc(2026, 12, 1, 9), utc(2026, 12, 1, 14)]
    assert list(islice(every("1.5s").after(utc(2026, 1, 1)), 2))[1].microsecond == 0


def test_windows() -> None:
    window = Window(utc(2026, 1, 2), utc(2026, 1, 4))
    days = [utc(2026, 1, 2), utc(2026, 1, 3)]
    assert list(fires(Cron("0 0 * * *"), window, utc(2020, 1, 1))) == days
    assert list(fires(Every(86400.0), window, utc(2026, 1, 2))) == days[1:]
    assert next_fire(Cron("0 0 * * *"), window, utc(2026, 1, 3)) is None
    assert next_fire(Every(86400.0), ALWAYS, utc(9998, 12, 31)) == utc(9999, 1, 1)
    assert next_fire(Cron("0 0 1 1 *", "Pacific/Apia"), ALWAYS, utc(9999, 6, 1)) is None


HOURLY = Cron("0 * * * *")


@pytest.mark.parametrize(
    ("missed", "most", "minutes_past", "expected"),
    [
        ("latest", 100, 30, [10]),
        ("all", 100, 30, [8, 9, 10]),
        ("all", 2, 30, [9, 10]),
        ("none", 100, 30, []),
        ("none", 100, 0, [10]),
        ("none", 100, 1, [10]),
        ("none", 100, 1.1, []),
    ],
)
def test_what_was_missed(missed: str, most: int, minutes_past: float, expected: list[int]) -> None:
    """To see it fail: let `_chosen` answer all of them."""
    now = utc(2026, 1, 1, 10) + timedelta(minutes=minutes_past)
    found = due(HOURLY, ALWAYS, utc(2026, 1, 1, 7), now, missed=missed, most=most)
    assert found.fires == tuple(utc(2026, 1, 1, hour) for hour in expected)
    assert (found.passed_over, found.next) == (3 - len(expected), utc(2026, 1, 1, 11))


@pytest.mark.parametrize("rule", [Every(1.0), Cron("* * * * * *", "Europe/Berlin"), Cron("* * * * *")])
def test_years_that_were_missed_cost_nothing(rule: Rule) -> None:
    """The heart's thread computes it. To see it fail: take `islice` out of `due`."""
    began = time.process_time()
    now = utc(2026, 6, 1)
    found = due(rule, ALWAYS, utc(2001, 1, 1), now, missed="all", most=50)
    assert time.process_time() - began < 1.0
    assert len(found.fires) == 50 and found.fires[-1] == now and found.passed_over >= 100
    assert found.next == next(rule.after(now))


def test_jitter_is_the_same_wherever_it_is_drawn() -> None:
    fire = utc(2026, 1, 1)
    drawn = [run_at(name, fire + timedelta(hours=hour), 60.0) for name in ("a", "b") for hour in range(50)]
    late = [(at - fire).total_seconds() % 3600 for at in drawn]
    assert all(0 <= seconds < 60 for seconds in late)
    assert max(late) > 50 and min(late) < 10 and len(set(late)) == 100
    assert run_at("a", fire, 60.0) == drawn[0] and run_at("a", fire, 0.0) == fire


@pytest.mark.parametrize(
    "expression",
    ["", "x", "* * * *", "61 * * * *", "0 24 * * *", "0 0 31 2 *", "0 0 30 2 *", "* * */20 * 1L", "@reboot", "0 0 * * mon-xyz", "0 0 * * 1/0", "\0", "9" * 5000],
)  # fmt: skip
def test_expressions_that_are_refused(expression: str) -> None:
    """Also those that can never come: a definite answer, and at once."""
    with pytest.raises(OptionError, match="cron"):
        Cron(expression)


@pytest.mark.parametrize("zone", ["", "Mars/Olympus", "../../etc/passwd", "/etc/passwd", "Europe", "CEST+1", None, 3])
def test_zones_that_are_refused(zone: object) -> None:
    with pytest.raises(OptionError, match=r"time zone .*IANA"):
        Cron("* * * * *", zone)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "interval", [0, 0.5, -1, "0s", "", "soon", float("nan"), float("inf"), "400d", None, timedelta(0), True]
)
def test_intervals_that_are_refused(interval: object) -> None:
    with pytest.raises(OptionError, match="every"):
        every(interval)  # type: ignore[arg-type]


def test_names_and_words() -> None:
    assert Cron("@daily").words() == "At 00:00 every day (UTC)"
    assert next(Cron("@hourly").after(utc(2026, 1, 1, 0, 30))) == utc(2026, 1, 1, 1)
    assert every("1h30m").words() == "Every 1 hour 30 minutes" and every(86400).words() == "Every day"


# --- declaring --------------------------------------------------------------------------------------------------------


@pytest.fixture
def app() -> Skiplock:
    return Skiplock("postgresql:///nowhere")


def test_a_declaration(app: Skiplock) -> None:
    @app.cron("*/5 * * * *", tz="Europe/Berlin", args={"region": "eu"}, overlap="skip", jitter="30s")
    @app.every("1h", name="also", args={"region": "us"}, start=datetime(2027, 1, 1, tzinfo=ZoneInfo("Asia/Tokyo")))
    @app.task(name="report", queue="slow", priority=3, tags=["x"])
    def report(region: str) -> None: ...

    assert list(app.schedules.declared) == ["also", "report"]
    found = app.schedules.declared["report"]
    assert (found["cron"], found["zone"], found["every"], found["overlap"], found["jitter"]) == (
        "*/5 * * * *",
        "Europe/Berlin",
        None,
        "skip",
        30.0,
    )
    assert (found["task"], found["args"], found["queue"], found["priority"], found["tags"]) == (
        "report",
        '{"region":"eu"}',
        "slow",
        3,
        ["x"],
    )
    other = app.schedules.declared["also"]
    assert (other["every"], other["start_at"], other["missed"]) == (3600.0, "2026-12-31T15:00:00+00:00", "latest")


def test_a_plain_function_becomes_a_task(app: Skiplock) -> None:
    @app.every("1h")
    def cleanup_everything() -> None: ...

    assert [name.rpartition(".")[2] for name in app.schedules.declared] == ["cleanup_everything"]
    assert list(app.schedules.declared) == list(app.tasks)


def test_declarations_that_are_refused(app: Skiplock) -> None:
    """At the start, and not by silence."""

    @app.task(name="t")
    def task(n: int) -> None: ...

    with pytest.raises(OptionError, match="cron"):
        app.cron("* * * *")
    with pytest.raises(OptionError, match="IANA"):
        app.cron("* * * * *", tz="Mars")
    with pytest.raises(ArgumentError, match="t"):
        app.every("1h")(task)
    with pytest.raises(ArgumentError):
        app.every("1h", args={"n": "many"})(task)
    with pytest.raises(OptionError, match="overlap='never': use one of allow, skip, queue, cancel"):
        app.every("1h", overlap="never")
    with pytest.raises(OptionError, match="missed_most=0"):
        app.every("1h", missed_most=0)
    for moment in (datetime(2027, 1, 1), utc(9999, 1, 1), "2027-01-01"):
        with pytest.raises(OptionError, match="start"):
            app.every("1h", start=moment)  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="never be in force"):
        app.every("1h", start=utc(2027, 1, 1), end=utc(2026, 1, 1))
    with pytest.raises(OptionError, match="no delay"):
        app.every("1h", args={"n": 1})(task.using(delay=5))
    with pytest.raises(OptionError, match="meta: scheduled_for is set by the schedule itself"):
        app.every("1h", args={"n": 1})(task.using(meta={"scheduled_for": 1}))
    app.every("1h", args={"n": 1})(task)
    with pytest.raises(TaskDefinitionError, match="'t' is declared twice"):
        app.cron("* * * * *", args={"n": 1})(task)
    assert list(app.schedules.declared) == ["t"]
