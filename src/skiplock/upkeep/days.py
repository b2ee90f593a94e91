"""Days: the partitions of finished jobs, made ahead."""

from __future__ import annotations

from skiplock.store.call import Call, nothing
from skiplock.store.schema import render

EVERY = 3600.0  # seconds between two looks


def make_days_call(schema: str) -> Call[None]:
    """Partitions for the coming week's finished jobs."""
    return Call(render("SELECT skiplock.make_days()", schema), (), nothing)
