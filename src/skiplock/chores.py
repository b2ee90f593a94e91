"""The heart of a worker, with the chores that it does on the side: promoting, schedules, limits, partitions."""

from __future__ import annotations

from collections.abc import Callable

from skiplock.app import Skiplock
from skiplock.core.flow import declared_limits
from skiplock.core.settings import WorkerSettings
from skiplock.upkeep.days import make_days_call
from skiplock.upkeep.promote import BATCH, promote_call
from skiplock.upkeep.schedules import Ticker
from skiplock.upkeep.sweep import LimitSweep
from skiplock.work.beat import Beat, Heart, Promotion, Pulse
from skiplock.work.declare import declare_limits_call


def heart_for(
    app: Skiplock,
    settings: WorkerSettings,
    *,
    pulse: Callable[[], Pulse | None],
    on_beat: Callable[[Beat], None],
    on_turn: Callable[[], None],
) -> Heart:
    """Not started yet."""
    schema = app.schema
    limits = declared_limits([task.spec.flow for task in app.tasks.values()])
    return Heart(
        app.dsn,
        schema,
        queues=list(settings.queues),
        every=settings.beat_every,
        lost_after=settings.lost_after,
        pulse=pulse,
        on_beat=on_beat,
        promotion=Promotion(lambda since: promote_call(schema, since=since), BATCH),
        schedules=Ticker(schema, lambda: app.schedules.declared, app.events),
        hourly=lambda: make_days_call(schema),
        sweep=LimitSweep(schema).step,
        errands=[declare_limits_call(limits, schema)] if limits else [],
        on_turn=on_turn,
        events=app.events,
    )
