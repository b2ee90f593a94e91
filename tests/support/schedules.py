"""Schedules at moments of a test's choosing: the database's clock stands where it is put, and ticks are made by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar

import psycopg

from skiplock import ScheduleRecord, Skiplock
from skiplock.core.events import Event, Events
from skiplock.store.call import Call
from skiplock.store.pool import run_call
from skiplock.upkeep.schedules import Fired, Ticker, due_call, fire_call, fire_of
from tests.support.databases import connect
from tests.support.verbs import Verbs

T = TypeVar("T")
EVENTS = ("schedule_fired", "schedule_held", "schedule_failed")


class Scheduler:
    """One process that ticks, with a connection of its own. `declared`: the schedules of its code, by an app."""

    def __init__(self, connection: psycopg.Connection[Any], app: Skiplock | None = None) -> None:
        self.connection, self.events = connection, Events()
        self.heard: list[Event] = []
        self.events.subscribe(self.heard.append, *EVENTS)
        declared = app.schedules.declared if app is not None else {}
        self.ticker = Ticker("skiplock", lambda: declared, self.events)
        self.worker = 0

    def run(self, call: Call[T]) -> T:
        return run_call(self.connection, call)

    def tick(self) -> float | None:
        return self.ticker.tick(self.run, self.worker)

    def look(self) -> Callable[[], list[Fired]]:
        """See what is due; the answer makes the fires of it. Between the two anything may happen."""
        seen = self.run(due_call("skiplock"))
        fires = [fire_of(*row, seen.now) for row in seen.rows]
        return lambda: self.run(fire_call(fires, "skiplock"))


@contextmanager
def scheduler(dsn: str, app: Skiplock | None = None) -> Iterator[Scheduler]:
    with connect(dsn) as connection:
        yield Scheduler(connection, app)


class Clockwork:
    """A database whose clock stands, an app on it, and one scheduler."""

    def __init__(self, db: Verbs, app: Skiplock, ticker: Scheduler) -> None:
        self.db, self.app, self.scheduler = db, app, ticker

    def at(self, moment: datetime) -> None:
        """Put the clock."""
        self.now = moment
        text = moment.isoformat()
        self.db.rows(
            "CREATE OR REPLACE FUNCTION skiplock.now() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE AS "
            f"$$ SELECT '{text}'::timestamptz $$"
        )

    def later(self, **by: float) -> None:
        self.at(self.now + timedelta(**by))

    def tick(self) -> float | None:
        return self.scheduler.tick()

    def tick_at(self, moment: datetime) -> float | None:
        self.at(moment)
        return self.tick()

    def add(self, name: str, *, task: str = "t", **options: Any) -> None:
        self.app.run(self.app.schedules.add(name, task, **options))

    def change(self, name: str, **options: Any) -> None:
        self.app.run(self.app.schedules.change(name, **options))

    def get(self, name: str) -> ScheduleRecord:
        return self.app.run(self.app.schedules.get(name))

    def fired(self, name: str | None = None) -> list[datetime]:
        """The instants that jobs were made for, of one schedule or all; told by the jobs themselves."""
        found = self.db.rows(
            "SELECT (j.meta->>'scheduled_for')::timestamptz FROM skiplock.jobs j "
            "WHERE %s::text IS NULL OR j.meta->>'schedule' = %s ORDER BY j.id",
            name, name,
        )  # fmt: skip
        return [row[0] for row in found]

    def jobs(self) -> int:
        return self.db.count()
