"""Schedules: find, show and act. Each is one call and one transaction; workers see to the rest at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from skiplock.core.codec import check_name
from skiplock.core.errors import OptionError, ScheduleNotFoundError
from skiplock.core.schedule_record import ScheduleRecord, record_of
from skiplock.store.call import Call, Row
from skiplock.store.schema import render

_LIST = "SELECT to_json(s)::text FROM skiplock.schedules s WHERE $1::text IS NULL OR s.name = $1::text ORDER BY s.name LIMIT 10000"
_ADD = "SELECT skiplock.add_schedule($1::text, $2::text::json)"
_CHANGE = "SELECT skiplock.change_schedule($1::text, $2::text::json)"
_RESET = "SELECT skiplock.reset_schedule($1::text)"
_PAUSE = "SELECT skiplock.pause_schedule($1::text)"
_RESUME = "SELECT skiplock.resume_schedule($1::text)"
_DELETE = "SELECT skiplock.delete_schedule($1::text)"
_RUN = "SELECT skiplock.run_schedule($1::text)"
_WHY_NOT = {
    "exists": "there is one of that name already; change it, or give the new one another name",
    "declared": "the code of a living worker declares it, and it would come back with the next one: pause it, or take it out of the code",
}


def list_schedules_call(schema: str) -> Call[list[ScheduleRecord]]:
    """All schedules by name, at most 10,000. Raises OptionError for a row that was written by hand and cannot be read."""
    return Call(render(_LIST, schema), (None,), lambda rows: [record_of(row[0]) for row in rows])


def get_schedule_call(name: str, schema: str) -> Call[ScheduleRecord]:
    """One of them. Raises ScheduleNotFoundError."""

    def read(rows: Sequence[Row]) -> ScheduleRecord:
        if not rows:
            raise _missing(name)
        return record_of(rows[0][0])

    return Call(render(_LIST, schema), (check_name(name, "schedule"),), read)


def add_schedule_call(name: str, spec: Mapping[str, Any], schema: str) -> Call[None]:
    """Make one. Raises OptionError if there is one of that name."""
    return _act(_ADD, name, schema, spec)


def change_schedule_call(name: str, spec: Mapping[str, Any], schema: str) -> Call[None]:
    """Change what is in `spec`. With another rule or zone it counts from now. Raises ScheduleNotFoundError."""
    return _act(_CHANGE, name, schema, spec)


def reset_schedule_call(name: str, schema: str) -> Call[None]:
    """As its code says again, and not paused. Raises ScheduleNotFoundError."""
    return _act(_RESET, name, schema)


def pause_schedule_call(name: str, schema: str) -> Call[None]:
    """It fires no more until it is resumed, whatever restarts. Raises ScheduleNotFoundError."""
    return _act(_PAUSE, name, schema)


def resume_schedule_call(name: str, schema: str) -> Call[None]:
    """It goes on from now; what it would have fired meanwhile is not made up for. Raises ScheduleNotFoundError."""
    return _act(_RESUME, name, schema)


def delete_schedule_call(name: str, schema: str) -> Call[None]:
    """Delete it; its jobs stay. Raises ScheduleNotFoundError, and OptionError if a living worker declares it."""
    return _act(_DELETE, name, schema)


def run_schedule_call(name: str, schema: str) -> Call[int]:
    """A job of it now, beside its fires; answers the job's id. Raises ScheduleNotFoundError."""

    def read(rows: Sequence[Row]) -> int:
        if rows[0][0] is None:
            raise _missing(name)
        return int(rows[0][0])

    return Call(render(_RUN, schema), (check_name(name, "schedule"),), read)


def _act(sql: str, name: str, schema: str, spec: Mapping[str, Any] | None = None) -> Call[None]:
    def read(rows: Sequence[Row]) -> None:
        answer = rows[0][0]
        if answer == "missing":
            raise _missing(name)
        if answer != "done":
            raise OptionError(f"schedule {name!r}: {_WHY_NOT[answer]}")

    params = (check_name(name, "schedule"), *([] if spec is None else [msgspec.json.encode(spec).decode()]))
    return Call(render(sql, schema), params, read)


def _missing(name: str) -> ScheduleNotFoundError:
    return ScheduleNotFoundError(f"schedule {name!r}: there is none of that name")
