"""Declare: a worker that starts says what the code it runs holds its limits to be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skiplock.core.outcome import as_json
from skiplock.store.call import Call, nothing
from skiplock.store.schema import render


def declare_limits_call(limits: Sequence[dict[str, Any]], schema: str) -> Call[None]:
    """`limits` as `core.flow.declared_limits` makes them. They count for queued jobs too, unless set by hand."""
    return Call(render("SELECT skiplock.declare_limits($1::text::jsonb)", schema), (as_json(limits),), nothing)
