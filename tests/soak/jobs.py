"""The app of the soak. Every handler writes to a file of its process when it begins and when it has ended."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import time
from pathlib import Path

from skiplock import Backoff, JobContext, Skiplock

app = Skiplock()
SOON = Backoff(base=0.2, cap=2.0)


class _Journal:
    """Lines `<b|e> <n> <lease> <monotonic ns>`; a line is one write, so that a killed process leaves whole lines."""

    def __init__(self) -> None:
        self._fd = -1

    def write(self, what: str, n: int, ctx: JobContext) -> None:
        if self._fd < 0:
            path = Path(os.environ["SKIPLOCK_SOAK_JOURNAL"]) / f"{os.getpid()}-{time.monotonic_ns()}"
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.write(self._fd, f"{what} {n} {ctx.job.lease} {time.monotonic_ns()}\n".encode())


journal = _Journal()


@app.task(name="plain", backoff=SOON)
async def plain(ctx: JobContext, n: int) -> None:
    """What most jobs are."""
    journal.write("b", n, ctx)
    journal.write("e", n, ctx)


@app.task(name="slow", backoff=SOON)
async def slow(ctx: JobContext, n: int, seconds: float) -> None:
    """Waits."""
    journal.write("b", n, ctx)
    await asyncio.sleep(seconds)
    journal.write("e", n, ctx)


@app.task(name="thread", backoff=SOON)
def thread(ctx: JobContext, n: int) -> None:
    """Waits in a thread."""
    journal.write("b", n, ctx)
    time.sleep(0.02)
    journal.write("e", n, ctx)


@app.task(name="flaky", backoff=SOON)
async def flaky(ctx: JobContext, n: int) -> None:
    """Fails at first."""
    journal.write("b", n, ctx)
    if ctx.attempt == 1:
        raise ConnectionError("not yet")
    journal.write("e", n, ctx)


@app.task(name="hopeless", max_attempts=2, backoff=SOON)
async def hopeless(ctx: JobContext, n: int) -> None:
    """Ends dead."""
    journal.write("b", n, ctx)
    raise ValueError(f"\0 never {n}")


@app.task(name="block", backoff=SOON)
async def block(ctx: JobContext, n: int, seconds: float) -> None:
    """Blocks the event loop."""
    journal.write("b", n, ctx)
    time.sleep(seconds)
    journal.write("e", n, ctx)


@app.task(name="hold", backoff=SOON)
async def hold(ctx: JobContext, n: int, seconds: int) -> None:
    """Holds the interpreter's lock."""
    journal.write("b", n, ctx)
    ctypes.PyDLL(None).sleep(seconds)
    journal.write("e", n, ctx)


@app.task(name="poison", max_attempts=2, backoff=SOON)
async def poison(ctx: JobContext, n: int) -> None:
    """Kills its process."""
    journal.write("b", n, ctx)
    os.kill(os.getpid(), signal.SIGKILL)
