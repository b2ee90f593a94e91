"""Limits: what they are, how full they are, and setting them at run time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from skiplock.core.codec import check_text
from skiplock.core.errors import OptionError
from skiplock.core.flow import MOST, SEPARATOR, limit_key
from skiplock.core.inspect_value import shown
from skiplock.core.outcome import Duration, seconds
from skiplock.store.call import Call, Row, nothing
from skiplock.store.schema import render

MOST_KEYS = 1000
_SET = (
    """SELECT skiplock.set_limit($1::text, $2::text::integer, $3::text::float8, $4::text::float8, $5::text::integer)"""
)
# What is held and what waits, by name (or by key, of one name), beside what was declared and set.
_USED = """
    SELECT s.key, count(*) AS held, 0::bigint AS waiting, NULL::timestamptz AS wake_at FROM skiplock.slots s GROUP BY s.key
    UNION ALL SELECT w.blocked_on, 0, count(*), NULL FROM skiplock.jobs_waiting w WHERE w.state = 'blocked' GROUP BY w.blocked_on
    UNION ALL SELECT m.key, 0, 0, m.wake_at FROM skiplock.meters m WHERE m.wake_at IS NOT NULL"""
_NUMBERS = """sum(u.held)::bigint, sum(u.waiting)::bigint,
    greatest(0, extract(epoch FROM min(u.wake_at) - skiplock.now()))::float8"""
_LIST = f"""SELECT u.name, NULL, l.slots, l.rate, l.per, l.burst, l.by_hand, count(DISTINCT u.key), {_NUMBERS}
FROM (SELECT split_part(x.key, E'\\x1f', 1) AS name, x.* FROM ({_USED}
    ) x UNION ALL SELECT split_part(r.key, E'\\x1f', 1), NULL, 0, 0, NULL FROM skiplock.limits r) u
LEFT JOIN skiplock.limits l ON l.key = u.name
GROUP BY u.name, l.key ORDER BY u.name LIMIT {MOST_KEYS}"""
_SHOW = f"""SELECT $1::text, nullif(substr(u.key, length($1::text) + 2), ''), coalesce(l.slots, n.slots), coalesce(l.rate, n.rate),
    coalesce(l.per, n.per), coalesce(l.burst, n.burst), coalesce(l.by_hand, n.by_hand), 1::bigint, {_NUMBERS}
FROM (SELECT * FROM ({_USED}) x WHERE split_part(x.key, E'\\x1f', 1) = $1::text
    UNION ALL SELECT r.key, 0, 0, NULL FROM skiplock.limits r WHERE split_part(r.key, E'\\x1f', 1) = $1::text) u
LEFT JOIN skiplock.limits l ON l.key = u.key LEFT JOIN skiplock.limits n ON n.key = $1::text
GROUP BY u.key, l.key, n.key ORDER BY sum(u.waiting) DESC, sum(u.held) DESC, u.key LIMIT $2::text::integer"""


@dataclass(frozen=True, slots=True)
class LimitRecord:
    """A limit (`value` None: all its keys together), or one key of it.

    `slots`, or `rate` starts in `per` seconds with `burst` at once: as declared by the workers' code, or set by hand; None where
    only the jobs know. `keys` have jobs; `held` slots; `waiting` jobs in line; `next_start` in seconds, of a rate somebody waits for.
    """

    name: str
    value: str | None
    slots: int | None
    rate: float | None
    per: float | None
    burst: int | None
    by_hand: bool | None
    keys: int
    held: int
    waiting: int
    next_start: float | None


def limits_call(schema: str) -> Call[list[LimitRecord]]:
    """All limits that were declared or set, hold slots or have jobs in line; by name, at most 1,000."""
    return Call(render(_LIST, schema), (), _records)


def limit_keys_call(name: str, schema: str, *, most: int = 50) -> Call[list[LimitRecord]]:
    """The keys of one limit, those with the longest lines first."""
    if not 1 <= most <= MOST_KEYS:
        raise OptionError(f"limit {most!r}: must be from 1 to {MOST_KEYS}")
    return Call(render(_SHOW, schema), (check_text(name, "limit"), str(most)), _records)


def set_limit_call(
    name: str,
    schema: str,
    *,
    value: str | None = None,
    slots: int | None = None,
    rate: float | None = None,
    per: Duration | None = None,
    burst: int | None = None,
) -> Call[None]:
    """From now on the limit of that name (or its key with that value) is this, whatever the code says. Raises OptionError."""
    if rate is None and (per is not None or burst is not None):
        raise OptionError(f"limit {shown(name)}: per and burst belong to a rate; give it, too")
    if slots is None and rate is None:
        raise OptionError(f"limit {shown(name)}: give slots, or a rate")
    for what, number, least in (("slots", slots, 0), ("burst", burst, 1)):
        if number is not None and (
            not isinstance(number, int) or isinstance(number, bool) or not least <= number <= MOST
        ):
            raise OptionError(
                f"limit {shown(name)}: {what}={shown(number)}: must be a whole number from {least} to {MOST}"
            )
    if rate is not None and (not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 <= rate <= MOST):
        raise OptionError(f"limit {shown(name)}: rate={shown(rate)}: must be a number from 0 to {MOST}")
    length = None if per is None else seconds(per, "per")
    if length is not None and length <= 0:
        raise OptionError(f"limit {shown(name)}: per={shown(per)}: must be more than 0 seconds")
    numbers = [None if number is None else str(number) for number in (slots, rate, length, burst)]
    return Call(render(_SET, schema), (limit_key(name, value), *numbers), nothing)


def unset_limit_call(name: str, schema: str, *, value: str | None = None) -> Call[bool]:
    """What the code says counts again. Answers whether anything had been set."""
    key = name if value is None else f"{name}{SEPARATOR}{value}"
    return Call(render("SELECT skiplock.unset_limit($1::text)", schema), (key,), lambda rows: bool(rows[0][0]))


def limit_queue_call(queue: str, slots: int | None, schema: str) -> Call[None]:
    """At most so many jobs of the queue run at a time, over all workers (None: no such limit). Raises OptionError."""
    if slots is not None and (not isinstance(slots, int) or isinstance(slots, bool) or not 0 <= slots <= MOST):
        raise OptionError(f"queue {shown(queue)}: slots={shown(slots)}: must be a whole number from 0 to {MOST}")
    params = (check_text(queue, "queue"), None if slots is None else str(slots))
    return Call(render("SELECT skiplock.limit_queue($1::text, $2::text::integer)", schema), params, nothing)


def _records(rows: Sequence[Row]) -> list[LimitRecord]:
    return [LimitRecord(*row) for row in rows]
