"""Sweep: the leader looks through the limits now and then, so that nothing stays held up whatever happened to single rows."""

from __future__ import annotations

from skiplock.store.call import Call
from skiplock.store.schema import render


class LimitSweep:
    """Steps through the keys of limits, a thousand at a time. Forgetting where it was costs nothing but a round."""

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._after = ""

    def step(self) -> Call[None]:
        """The next step."""
        sql = render("SELECT upto FROM skiplock.sweep_limits($1::text)", self._schema)
        return Call(sql, (self._after,), lambda rows: self._got_to(rows[0][0]))

    def _got_to(self, upto: str) -> None:
        self._after = upto
