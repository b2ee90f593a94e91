"""Schedules: what is due is computed here and made by `fire_schedules`, which lets nothing be made twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol, TypeVar

import msgspec

from skiplock.core.errors import OptionError
from skiplock.core.events import Events
from skiplock.core.schedule import due, run_at
from skiplock.core.schedule_record import Spec, record_of
from skiplock.store.call import Call, Row, nothing
from skiplock.store.schema import render

T = TypeVar("T")
BATCH = 100  # schedules looked at in one statement
SHORTEST = 0.005  # seconds between two looks, whatever the database answers
LONGEST = 1.0  # seconds of firing without a pause, so that the heart beats in between
_DUE = "SELECT now, due_in, name, seen, schedule::text FROM skiplock.due_schedules($1::text::integer)"
_FIRE = "SELECT name, done, to_json(fire_at)#>>'{}', job, problem FROM skiplock.fire_schedules($1::text::json)"
_DECLARE = "SELECT skiplock.declare_schedules($1::text::bigint, $2::text::float8, $3::text::json)"


@dataclass(frozen=True, slots=True)
class Look:
    """What `due_schedules` answered: the moment to judge by, when there is more (seconds), and (name, seen, row as JSON)."""

    now: datetime
    due_in: float | None
    rows: Sequence[tuple[str, str, str]]


@dataclass(frozen=True, slots=True)
class Fired:
    """What became of a fire: `done` is made, waiting, skipped or failed."""

    schedule: str
    done: str
    scheduled_for: datetime | None
    job: int | None
    problem: str | None


def due_call(schema: str) -> Call[Look]:
    """Schedules that must be looked at."""

    def read(rows: Sequence[Row]) -> Look:
        found = [(name, seen, row) for _, _, name, seen, row in rows if name is not None]
        return Look(datetime.fromisoformat(rows[0][0]), rows[0][1], found)

    return Call(render(_DUE, schema), (str(BATCH),), read)


def fire_call(fires: Sequence[Mapping[str, Any]], schema: str) -> Call[list[Fired]]:
    """Make these fires, each of them once whoever asks; see fire_schedules.sql."""

    def read(rows: Sequence[Row]) -> list[Fired]:
        return [Fired(n, done, datetime.fromisoformat(at) if at else None, job, p) for n, done, at, job, p in rows]

    return Call(render(_FIRE, schema), (msgspec.json.encode(fires).decode(),), read)


def declare_call(worker: int, age: float, declared: Mapping[str, Spec], schema: str) -> Call[None]:
    """Tell which schedules the code of this worker declares; `age`: seconds since its process started."""
    told = msgspec.json.encode([{"name": name, "spec": spec} for name, spec in declared.items()]).decode()
    return Call(render(_DECLARE, schema), (str(worker), str(age), told), nothing)


def fire_of(name: str, seen: str, row: str, now: datetime) -> dict[str, Any]:
    """What this schedule owes at that moment, as `fire_schedules` takes it. A row that cannot be read is told as a problem."""
    told: dict[str, Any] = {"name": name, "seen": seen, "until": now, "fires": [], "run_ats": [], "passed_over": 0}
    try:
        found = record_of(row)
        owed = due(found.rule, found.window, found.checked_until, now, missed=found.missed, most=found.missed_most)
    except Exception as error:  # whatever it is: the others must have their turn
        return {**told, "problem": str(error) if isinstance(error, OptionError) else f"{type(error).__name__}: {error}"}
    jobs_at = [run_at(name, fire, found.jitter) for fire in owed.fires]
    return {**told, "next": owed.next, "fires": owed.fires, "run_ats": jobs_at, "passed_over": owed.passed_over}


class Run(Protocol):
    """Runs a call in a transaction of its own."""

    def __call__(self, call: Call[T], /) -> T: ...


class Ticker:
    """Declares this process's schedules, and fires whatever is due. For the heart's thread."""

    def __init__(self, schema: str, declared: Callable[[], Mapping[str, Spec]], events: Events) -> None:
        self._schema, self._declared, self._events = schema, declared, events
        self._born = time.monotonic()
        self._declared_as = 0

    def must_declare(self, worker: int) -> bool:
        """Whether the database does not know yet what the code of this worker declares."""
        return worker != self._declared_as and bool(self._declared())

    def tick(self, run: Run, worker: int) -> float | None:
        """Do what there is to do; answers in how many seconds there will be more, None: not until something changes."""
        if self.must_declare(worker):
            run(declare_call(worker, time.monotonic() - self._born, self._declared(), self._schema))
            self._declared_as = worker
        began = time.monotonic()
        while True:
            look = run(due_call(self._schema))
            if not look.rows:
                return None if look.due_in is None else max(look.due_in, SHORTEST)
            for fired in run(fire_call([fire_of(*row, look.now) for row in look.rows], self._schema)):
                self._tell(fired, look.now)
            if time.monotonic() - began > LONGEST:
                return SHORTEST

    def _tell(self, fired: Fired, now: datetime) -> None:
        if fired.done == "failed":
            self._events.emit("schedule_failed", schedule=fired.schedule, error=fired.problem)
            return
        late = None if fired.scheduled_for is None else max(0.0, (now - fired.scheduled_for).total_seconds())
        told = {"schedule": fired.schedule, "scheduled_for": fired.scheduled_for, "late": late}
        if fired.done == "made":
            self._events.emit("schedule_fired", job=fired.job, **told)
        else:
            self._events.emit("schedule_held", why=fired.done, **told)
