"""Queues and tasks at run time: pause, resume, bound, age. Each is one call and one transaction, and counts for all workers at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from skiplock.core.codec import check_text
from skiplock.core.errors import OptionError
from skiplock.core.inspect_value import shown
from skiplock.core.outcome import Duration, pause, seconds
from skiplock.store.call import Call, Row, nothing
from skiplock.store.schema import render

MOST_DEPTH = 1_000_000  # jobs that an enqueue may have to count
MOST_AGE = 31_622_400.0  # seconds
_PAUSES = {
    "queue": "SELECT skiplock.pause_queue($1::text, $2::text::float8, $3::text::timestamptz)",
    "task": "SELECT skiplock.pause_task($1::text, $2::text::float8, $3::text::timestamptz)",
}
_PAUSED_TASKS = """SELECT t.task, t.paused_at, t.resume_at FROM skiplock.paused_tasks t
WHERE t.resume_at IS NULL OR t.resume_at > skiplock.now() ORDER BY t.task LIMIT 1000"""


@dataclass(frozen=True, slots=True)
class PausedTask:
    """A task whose jobs no worker starts, until `resume_at` (None: until somebody resumes it)."""

    name: str
    paused_at: datetime
    resume_at: datetime | None


def pause_call(
    queue: str, schema: str, *, length: Duration | None = None, until: datetime | None = None
) -> Call[datetime | None]:
    """No worker claims from this queue for that time, or until then, or until it is resumed; answers until when.

    Running jobs go on, and so do the few that workers have claimed ahead. Raises OptionError.
    """
    return _pause("queue", queue, schema, length, until)


def resume_call(queue: str, schema: str) -> Call[None]:
    """Claiming goes on."""
    return Call(render("SELECT skiplock.resume($1::text)", schema), (check_text(queue, "queue"),), nothing)


def pause_task_call(
    task: str, schema: str, *, length: Duration | None = None, until: datetime | None = None
) -> Call[datetime | None]:
    """The same for the jobs of one task, in whatever queue. It needs not be known to anybody yet."""
    return _pause("task", task, schema, length, until)


def resume_task_call(task: str, schema: str) -> Call[None]:
    """Its jobs are claimed again."""
    return Call(render("SELECT skiplock.resume_task($1::text)", schema), (check_text(task, "task"),), nothing)


def paused_tasks_call(schema: str) -> Call[list[PausedTask]]:
    """All paused tasks, by name, at most 1,000."""
    return Call(render(_PAUSED_TASKS, schema), (), _tasks)


def bound_call(queue: str, most: int | None, schema: str) -> Call[None]:
    """An enqueue that would make the queue hold more ready and waiting jobs than that is refused; None: none is.

    Raises OptionError.
    """
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or not 1 <= most <= MOST_DEPTH):
        raise OptionError(f"queue {shown(queue)}: bound {shown(most)}: must be a whole number from 1 to {MOST_DEPTH}")
    params = (check_text(queue, "queue"), None if most is None else str(most))
    return Call(render("SELECT skiplock.bound_queue($1::text, $2::text::integer)", schema), params, nothing)


def age_call(queue: str, every: Duration | None, schema: str) -> Call[None]:
    """The queue's ready jobs rise by one in priority for each such time that they wait; None: no longer. Raises OptionError."""
    length = None if every is None else seconds(every, "every")
    if length is not None and not 1 <= length <= MOST_AGE:
        raise OptionError(f"queue {shown(queue)}: every={shown(every)}: must be from 1 second to a year")
    params = (check_text(queue, "queue"), None if length is None else str(length))
    return Call(render("SELECT skiplock.age_queue($1::text, $2::text::float8)", schema), params, nothing)


def _pause(what: str, name: str, schema: str, length: Duration | None, until: datetime | None) -> Call[datetime | None]:
    if length is not None and until is not None:
        raise OptionError(f"pause {what} {shown(name)}: give a length or a time until when, not both")
    if until is not None and (not isinstance(until, datetime) or until.utcoffset() is None):
        raise OptionError(f"pause {what} {shown(name)}: until={shown(until)}: give a datetime with its time zone")
    params = (
        check_text(name, what),
        None if length is None else str(pause(length, "pause")),
        None if until is None else until.isoformat(),
    )

    def read(rows: Sequence[Row]) -> datetime | None:
        found: datetime | None = rows[0][0]
        return found

    return Call(render(_PAUSES[what], schema), params, read)


def _tasks(rows: Sequence[Row]) -> list[PausedTask]:
    return [PausedTask(*row) for row in rows]
