"""What a worker's heart does beside beating: chores of any worker, and what it has to say when it starts."""

from __future__ import annotations

from typing import Any

from skiplock.app import Skiplock
from skiplock.core.flow import declared_limits
from skiplock.upkeep.days import make_days_call
from skiplock.upkeep.promote import BATCH, promote_call
from skiplock.upkeep.sweep import LimitSweep
from skiplock.work.beat import Promotion
from skiplock.work.declare import declare_limits_call


def chores(app: Skiplock) -> dict[str, Any]:
    """As `Heart` takes them."""
    schema = app.schema
    limits = declared_limits([task.spec.flow for task in app.tasks.values()])
    return {
        "promotion": Promotion(lambda since: promote_call(schema, since=since), BATCH),
        "hourly": lambda: make_days_call(schema),
        "sweep": LimitSweep(schema).step,
        "errands": [declare_limits_call(limits, schema)] if limits else [],
    }
