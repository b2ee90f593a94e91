"""Promote: waiting jobs that are due become ready."""

from __future__ import annotations

from dataclasses import dataclass

from skiplock.store.call import Call
from skiplock.store.schema import render

BATCH = 1000
_PROMOTE = "SELECT moved, due_in FROM skiplock.promote($1::text::integer, $2::text::boolean)"


@dataclass(frozen=True, slots=True)
class Promoted:
    """`moved` jobs became ready; the next one is due in `due_in` seconds (None: nothing waits)."""

    moved: int
    due_in: float | None


def promote_call(schema: str, *, arm: bool) -> Call[Promoted]:
    """Move jobs that are due to ready, at most BATCH. `arm` leaves word when we mean to wake."""
    return Call(render(_PROMOTE, schema), (str(BATCH), str(arm).lower()), lambda rows: Promoted(*rows[0]))
