"""One worker process from start to end: its signals, its lifespan, its exit code."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

from skiplock.app import Skiplock
from skiplock.core.errors import ConfigurationError
from skiplock.core.settings import WorkerSettings
from skiplock.core.size import size_as_text
from skiplock.core.wear import SPREAD, Wear
from skiplock.signals import Told, stop_signals
from skiplock.work.memory import resident
from skiplock.work.startmap import StartMap
from skiplock.worker import Worker

DRAINED, RECYCLED = 84, 85  # exit codes that only the supervisor sees: no successor wanted; one is there already
WORN_OUT = "worn out"
STUCK_SHARE = 0.5  # of a queue's slots held by handlers that ignored their interruption, and the process is worn out
LOOK_EVERY = 1.0  # seconds between two looks at what the process has been through


def run_worker(
    app: Skiplock, settings: WorkerSettings, *, startmap: StartMap | None = None, parent_pipe: int | None = None
) -> int:
    """Run one worker in this process until SIGTERM, SIGINT or SIGHUP; returns the exit code.

    0: it finished gracefully, was drained, or is worn out. 128 + signal: it was told twice and left at once. The caller
    should end with `os._exit`, because a handler's thread that never ends would keep the interpreter alive.
    """
    refuse_too_little_memory(settings.own_wear())
    runner = asyncio.Runner(loop_factory=_loop_factory())
    try:
        # Not closed afterwards: that would wait without end for a handler that ignores its cancellation, and would make us
        # mortal again for an echo of the signal that we are ending for.
        return runner.run(_run(app, settings, startmap, parent_pipe))
    except BaseException:
        runner.close()
        raise


async def _run(app: Skiplock, settings: WorkerSettings, startmap: StartMap | None, parent_pipe: int | None) -> int:
    loop = asyncio.get_running_loop()
    if startmap is not None:
        startmap.write_stacks_here()
    worker = Worker(app, settings, startmap=startmap)
    told = Told()

    def on_signal(number: int) -> None:
        level = told.again(number)
        if level >= 3:
            os._exit(128 + number)
        if level:
            worker.stop(signal.Signals(number).name)

    for number in stop_signals():
        loop.add_signal_handler(number, on_signal, number)
    if parent_pipe is not None:
        loop.add_reader(parent_pipe, _orphaned, loop, parent_pipe, worker)
    aging = loop.create_task(_retire_in_time(app, worker, settings, startmap))
    await worker.run()
    aging.cancel()
    if told.level > 1:
        return 128 + told.number
    if startmap is None or told.level:
        return 0
    return {"drained": DRAINED, WORN_OUT: RECYCLED}.get(worker.reason, 0)


def _orphaned(loop: asyncio.AbstractEventLoop, pipe: int, worker: Worker) -> None:
    # Nothing is ever written to the pipe: readable means that the supervisor is gone.
    loop.remove_reader(pipe)
    worker.stop("supervisor gone")


def _loop_factory() -> Any:
    """uvloop's if it is installed (extra `fast`)."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


# -- the lifespan ------------------------------------------------------------------------------------------------------


async def _retire_in_time(app: Skiplock, worker: Worker, settings: WorkerSettings, startmap: StartMap | None) -> None:
    """Make way for a fresh process once this one is worn out."""
    born = time.monotonic()
    wear = settings.own_wear().spread()
    reason = None
    while reason is None:
        await asyncio.sleep(LOOK_EVERY)
        started, _, stuck = worker.figures
        # A process without a job so far is as small as it gets: a fresh one would be no better.
        memory = resident() if wear.memory is not None and started else 0
        reason = wear.reached(started, memory, time.monotonic() - born)
        # Where nobody is known to start another process, slots that are stuck are no reason to end.
        if reason is None and startmap is not None and stuck >= STUCK_SHARE:
            reason = f"has {stuck:.0%} of a queue's slots held by handlers that ignored their interruption"
    then = "exits with code 0; whoever started it may start it again"
    if startmap is not None:
        then = "its successor works already"
        startmap.wish_to_leave()
        await _permission(startmap)
    started, running, _ = worker.figures
    figures = {"jobs": started, "memory": resident(), "age": time.monotonic() - born, "running": running}
    app.events.emit("worker_recycling", worker=worker.id, reason=reason, **figures, then=then)
    worker.retire(WORN_OUT)


async def _permission(startmap: StartMap) -> None:
    """Of the supervisor; the worker works on meanwhile."""
    while True:
        await asyncio.sleep(LOOK_EVERY / 2)
        if startmap.may_leave:
            return


def refuse_too_little_memory(wear: Wear) -> None:
    """Raises ConfigurationError if a process is worn out before its first job."""
    taken = resident()
    if wear.memory is not None and taken >= SPREAD * wear.memory:
        raise ConfigurationError(
            f"max_memory={size_as_text(wear.memory)}: the app takes {size_as_text(taken)} before its first job; allow more"
        )
