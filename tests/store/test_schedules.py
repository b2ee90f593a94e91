"""Schedules in the database: each fire once, whoever ticks, how many do, and whatever else happens to the row.

Kinds: doubled ticks (CRON-07, 12, 16, 35, 42, 46, 50, 52), lost and late ones (CRON-06, 15, 32, 34, 37 to 39, 62), missed-fire and
overlap policies (CRON-13, 44), zones that change (CRON-08), bad rows (CRON-14, 27, 30), deletion while a job runs (CRON-65), two
releases side by side. Ticks are made by hand, at moments by the database's clock, which here stands where it is put.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from skiplock import OptionError, ScheduleNotFoundError, Skiplock
from tests.support import eventually
from tests.support.schedules import Clockwork, Scheduler, scheduler
from tests.support.slow_cron import utc
from tests.support.verbs import open_verbs

NOON = utc(2026, 7, 1, 12)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)


@pytest.fixture
def clock(dsn: str) -> Iterator[Clockwork]:
    with open_verbs(dsn) as db, Skiplock(dsn) as app, scheduler(dsn) as ticker:
        db.empty()
        found = Clockwork(db, app, ticker)
        found.at(NOON - MINUTE)
        yield found


# --- one fire ---------------------------------------------------------------------------------------------------------


def test_a_fire_is_made_once_and_never_early(clock: Clockwork) -> None:
    """To see it fail: take `s.checked_until = v_one.seen` out of fire_schedules.sql, or let due_schedules look a second ahead and
    `due` (core/schedule.py) take fires of the next second."""
    clock.add("s", cron="0 12 * * *", args={"n": 1})
    assert clock.tick() == 60.0
    assert clock.tick_at(NOON - timedelta(microseconds=1)) == pytest.approx(0.005, abs=0.01) and clock.jobs() == 0
    for later in (0.0, 0.000001, 0.5, 1.0, 59.0, 3600.0):
        clock.tick_at(NOON + later * SECOND)
        assert clock.fired() == [NOON]
    [job] = clock.db.rows("SELECT * FROM skiplock.jobs")
    assert (job.task, job.args, job.state, job.meta) == (
        "t",
        {"n": 1},
        "ready",
        {"schedule": "s", "scheduled_for": "2026-07-01T12:00:00Z"},
    )
    found = clock.get("s")
    assert (found.last_fire, found.last_job, found.made, found.next()) == (NOON, job.id, 1, NOON + timedelta(days=1))
    assert [event.fields["job"] for event in clock.scheduler.heard] == [job.id]


def test_a_clock_that_steps_back_between_looking_and_making(clock: Clockwork) -> None:
    """After a failover, say, to a server whose clock is behind. To see it fail: take `f.until <= v_now` out of fire_schedules."""
    clock.add("s", cron="* * * * *")
    clock.tick()
    clock.at(NOON)
    make = clock.scheduler.look()
    clock.at(NOON - SECOND)
    assert make() == [] and clock.jobs() == 0
    clock.tick_at(NOON)
    assert clock.fired() == [NOON]


def test_two_that_look_at_once(clock: Clockwork, dsn: str) -> None:
    """Both see it due; one makes it, and only that one says so. To see it fail: as above."""
    clock.add("s", cron="* * * * *")
    clock.tick()
    clock.at(NOON)
    with scheduler(dsn) as other:
        first, second = clock.scheduler.look(), other.look()
        assert [fired.done for fired in first()] == ["made"]
        assert second() == []
    assert clock.fired() == [NOON]


def test_two_that_make_it_at_once(clock: Clockwork, dsn: str) -> None:
    """The second waits for the first one's transaction, and then finds it done; or, if that is rolled back, does it."""
    waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
    clock.add("s", cron="* * * * *")
    clock.tick()
    for turn, commit in enumerate((True, False)):
        clock.at(NOON + turn * MINUTE)
        with psycopg.connect(dsn) as held, scheduler(dsn) as other, ThreadPoolExecutor(1) as threads:
            first, second = Scheduler(held).look(), other.look()
            assert len(first()) == 1
            answer = threads.submit(second)
            eventually(lambda: clock.db.value(waiting) == 1)
            held.commit() if commit else held.rollback()
            assert len(answer.result(20)) == (0 if commit else 1)
        assert clock.fired() == [NOON + n * MINUTE for n in range(turn + 1)]


def test_many_that_tick_at_once(clock: Clockwork, dsn: str) -> None:
    for number in range(20):
        clock.add(f"s{number}", cron="* * * * *")
    clock.tick()
    clock.at(NOON)
    with ExitStack() as stack, ThreadPoolExecutor(6) as threads:
        all_of_them = [stack.enter_context(scheduler(dsn)) for _ in range(6)]
        list(threads.map(lambda one: one.tick(), all_of_them))
        assert sum(len(one.heard) for one in all_of_them) == 20
    assert clock.fired() == [NOON] * 20


def test_more_than_one_statement_takes(clock: Clockwork) -> None:
    clock.db.rows(
        'SELECT skiplock._put_schedule(\'s\' || n, \'{"task": "t", "cron": "0 12 * * *"}\') FROM generate_series(1, 230) n'
    )
    clock.tick_at(NOON)
    assert len(clock.fired()) == 230
    assert clock.tick() == pytest.approx(86400)


def test_a_tick_that_fails_is_made_up_for(clock: Clockwork) -> None:
    """The database refuses to write for a while. Kinds: a read-only failover over the tick."""
    clock.add("s", cron="0 * * * *")
    clock.tick()
    clock.at(NOON)
    connection = clock.scheduler.connection
    connection.execute("SET default_transaction_read_only = on")
    with pytest.raises(Exception, match="read-only"):
        clock.tick()
    connection.execute("SET default_transaction_read_only = off")
    clock.later(minutes=3)
    clock.tick()
    assert clock.fired() == [NOON]


@pytest.mark.parametrize(
    ("options", "expected", "passed_over"),
    [
        ({}, [5], 5),
        ({"missed": "none"}, [], 6),
        ({"missed": "all"}, [0, 1, 2, 3, 4, 5], 0),
        ({"missed": "all", "missed_most": 2}, [4, 5], 4),
    ],
)
def test_the_scheduler_was_away(clock: Clockwork, options: Any, expected: list[int], passed_over: int) -> None:
    clock.add("s", cron="0 * * * *", **options)
    clock.tick()
    clock.tick_at(NOON + 5.5 * HOUR)
    assert clock.fired() == [NOON + hour * HOUR for hour in expected]
    found = clock.get("s")
    assert (found.passed_over, found.next()) == (passed_over, NOON + 6 * HOUR)
    clock.tick_at(NOON + 6 * HOUR)
    assert clock.fired()[-1] == NOON + 6 * HOUR and len(clock.fired()) == len(expected) + 1


def test_jitter_moves_the_job_and_not_the_fire(clock: Clockwork) -> None:
    clock.add("s", cron="0 * * * *", jitter="10m")
    clock.tick()
    clock.tick_at(NOON)
    [job] = clock.db.rows("SELECT * FROM skiplock.jobs")
    assert clock.fired() == [NOON] and job.state == "scheduled" and NOON < job.run_at < NOON + 10 * MINUTE


def test_a_window_ends(clock: Clockwork) -> None:
    clock.add("s", every="1h", end=NOON + HOUR)
    clock.tick_at(NOON)
    assert clock.tick_at(NOON + 5 * HOUR) is None
    assert clock.fired() == [NOON] and clock.get("s").state == "ended"


def test_large_arguments_tags_and_metadata_come_along(clock: Clockwork) -> None:
    task = clock.app.task(name="large")(lambda text: None)
    made = task.using(tags=["a", 'b"'], meta={"n": 1, "x": "}"}, timeout=5, queue="q", priority=-2, max_attempts=3)
    clock.app.run(clock.app.schedules.add("s", made, args={"text": "x" * 5000}, every="1h"))
    clock.tick()
    clock.tick_at(NOON)
    [job] = clock.db.rows("SELECT * FROM skiplock.find(ARRAY(SELECT id FROM skiplock.jobs))")
    assert job.args == {"text": "x" * 5000} and job.tags == ["a", 'b"'] and job.options == {"timeout": 5.0}
    assert job.meta == {"schedule": "s", "scheduled_for": "2026-07-01T12:00:00Z", "n": 1, "x": "}"}
    assert (job.queue, job.priority, job.max_attempts) == ("q", -2, 3)


# --- changes at run time ----------------------------------------------------------------------------------------------


def test_another_zone_counts_from_now(clock: Clockwork) -> None:
    """Once, and never the past. To see it fail: let _put_schedule leave `checked_until` alone."""
    clock.at(NOON - 6 * HOUR)
    clock.add("s", cron="0 12 * * *", tz="America/New_York")  # 16:00 UTC
    clock.add("other", cron="0 11 * * *")
    assert clock.get("s").next() == NOON + 4 * HOUR
    clock.tick()
    clock.tick_at(NOON)
    clock.later(hours=1)
    clock.change("s", tz="Europe/Berlin")  # 10:00 UTC, which has been
    clock.tick()
    found = clock.get("s")
    assert (found.next(), found.zone, found.passed_over) == (NOON + 22 * HOUR, "Europe/Berlin", 0)
    assert clock.fired("s") == [] and clock.fired("other") == [NOON - HOUR], "another one's change fires nothing again"
    clock.change("s", every="1h")
    assert (clock.get("s").cron, clock.get("s").next()) == (None, NOON + 2 * HOUR)
    clock.change("s", overlap="skip")
    assert clock.get("s").next() == NOON + 2 * HOUR


def test_pause_and_resume(clock: Clockwork) -> None:
    """What would have fired meanwhile is not made up for. To see it fail: let resume leave `checked_until` alone."""
    clock.add("s", cron="0 * * * *", missed="all")
    clock.tick()
    clock.app.run(clock.app.schedules.pause("s"))
    assert clock.tick_at(NOON + 2 * HOUR) is None
    assert clock.get("s").state == "paused"
    clock.later(minutes=30)
    clock.app.run(clock.app.schedules.resume("s"))
    clock.tick()
    assert (clock.fired(), clock.get("s").next()) == ([], NOON + 3 * HOUR)
    clock.tick_at(NOON + 3 * HOUR)
    assert clock.fired() == [NOON + 3 * HOUR]


def test_paused_changed_or_deleted_between_looking_and_making(clock: Clockwork) -> None:
    """To see it fail: take `s.paused_at IS NULL` out of fire_schedules."""
    schedules = clock.app.schedules
    acts: list[Any] = [schedules.pause("s"), schedules.change("s", cron="30 * * * *"), schedules.delete("s")]
    for act in acts:
        clock.at(NOON - MINUTE)
        clock.add("s", cron="0 * * * *")
        clock.tick()
        clock.at(NOON)
        make = clock.scheduler.look()
        clock.app.run(act)
        assert make() == [] and clock.jobs() == 0
        clock.db.rows("DELETE FROM skiplock.schedules")


def test_run_now(clock: Clockwork) -> None:
    clock.add("s", cron="0 * * * *")
    clock.app.run(clock.app.schedules.pause("s"))
    job = clock.app.run(clock.app.schedules.run("s"))
    assert clock.db.job(job).state == "ready" and clock.fired() == [NOON - MINUTE]
    found = clock.get("s")
    assert (found.last_job, found.last_fire, found.made) == (job, None, 1)


def test_deleted_while_its_job_runs(clock: Clockwork) -> None:
    clock.add("s", every="1m")
    clock.tick()
    clock.tick_at(NOON)
    worker = clock.db.register()
    [job] = clock.db.claim(worker)
    clock.app.run(clock.app.schedules.delete("s"))
    assert clock.tick_at(NOON + MINUTE) is None
    clock.db.settle(completed=[job])
    assert clock.db.state(job.id) == "completed" and clock.jobs() == 1


def test_names(clock: Clockwork) -> None:
    clock.add("s", every="1m")
    with pytest.raises(OptionError, match="schedule 's': there is one of that name already"):
        clock.add("s", every="1m")
    schedules = clock.app.schedules
    for act in (schedules.pause, schedules.resume, schedules.reset, schedules.delete, schedules.run, schedules.get):
        with pytest.raises(ScheduleNotFoundError, match="schedule 'x': there is none of that name"):
            clock.app.run(act("x"))
    with pytest.raises(ScheduleNotFoundError):
        clock.change("x", cron="* * * * *")
    for name in ("", "a\nb", "x" * 201):
        with pytest.raises(OptionError):
            clock.add(name, every="1m")
    assert [found.name for found in clock.app.run(schedules.all())] == ["s"]


# --- bad rows ---------------------------------------------------------------------------------------------------------


BAD = [
    "zone = 'Mars/Olympus'",
    "cron = 'every day'",
    "args = '[1]'",
    "queue = ''",
    "priority = 100000",
    "meta = '3'",
]


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_row_stops_no_other(clock: Clockwork, bad: str) -> None:
    """It is told, seen in the list, and tried again. To see it fail: take the EXCEPTION block out of fire_schedules, or
    `except Exception` out of fire_of (upkeep/schedules.py)."""
    clock.add("b", cron="* * * * *")
    for name in ("a", "c"):
        clock.add(name, cron="* * * * *")
    clock.db.rows(f"UPDATE skiplock.schedules SET {bad} WHERE name = 'b'")
    due_in = clock.tick_at(NOON)
    assert sorted(clock.db.rows("SELECT meta->>'schedule' FROM skiplock.jobs")) == [("a",), ("c",)]
    assert due_in == 60.0
    [event] = [event for event in clock.scheduler.heard if event.name == "schedule_failed"]
    assert event.fields["schedule"] == "b" and event.fields["error"]
    assert clock.db.value("SELECT problem FROM skiplock.schedules WHERE name = 'b'") == event.fields["error"]
    clock.db.rows("UPDATE skiplock.schedules SET cron = '* * * * *', every = NULL, start_at = NULL WHERE name = 'b'")
    clock.db.rows(
        "UPDATE skiplock.schedules SET zone = 'UTC', args = '{}', queue = 'q', priority = 0, meta = NULL WHERE name = 'b'"
    )
    clock.tick_at(NOON + MINUTE)
    assert clock.fired("b") == [NOON + MINUTE] and clock.get("b").state == "active"


UNREADABLE = [
    "start_at = 'infinity'",
    "end_at = '4000-01-01 BC'",
    "anchor = '-infinity'",
    "cron = NULL, every = 'NaN'",
    "cron = NULL, every = 0",
    "cron = NULL",
    "every = 5",
    "missed = 'sometimes'",
    "overlap = 'never'",
    "jitter = 'NaN'",
    "waiting_most = 1000000",
]


@pytest.mark.parametrize("bad", UNREADABLE)
def test_rows_that_nobody_could_read_cannot_be_written(clock: Clockwork, bad: str) -> None:
    """To see it fail: take the CHECK out of 0005_schedules.sql."""
    clock.add("s", cron="* * * * *")
    with pytest.raises(psycopg.errors.CheckViolation):
        clock.db.rows(f"UPDATE skiplock.schedules SET {bad}")


def test_what_nobody_can_run_still_becomes_a_job(clock: Clockwork) -> None:
    """A task that no worker knows, on a queue that none serves."""
    clock.app.run(clock.app.schedules.add("s", "nobody.knows", every="1m"))
    clock.tick()
    clock.tick_at(NOON)
    assert clock.db.rows("SELECT task, state FROM skiplock.jobs") == [("nobody.knows", "ready")]


# --- overlap ----------------------------------------------------------------------------------------------------------


def start_one(clock: Clockwork, **options: Any) -> Any:
    """A schedule whose first job runs."""
    clock.add("s", every="1m", **options)
    clock.tick()
    clock.tick_at(NOON)
    [job] = clock.db.claim(clock.db.register())
    return job


def test_overlap_allow(clock: Clockwork) -> None:
    start_one(clock)
    clock.tick_at(NOON + MINUTE)
    assert clock.jobs() == 2


def test_overlap_skip(clock: Clockwork) -> None:
    """To see it fail: let _is_at_work answer false. A job that waits for its next attempt has not ended either."""
    job = start_one(clock, overlap="skip")
    clock.tick_at(NOON + MINUTE)
    clock.db.settle(
        others=[{"id": job.id, "lease": job.lease, "verdict": "retry", "took": 0, "delay": 90, "failure": None}]
    )
    clock.tick_at(NOON + 2 * MINUTE)
    assert clock.jobs() == 1 and clock.get("s").skipped == 2
    assert [event.fields["why"] for event in clock.scheduler.heard if event.name == "schedule_held"] == ["skipped"] * 2
    clock.app.job(job.id).cancel()
    clock.tick_at(NOON + 3 * MINUTE)
    assert clock.fired() == [NOON, NOON + 3 * MINUTE]


def test_overlap_queue(clock: Clockwork) -> None:
    """So many fires wait as were allowed, and each becomes a job when the one before has ended."""
    job = start_one(clock, overlap="queue", waiting_most=2)
    for minute in (1, 2, 3):
        clock.tick_at(NOON + minute * MINUTE)
    found = clock.get("s")
    assert (found.waiting, found.skipped, clock.jobs()) == ([NOON + MINUTE, NOON + 2 * MINUTE], 1, 1)
    for nth in (1, 2):
        clock.db.settle(completed=[job])
        assert clock.tick_at(NOON + 3 * MINUTE + nth * SECOND) == (1.0 if nth == 1 else 58.0)
        assert clock.fired()[-1] == NOON + nth * MINUTE and clock.jobs() == 1 + nth
        [job] = clock.db.claim(clock.db.register())
    assert clock.get("s").waiting == []


def test_overlap_cancel(clock: Clockwork) -> None:
    job = start_one(clock, overlap="cancel")
    clock.tick_at(NOON + MINUTE)
    assert clock.db.rows("SELECT job_id FROM skiplock.cancellations") == [(job.id,)] and clock.jobs() == 2
    clock.tick_at(NOON + 2 * MINUTE)  # the second one was not even claimed
    assert clock.db.rows("SELECT state, count(*) FROM skiplock.jobs GROUP BY state ORDER BY state") == [
        ("cancelled", 1), ("ready", 1), ("running", 1),
    ]  # fmt: skip


def test_overlap_with_fires_that_were_missed(clock: Clockwork) -> None:
    clock.add("s", every="1m", missed="all", overlap="queue", waiting_most=3)
    clock.tick()
    clock.tick_at(NOON + 9 * MINUTE)
    found = clock.get("s")
    assert (clock.fired(), len(found.waiting), found.skipped) == ([NOON], 3, 6)


# --- declared in code -------------------------------------------------------------------------------------------------


class Releases:
    """Processes of releases whose code declares schedules, on one database."""

    def __init__(self, clock: Clockwork, dsn: str, stack: ExitStack) -> None:
        self.clock, self._dsn, self._stack = clock, dsn, stack

    def start(self, *, age: float = 0.0, **crons: str) -> Scheduler:
        """A worker process that has been running for `age` seconds."""
        app = Skiplock(self._dsn)
        task = app.task(name="t")(lambda: None)
        for name, cron in crons.items():
            app.cron(cron, name=name)(task)
        found = self._stack.enter_context(scheduler(self._dsn, app))
        found.ticker._born -= age
        self.register(found)
        return found

    def register(self, process: Scheduler) -> None:
        process.worker = self.clock.db.register(lost_after=1e6)
        process.tick()

    def stop(self, process: Scheduler) -> None:
        self.clock.db.rows("SELECT skiplock.leave(%s)", process.worker)

    def crons(self) -> dict[str, str]:
        found = self.clock.app.run(self.clock.app.schedules.all())
        return {one.name: one.cron or "" for one in found if one.state != "orphaned"}


@pytest.fixture
def releases(clock: Clockwork, dsn: str) -> Iterator[Releases]:
    with ExitStack() as stack:
        yield Releases(clock, dsn, stack)


def test_a_declared_one_fires_by_whoever_ticks(clock: Clockwork, releases: Releases) -> None:
    """The one that ticks knows nothing of it."""
    releases.start(s="0 * * * *")
    clock.tick_at(NOON)
    assert clock.fired("s") == [NOON]
    assert clock.get("s").is_declared and not clock.get("s").is_changed


def test_two_releases_side_by_side(clock: Clockwork, releases: Releases) -> None:
    """That of the process started last counts, whatever the others do. To see it fail: order by d.worker alone in
    _adopt_declarations (the old one that registers anew then counts as new)."""
    old = releases.start(age=1000, a="0 * * * *", gone="5 * * * *")
    new = releases.start(age=10, a="30 * * * *", b="7 * * * *")
    both = {"a": "30 * * * *", "b": "7 * * * *", "gone": "5 * * * *"}
    assert releases.crons() == both
    before = clock.get("a").checked_until
    clock.later(seconds=1)
    for _ in range(3):
        releases.stop(old)
        releases.register(old)
        assert releases.crons() == both
    assert clock.get("a").checked_until == before, "its rule was not put anew"
    releases.stop(old)
    new.tick()
    assert releases.crons() == {"a": "30 * * * *", "b": "7 * * * *"} and clock.get("gone").state == "orphaned"
    back = releases.start(age=0, a="0 * * * *", gone="5 * * * *")
    assert releases.crons() == {"a": "0 * * * *", "b": "7 * * * *", "gone": "5 * * * *"}
    releases.stop(back)
    new.tick()
    assert releases.crons() == {"a": "30 * * * *", "b": "7 * * * *"}


def test_one_that_disappears_from_the_code_stops(clock: Clockwork, releases: Releases) -> None:
    """To see it fail: let due_schedules not adopt."""
    old = releases.start(s="0 * * * *")
    with pytest.raises(OptionError, match="'s': the code of a living worker declares it"):
        clock.app.run(clock.app.schedules.delete("s"))
    new = releases.start(other="0 * * * *")
    releases.stop(old)
    assert clock.db.value("SELECT skiplock._schedules_due_in(true)") == 0.0, "the leader's beat must say so"
    clock.at(NOON)
    new.tick()
    assert (clock.fired("s"), clock.fired("other"), clock.get("s").state) == ([], [NOON], "orphaned")
    assert clock.db.value("SELECT skiplock._schedules_due_in(true)") == 3600.0
    clock.app.run(clock.app.schedules.delete("s"))
    new.tick()
    assert releases.crons() == {"other": "0 * * * *"}


@pytest.mark.parametrize(("away", "expected"), [(50 * MINUTE, [NOON]), (3 * HOUR, [])])
def test_a_service_that_was_away(
    clock: Clockwork, releases: Releases, away: timedelta, expected: list[datetime]
) -> None:
    """A restart over the tick misses nothing; what was taken out of the code long ago does not fire its past."""
    service = releases.start(s="0 * * * *")
    other = releases.start(x="0 0 1 1 *")
    releases.stop(service)
    other.tick()
    clock.later(seconds=away.total_seconds())
    releases.register(service)
    assert clock.fired("s") == expected and clock.get("s").state == "active"


def test_all_workers_restart_over_the_tick(clock: Clockwork, releases: Releases) -> None:
    service = releases.start(s="0 * * * *")
    releases.stop(service)
    clock.at(NOON + 2 * HOUR)
    releases.register(service)
    assert clock.fired("s") == [NOON + 2 * HOUR]


def test_what_people_changed_is_kept_until_it_is_reset(clock: Clockwork, releases: Releases) -> None:
    """Over restarts and new releases. To see it fail: leave `changed` out of _adopt_declarations."""
    first = releases.start(s="0 * * * *")
    clock.change("s", cron="*/7 * * * *", overlap="skip")
    clock.app.run(clock.app.schedules.pause("s"))
    releases.stop(first)
    releases.start(s="1 1 * * *")
    found = clock.get("s")
    assert (found.cron, found.overlap, found.state, found.is_changed) == ("*/7 * * * *", "skip", "paused", True)
    clock.app.run(clock.app.schedules.reset("s"))
    found = clock.get("s")
    assert (found.cron, found.overlap, found.state, found.is_changed) == ("1 1 * * *", "allow", "active", False)


def test_the_same_declaration_again_changes_nothing(clock: Clockwork, releases: Releases) -> None:
    """Deploys more often than the interval do not put it off. Kinds: a weekly schedule that never comes (CRON-32)."""
    process = releases.start(s="0 12 * * *")
    for _ in range(5):
        releases.stop(process)
        clock.later(seconds=11)
        process = releases.start(s="0 12 * * *")
    clock.at(NOON + 5 * SECOND)
    process.tick()
    assert clock.fired() == [NOON]
