"""Promote: waiting jobs that are due become ready."""

from __future__ import annotations

from dataclasses import dataclass

from skiplock.store.call import Call
from skiplock.store.schema import render

BATCH = 1000
_PROMOTE = (
    """SELECT moved, due_in, upto FROM skiplock.promote($1::text::integer, $2::text::boolean, $3::text::float8)"""
)


@dataclass(frozen=True, slots=True)
class Promoted:
    """`moved` jobs became ready; the next one is due in `due_in` seconds (None: nothing waits). All that was due until
    `upto` (seconds from now, not positive) was moved."""

    moved: int
    due_in: float | None
    upto: float


def promote_call(schema: str, *, since: float | None) -> Call[Promoted]:
    """Move jobs that are due to ready, at most BATCH, and leave word when we mean to wake. `since`: see promote.sql."""
    params = (str(BATCH), "true", None if since is None else str(since))
    return Call(render(_PROMOTE, schema), params, lambda rows: Promoted(*rows[0]))
