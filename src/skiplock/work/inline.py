"""A plain call of a task: the function runs here and now, nothing is queued."""

from __future__ import annotations

from contextlib import AsyncExitStack, ExitStack
from datetime import UTC, datetime
from typing import Any

from skiplock.core.job import Job
from skiplock.core.task import TaskSpec
from skiplock.work.context import JobContext
from skiplock.work.resources import enter, enter_sync


def run_inline(spec: TaskSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the function, with its resources opened around it and a context that belongs to no stored job.

    Returns what the function returns: a coroutine for an `async def`.
    """
    if spec.wants_context and not (args and isinstance(args[0], JobContext)):
        args = (JobContext(_no_job(spec), None), *args)
    wanted = {name: r for name, r in spec.resources.items() if name not in kwargs}
    if not wanted:
        return spec.function(*args, **kwargs)
    if spec.is_async:
        return _async(spec, args, kwargs, wanted)
    with ExitStack() as stack:
        opened = {name: enter_sync(stack, r, name) for name, r in wanted.items()}
        return spec.function(*args, **kwargs, **opened)


async def _async(spec: TaskSpec, args: tuple[Any, ...], kwargs: dict[str, Any], wanted: dict[str, Any]) -> Any:
    async with AsyncExitStack() as stack:
        opened = {name: await enter(stack, r) for name, r in wanted.items()}
        return await spec.function(*args, **kwargs, **opened)


def _no_job(spec: TaskSpec) -> Job:
    return Job(
        0,
        0,
        spec.queue,
        spec.priority,
        0,
        spec.name,
        "{}",
        1,
        spec.max_attempts,
        0,
        datetime.now(UTC).isoformat(),
        None,
        None,
    )
