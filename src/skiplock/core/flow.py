"""Rules for the flow of jobs: unique keys, limits, order, fairness, expiry. Pure; the keys are computed where a job is made.

A rule with a key computes it from the job's arguments. A key is written as

    "customer:{customer_id}"      parameters in braces, with attributes and items as in `str.format`
    lambda customer_id, **_: …    a function of the arguments; None: the rule does not hold for this job
    "mail-server"                 a plain name: one key for all jobs

A limit's *name* is its text as written (a function's: its `name=`), under which it can be changed at run time; its *key* is that
name and the value, and counts over all tasks, queues, workers and hosts.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

from skiplock.core.codec import check_name
from skiplock.core.errors import ArgumentError, OptionError, TaskDefinitionError
from skiplock.core.inspect_value import kind_of, shown
from skiplock.core.outcome import Duration, as_json, pause, seconds
from skiplock.core.unique_key import digest_of

KEEP, REPLACE, RESCHEDULE, RAISE = "keep", "replace", "reschedule", "raise"
HOLD, SKIP = "hold", "skip"
SEPARATOR = "\x1f"  # between a limit's name and its value; neither can hold it
MOST_LIMITS = 8
MOST = 1_000_000
Key = str | Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Unique:
    """At most one live job for a key: of its task and queue, with the same arguments. Live is a job until it is completed,
    cancelled or dead: while it waits, runs, or is to be tried again.

    `by`: only these parameters count (default: all; none, `[]`: one for task and queue), or a key as for limits, which then
    counts over all tasks and queues. `period`: one for each period of that length, counted from 1970, whether it has ended
    or not ("1h": one an hour). `hold`: for so long after its end no other. `on_conflict`: what an enqueue does that finds
    the key taken:

        keep        nothing; it answers the job that is there (`is_new` is False)
        replace     gives that job the new arguments, time, priority and options, unless it runs already; attempts made with
                    the old ones stay on record and do not count, its place in line stays
        reschedule  the same, to delay it again and again: at most `longest` after it was first enqueued
        raise       UniqueConflictError, nothing is stored

    A key computed from arguments is the same however they are written: see `skiplock.core.unique_key`. Raises OptionError.

    @app.task(unique=Unique(by=["document_id"], on_conflict="reschedule", longest="5m"))
    """

    by: Sequence[str] | Key | None = None
    period: Duration | None = None
    hold: Duration | None = None
    on_conflict: str = KEEP
    longest: Duration | None = None

    def __post_init__(self) -> None:
        if isinstance(self.by, str) or callable(self.by):
            _check_key(self.by, "unique key" if callable(self.by) else check_name(self.by, "unique: by"))
        elif self.by is not None:
            object.__setattr__(self, "by", _check_parameter_names(self.by))
        if self.on_conflict not in (KEEP, REPLACE, RESCHEDULE, RAISE):
            raise OptionError(f"unique: on_conflict={shown(self.on_conflict)}: use keep, replace, reschedule or raise")
        if self.period is not None and seconds(self.period, "unique: period") < 1:
            raise OptionError(f"unique: period={shown(self.period)}: must be at least 1 second")
        if self.longest is not None and self.on_conflict != RESCHEDULE:
            raise OptionError(f'unique: longest={shown(self.longest)}: needs on_conflict="reschedule"')
        for what, value in (("period", self.period), ("hold", self.hold), ("longest", self.longest)):
            if value is not None:
                pause(value, f"unique: {what}")


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most `slots` jobs of a key ready or running at a time, over all workers and hosts.

    `order`: they also start one after another in the order of their enqueueing (needs slots=1), whatever their priorities.
    When one fails: "hold" lets nobody pass until it has ended, be it dead; "skip" lets the next one go while it waits for
    its retry.

    @app.task(limits=[Concurrency("customer:{customer_id}", 3)])
    """

    key: Key
    slots: int
    order: str | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        _check_key(self.key, self.name)
        if not isinstance(self.slots, int) or isinstance(self.slots, bool) or not 1 <= self.slots <= MOST:
            raise OptionError(
                f"limit {shown(self.key)}: slots={shown(self.slots)}: must be a whole number from 1 to {MOST}"
            )
        if self.order not in (None, HOLD, SKIP):
            raise OptionError(f"limit {shown(self.key)}: order={shown(self.order)}: use hold or skip")
        if self.order is not None and self.slots != 1:
            raise OptionError(f"limit {shown(self.key)}: order={self.order!r} needs slots=1, not {self.slots}")


@dataclass(frozen=True, slots=True)
class Rate:
    """At most `number` starts of a key in each `per`, evenly; `burst` of them may come at once after a quiet time.

    An attempt counts as a start, so a retry does, too. Over any span of time t no more than burst + number × t / per start.

    @app.task(limits=[Rate("api.example.org", 100, per="1s", burst=10)])
    """

    key: Key
    number: float
    per: Duration = 1.0
    burst: int = 1
    name: str | None = None

    def __post_init__(self) -> None:
        _check_key(self.key, self.name)
        if not isinstance(self.number, int | float) or isinstance(self.number, bool) or not 0 < self.number <= MOST:
            raise OptionError(
                f"limit {shown(self.key)}: number={shown(self.number)}: must be more than 0, at most {MOST}"
            )
        if seconds(self.per, "limit: per") <= 0:
            raise OptionError(f"limit {shown(self.key)}: per={shown(self.per)}: must be more than 0 seconds")
        if not isinstance(self.burst, int) or isinstance(self.burst, bool) or not 1 <= self.burst <= MOST:
            raise OptionError(
                f"limit {shown(self.key)}: burst={shown(self.burst)}: must be a whole number from 1 to {MOST}"
            )


Limit = Concurrency | Rate


@dataclass(frozen=True, slots=True)
class Flow:
    """The rules of a task, or of `using(…)`; None: as the task says, or none. `unique` False: none. `fair_key`: jobs of one queue are served in turn by this key; `weight`: how many
    turns in a round its jobs have. `expires`: not started by then, a job is cancelled."""

    unique: Unique | bool | None = None
    limits: tuple[Limit, ...] | None = None
    fair_key: Key | None = None
    weight: float | None = None
    expires: float | datetime | None = field(default=None)

    def over(self, other: Flow) -> Flow:
        """These rules, and where they say nothing those of `other`."""
        return Flow(
            *(getattr(self, name) if getattr(self, name) is not None else getattr(other, name) for name in FIELDS)
        )


FIELDS = ("unique", "limits", "fair_key", "weight", "expires")
NO_RULES = Flow()


def flow_of(
    unique: Unique | bool | None,
    limits: Sequence[Limit] | None,
    fair_key: Key | None,
    weight: float | None,
    expires: Duration | datetime | None,
) -> Flow:
    """What was written, checked. Raises OptionError."""
    if unique is True:
        unique = Unique()
    if unique is not None and unique is not False and not isinstance(unique, Unique):
        raise OptionError(f"unique={shown(unique)}: give True, False or a Unique(…)")
    if limits is not None:
        limits = tuple(limits) if isinstance(limits, Sequence) else (limits,)
        if len(limits) > MOST_LIMITS or not all(isinstance(limit, Concurrency | Rate) for limit in limits):
            raise OptionError(
                f"limits={shown(limits)}: give a list of at most {MOST_LIMITS} Concurrency(…) and Rate(…)"
            )
        _check_several(limits)
    if fair_key is not None:
        _check_key(fair_key, "fair_key")
    if weight is not None and (
        not isinstance(weight, int | float) or isinstance(weight, bool) or not 0.01 <= weight <= 1000
    ):
        raise OptionError(f"weight={shown(weight)}: must be a number from 0.01 to 1000")
    if expires is not None and not isinstance(expires, datetime):
        expires = seconds(expires, "expires")
    elif isinstance(expires, datetime) and expires.utcoffset() is None:
        raise OptionError(f"expires={shown(expires)}: has no time zone; use e.g. datetime(…, tzinfo=UTC)")
    return Flow(unique, limits, fair_key, None if weight is None else float(weight), expires)


def check_parameters(flow: Flow, parameters: Sequence[str], task: str) -> None:
    """Refuse, at the declaration, keys of parameters that the task does not have. Raises TaskDefinitionError."""
    keys: list[tuple[str, Any]] = [("limit", limit.key) for limit in flow.limits or ()]
    keys += [("fair_key", flow.fair_key), ("unique", flow.unique.by if isinstance(flow.unique, Unique) else None)]
    for what, key in keys:
        if isinstance(key, str) and key in parameters:
            way_out = f'"{{{key}}}"' if what != "unique" else f'by=["{key}"]'
            raise TaskDefinitionError(
                f"task {task!r}: {what} {key!r} is a plain name, one key for all jobs, and the name of a parameter: for a key "
                f"of each of its values write {way_out}, else choose another name"
            )
        unknown = [name for name in _named(key) if name not in parameters]
        if unknown:
            known = ", ".join(parameters) or "none"
            raise TaskDefinitionError(
                f"task {task!r}: {what} names {unknown[0]!r}, which is no parameter; there are: {known}"
            )


def flow_json(flow: Flow, task: str, queue: str, arguments: Mapping[str, Any]) -> str | None:
    """The rules of one job as enqueue_flow.sql takes them; None: none. `arguments`: by name, with defaults, as the handler
    will see them. Raises ArgumentError if a key cannot be computed."""
    rules: dict[str, Any] = {}
    unique = _unique(flow.unique, task, queue, arguments) if isinstance(flow.unique, Unique) else None
    if unique is not None:
        rules["unique"] = unique
    # The one whose order is kept comes first: that is how the other side knows it.
    pairs = [(limit, _limit(limit, task, arguments)) for limit in sorted(flow.limits or (), key=_order, reverse=True)]
    limits = [(limit, found) for limit, found in pairs if found is not None]
    if limits:
        rules["limits"] = [found for _, found in limits]
        if _order(limits[0][0]):
            rules["order"] = _order(limits[0][0])
    if flow.fair_key is not None:
        fair = _value(flow.fair_key, "fair_key", task, arguments)
        if fair is not None:
            rules["fair"] = check_name(fair, "fair_key")
            if flow.weight is not None:
                rules["weight"] = flow.weight
    if flow.expires is not None:
        rules["expires"] = flow.expires.isoformat() if isinstance(flow.expires, datetime) else flow.expires
    return as_json(rules) if rules else None


def declared_limits(flows: Sequence[Flow]) -> list[dict[str, Any]]:
    """The limits of these tasks, each once, as declare_limits (sql/work/declare.sql) takes them.

    Raises OptionError if two tasks mean different things by one name.
    """
    found: dict[str, tuple[Limit, dict[str, Any]]] = {}
    for limit in [limit for flow in flows for limit in flow.limits or ()]:
        name = limit_name(limit)
        said = _numbers(limit)
        other, others = found.setdefault(name, (limit, said))
        if said != others or bool(_order(limit)) != bool(_order(other)):
            raise OptionError(
                f"limit {shown(name)} is declared in two ways, {other} and {limit}: make them equal, or give one another name="
            )
    return [{"name": name} | said for name, (_, said) in found.items()]


def _check_several(limits: tuple[Limit, ...]) -> None:
    names = [limit_name(limit) for limit in limits]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise OptionError(f"limits: {shown(twice[0])} is there twice; give one of them another name=")
    ordered = [limit_name(limit) for limit in limits if _order(limit)]
    if len(ordered) > 1:
        raise OptionError(
            f"limits: {' and '.join(map(shown, ordered))} both keep an order: a job can stand in one line only"
        )


def _order(limit: Limit) -> str:
    return (limit.order or "") if isinstance(limit, Concurrency) else ""


def _numbers(limit: Limit) -> dict[str, Any]:
    if isinstance(limit, Concurrency):
        return {"slots": limit.slots}
    return {"rate": float(limit.number), "per": seconds(limit.per, "per"), "burst": limit.burst}


def _unique(unique: Unique, task: str, queue: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    if isinstance(unique.by, str) or callable(unique.by):
        value = _value(unique.by, "unique key", task, arguments)
        if value is None:
            return None
        key = _checked(
            value, "unique key", task, "; by=[…] with names of parameters takes values of any kind and length"
        )
    else:
        names = arguments if unique.by is None else unique.by
        # No name and no key as above can hold the separator, so the two kinds never meet.
        key = f"{task}{SEPARATOR}{digest_of(task, queue, {name: arguments[name] for name in names})}"
    found: dict[str, Any] = {"key": key, "on_conflict": unique.on_conflict}
    for name in ("period", "hold", "longest"):
        value = getattr(unique, name)
        if value is not None:
            found[name] = seconds(value, name)
    return found


def _limit(limit: Limit, task: str, arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    name = limit_name(limit)
    value = name if _is_plain(limit.key) else _value(limit.key, f"limit {name}", task, arguments)
    if value is None:
        return None
    key = name if _is_plain(limit.key) else f"{name}{SEPARATOR}{check_name(value, f'key of limit {name}')}"
    return {"key": key} | _numbers(limit)


def limit_key(name: str, value: str | None = None) -> str:
    """What the database knows a limit by: all keys of a name, or that of one value (the key as computed). Raises OptionError."""
    return (
        check_name(name, "limit")
        if value is None
        else f"{check_name(name, 'limit')}{SEPARATOR}{check_name(value, 'value')}"
    )


def limit_name(limit: Limit) -> str:
    """The name under which a limit can be changed."""
    return limit.name if limit.name is not None else str(limit.key)


class _Formatter(string.Formatter):
    """An enum member stands for its value, whatever the release of Python makes of it."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        return super().format_field(value.value if isinstance(value, Enum) else value, format_spec)


_format = _Formatter().vformat
_IN_KEYS = (str, int, float, Decimal, UUID, date, time)  # what is the same text in each process


def _value(key: Key, what: str, task: str, arguments: Mapping[str, Any]) -> str | None:
    try:
        found = key(**arguments) if callable(key) else _format(key, (), arguments)
    except Exception as error:
        raise ArgumentError(
            f"task {task!r}: its {what} cannot be computed from the arguments: {type(error).__name__}: {error}",
            task=task,
        ) from None
    if isinstance(found, Enum):
        found = found.value
    if found is None:
        return None
    if not isinstance(found, _IN_KEYS):
        raise ArgumentError(
            f"task {task!r}: the function of its {what} answered {shown(found)}, which is of type {kind_of(found)}: "
            "let it answer text, a number or None",
            task=task,
        )
    return str(found)


def _checked(value: str, what: str, task: str, way_out: str) -> str:
    """A computed key. Raises ArgumentError: it came from the arguments."""
    try:
        return check_name(value, what)
    except OptionError as error:
        raise ArgumentError(f"task {task!r}: {error}{way_out}", task=task) from None


def _is_plain(key: Key) -> bool:
    return isinstance(key, str) and "{" not in key


def _named(key: Any) -> list[str]:
    if key is None or callable(key):
        return []
    if not isinstance(key, str):
        return list(key)
    return [name.split(".")[0].split("[")[0] for _, name, _, _ in string.Formatter().parse(key) if name]


def _check_parameter_names(names: Any) -> tuple[str, ...]:
    if not isinstance(names, Sequence) or not all(isinstance(name, str) for name in names):
        raise OptionError(f'unique: by={shown(names)}: give names of parameters, as in ["customer_id"], or a key')
    return tuple(names)


def _check_key(key: Key, name: str | None) -> None:
    if callable(key):
        if name is None:
            raise OptionError("a key that is a function needs name=, under which the limit is shown and changed")
    elif not isinstance(key, str):
        raise OptionError(
            f'key={shown(key)}: give a text like "customer:{{customer_id}}", or a function of the arguments'
        )
    else:
        try:
            fields = [field for _, field, _, _ in string.Formatter().parse(key) if field is not None]
        except ValueError as error:
            raise OptionError(f"key={shown(key)}: {error}; write braces that are meant as such twice") from None
        if "" in fields or any(field[:1].isdigit() for field in fields):
            raise OptionError(f'key={shown(key)}: name the parameters, as in "customer:{{customer_id}}"')
    check_name(name if name is not None else key, "limit")
