"""The app of tests about worker processes and their supervisor: handlers that hold the interpreter, leak, or do not listen.

With the environment variable BROKEN naming a file, a process that finds that file ends as it imports this, with the exit code
that stands there.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from pathlib import Path
from typing import Any

from skiplock import JobContext, Resource
from tests.support.chaos_jobs import app, note, pool

BROKEN = "SKIPLOCK_TEST_BROKEN"
JOBS = "tests.support.fleet_jobs:app"
_leak: list[bytes] = []

if Path(os.environ.get(BROKEN, "/nowhere")).exists():
    os._exit(int(Path(os.environ[BROKEN]).read_text()))


def hold_interpreter(seconds: float) -> None:
    """As C code does that does not release the GIL: no other thread of the process moves meanwhile."""
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


@app.task(name="hold")
async def hold(ctx: JobContext, seconds: float, db: Any = Resource(pool, scope="worker")) -> None:
    """Append a row, then hold the interpreter."""
    await note(ctx, db)
    hold_interpreter(seconds)


@app.task(name="deadlock")
async def deadlock(ctx: JobContext, db: Any = Resource(pool, scope="worker")) -> None:
    """Append a row, then wait for ever for a lock that this very thread holds, and hold the interpreter meanwhile."""
    await note(ctx, db)
    mutex = ctypes.create_string_buffer(128)  # zeros are an ordinary mutex
    for _ in range(2):
        ctypes.PyDLL(None).pthread_mutex_lock(mutex)


@app.task(name="spin")
def spin(seconds: float) -> None:
    """Work in pure Python in a thread, as others do at the same time: they take turns at the interpreter."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        sum(range(1000))


@app.task(name="leak")
async def leak(ctx: JobContext, mib: int, db: Any = Resource(pool, scope="worker")) -> None:
    """Append a row, and keep so much memory for ever."""
    await note(ctx, db)
    _leak.append(b"\1" * (mib * 2**20))


@app.task(name="quit")
async def quit_(ctx: JobContext, code: int, db: Any = Resource(pool, scope="worker")) -> None:
    """Append a row, and end the whole process."""
    await note(ctx, db)
    os._exit(code)


@app.task(name="deaf", timeout=0.2, max_attempts=1)
def deaf(seconds: float) -> None:
    """Run on after the timeout."""
    time.sleep(seconds)


@app.task(name="stubborn")
async def stubborn(ctx: JobContext, seconds: float, db: Any = Resource(pool, scope="worker")) -> None:
    """Append a row, then swallow every cancellation."""
    await note(ctx, db)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            await asyncio.sleep(0.2)
        except asyncio.CancelledError:
            continue
