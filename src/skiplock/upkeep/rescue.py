"""Rescue: jobs of lost workers are given back. (The leader's beat rescues by itself; this is for who knows more.)"""

from __future__ import annotations

from collections.abc import Sequence

from skiplock.store.call import Call
from skiplock.store.literal import number_array
from skiplock.store.schema import render

_REPORT = "SELECT skiplock.report_lost($1::text::bigint, ($2::text)::bigint[], $3::text)"


def report_lost_call(worker: int, started: Sequence[int], reason: str, schema: str) -> Call[int]:
    """A child died: give its jobs back, spending the attempts of those that had started. Answers how many it held."""
    return Call(
        render(_REPORT, schema), (str(worker), number_array(list(started)), reason), lambda rows: int(rows[0][0])
    )
