"""Vouch: a supervisor says that its silent child is alive."""

from __future__ import annotations

from collections.abc import Sequence

from skiplock.store.call import Call
from skiplock.store.literal import number_array
from skiplock.store.schema import render

_VOUCH = "SELECT skiplock.vouch(($1::text)::bigint[])"


def vouch_call(workers: Sequence[int], schema: str) -> Call[list[int]]:
    """Beat for these workers. Answers those that are still registered."""
    return Call(render(_VOUCH, schema), (number_array(workers),), lambda rows: list(rows[0][0]))
