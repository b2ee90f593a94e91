"""A schedule as a value: what it is to do (`Spec`), and its row in the database (`ScheduleRecord`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import msgspec

from skiplock.core.depth import decode_json
from skiplock.core.errors import OptionError
from skiplock.core.inspect_value import shown
from skiplock.core.job import NewJob
from skiplock.core.outcome import Duration, seconds
from skiplock.core.schedule import ALLOW, LATEST, MISSED, MOST, OVERLAP, Cron, Rule, Window, every, fires, zone_of

LONGEST_JITTER = 86400.0  # seconds
RESERVED = ("schedule", "scheduled_for")  # members of a scheduled job's `meta`
_NULL = b"null"
Spec = dict[str, Any]  # plain values by column of the table: what `_put_schedule` (sql/upkeep/schedules.sql) takes


@dataclass(frozen=True, slots=True)
class Policy:
    """When and how a schedule fires, beside its rule; None: as it is, or the default."""

    start: datetime | None = None
    end: datetime | None = None
    missed: str | None = None
    missed_most: int | None = None
    overlap: str | None = None
    waiting_most: int | None = None
    jitter: Duration | None = None

    def spec(self) -> Spec:
        """What is given, checked. Raises OptionError."""
        if self.start is not None and self.end is not None and _moment(self.start, "start") >= _moment(self.end, "end"):
            raise OptionError(f"start={self.start.isoformat()}, end={self.end.isoformat()}: it would never be in force")
        found: Spec = {
            "start_at": None if self.start is None else _moment(self.start, "start").isoformat(),
            "end_at": None if self.end is None else _moment(self.end, "end").isoformat(),
            "missed": _one_of(self.missed, MISSED, "missed"),
            "missed_most": _count(self.missed_most, "missed_most"),
            "overlap": _one_of(self.overlap, OVERLAP, "overlap"),
            "waiting_most": _count(self.waiting_most, "waiting_most"),
            "jitter": None if self.jitter is None else _jitter(self.jitter),
        }
        return {key: value for key, value in found.items() if value is not None}


DEFAULTS: Spec = {
    "start_at": None, "end_at": None, "missed": LATEST, "missed_most": MOST, "overlap": ALLOW, "waiting_most": 1, "jitter": 0.0,
}  # fmt: skip


def rule_spec(
    cron: str | None = None, zone: str | None = None, interval: Duration | None = None, anchor: datetime | None = None
) -> Spec:
    """The columns of a rule, checked. Raises OptionError."""
    if cron is not None and interval is not None:
        raise OptionError(f"cron={shown(cron)} and every={shown(interval)}: give one of them")
    if cron is not None:
        found = Cron(cron, "UTC" if zone is None else zone)
        return {"cron": cron, "every": None, "anchor": None} | ({} if zone is None else {"zone": found.zone})
    if interval is not None:
        counted = None if anchor is None else _moment(anchor, "anchor")
        told = None if counted is None else counted.isoformat()
        return {"cron": None, "every": every(interval, counted).interval, "anchor": told}
    return {} if zone is None else {"zone": zone_of(zone).key}


def job_spec(job: NewJob) -> Spec:
    """The columns of the jobs it makes. Raises OptionError for what a scheduled job cannot have."""
    if job.delay is not None or job.run_at is not None:
        raise OptionError("a schedule says itself when its jobs run: give it no delay and no at")
    taken = [key for key in RESERVED if key in (decode_json(job.meta) if job.meta else {})]
    if taken:
        raise OptionError(f"meta: {', '.join(taken)} is set by the schedule itself; use another name")
    return {
        "task": job.task, "args": job.args, "queue": job.queue, "priority": job.priority, "max_attempts": job.max_attempts,
        "tags": list(job.tags) or None, "meta": job.meta, "options": job.options,
    }  # fmt: skip


class ScheduleRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule as the desk shows it. Times are timezone-aware; `every` and `jitter` are seconds.

    `next_fire` is None until a worker has computed it: `upcoming` computes it here and now. `made`, `skipped` and `passed_over`
    count fires: those that became jobs, those that did not because the last job had not ended, and those that were missed.
    """

    name: str
    task: str
    args: msgspec.Raw
    queue: str
    priority: int
    max_attempts: int
    tags: list[str] | None
    meta: msgspec.Raw
    options: msgspec.Raw
    cron: str | None
    every: float | None
    zone: str
    anchor: datetime | None
    start_at: datetime | None
    end_at: datetime | None
    missed: str
    missed_most: int
    overlap: str
    waiting_most: int
    jitter: float
    declared: msgspec.Raw
    changed: msgspec.Raw
    paused_at: datetime | None
    orphaned_at: datetime | None
    created_at: datetime
    checked_until: datetime
    next_fire: datetime | None
    waiting: list[datetime]
    last_fire: datetime | None
    last_made_at: datetime | None
    last_job: int | None
    made: int
    skipped: int
    passed_over: int
    problem: str | None

    @property
    def rule(self) -> Rule:
        """When it fires. Raises OptionError if its row was written by someone who did not know how."""
        if self.cron is not None:
            return Cron(self.cron, self.zone)
        return every(self.every or 0.0, self.anchor)

    @property
    def window(self) -> Window:
        return Window(self.start_at, self.end_at)

    @property
    def is_declared(self) -> bool:
        """Whether it comes from code, and was not made by hand."""
        return bytes(self.declared) != _NULL

    @property
    def is_changed(self) -> bool:
        """Whether it is other than its code says."""
        return bytes(self.changed) != _NULL or (self.is_declared and self.paused_at is not None)

    @property
    def state(self) -> str:
        """paused, orphaned (no living worker declares it any more), failing, ended or active."""
        if self.paused_at is not None:
            return "paused"
        if self.orphaned_at is not None:
            return "orphaned"
        if self.problem is not None:
            return "failing"
        return "active" if self.next_fire is not None or self.upcoming(1) else "ended"

    def upcoming(self, count: int, after: datetime | None = None) -> list[datetime]:
        """The next fires, whether or not it is paused. None, if its rule cannot be read."""
        try:
            return list(islice(fires(self.rule, self.window, after or self.checked_until), count))
        except OptionError:
            return []

    def next(self) -> datetime | None:
        """The next fire (UTC); of one that is paused or orphaned: what it would be."""
        found = [self.next_fire] if self.next_fire is not None else self.upcoming(1)
        return found[0].astimezone(UTC) if found else None

    def local(self, moment: datetime) -> datetime:
        """That moment in the schedule's zone; in UTC if there is no such zone here."""
        try:
            return moment.astimezone(zone_of(self.zone))
        except OptionError:
            return moment.astimezone(UTC)

    def document(self) -> dict[str, Any]:
        """Plain values for JSON. Times are in UTC, those of the next and the last fire in the schedule's zone too."""
        found: dict[str, Any] = {}
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, msgspec.Raw):
                value = _value(bytes(value))
            elif isinstance(value, datetime):
                value = value.astimezone(UTC)
            found[name] = value
        coming = self.next()
        return found | {
            "state": self.state,
            "declared": self.is_declared,
            "waiting": [moment.astimezone(UTC) for moment in self.waiting],
            "next_fire": coming,
            "next_fire_local": None if coming is None else self.local(coming),
            "last_fire_local": None if self.last_fire is None else self.local(self.last_fire),
        }


def record_of(row: str | bytes) -> ScheduleRecord:
    """The record of a row as JSON. Raises OptionError for one that cannot be read."""
    try:
        return msgspec.json.decode(row, type=ScheduleRecord)
    except (msgspec.DecodeError, ValueError) as error:
        raise OptionError(f"this schedule's row cannot be read: {error}") from None


def _value(text: bytes) -> Any:
    try:
        return decode_json(text.decode())
    except ValueError:
        return text.decode("utf-8", "replace")


def _moment(value: datetime, where: str) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None or value.utcoffset() is None:
        raise OptionError(
            f"{where}={shown(value)}: give a datetime with a time zone, as in datetime(2027, 3, 1, tzinfo=UTC)"
        )
    if not 1900 <= value.year < 9999:
        raise OptionError(f"{where}={shown(value)}: must lie between the years 1900 and 9998")
    return value.astimezone(UTC)


def _one_of(value: str | None, allowed: tuple[str, ...], where: str) -> str | None:
    if value is not None and value not in allowed:
        raise OptionError(f"{where}={shown(value)}: use one of {', '.join(allowed)}")
    return value


def _count(value: int | None, where: str) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MOST):
        raise OptionError(f"{where}={shown(value)}: must be a whole number from 1 to {MOST}")
    return value


def _jitter(value: Duration) -> float:
    found = seconds(value, "jitter")
    if found > LONGEST_JITTER:
        raise OptionError(f"jitter={shown(value)}: at most a day")
    return found


def merged(*specs: Mapping[str, Any]) -> Spec:
    """One spec of several; what comes later counts."""
    return {key: value for spec in specs for key, value in spec.items()}
