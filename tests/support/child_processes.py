"""What tests of executor="process" share: the app of `process_jobs` on a database, and a look at processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from skiplock import JobHandle, Skiplock
from skiplock.core.events import Events
from tests.support import process_jobs
from tests.support.workers import RunningWorker


@contextmanager
def app_on(dsn: str) -> Iterator[Skiplock]:
    """The app of the jobs' module, which children import too, on this database and with no listener."""
    app = process_jobs.app
    app.settings, app.events, app._faces = replace(app.settings, dsn=dsn), Events(), None
    with app:
        yield app


def pids(worker: RunningWorker) -> list[int]:
    """Of the worker's children."""
    assert worker.worker._children is not None
    return worker.worker._children.pids()


def is_alive(pid: int) -> bool:
    """Whether that process still runs."""
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


async def started(worker: RunningWorker, job: JobHandle) -> None:
    """Wait until its handler has begun."""
    await worker.until(lambda: job.id in [event["job"].id for event in worker.heard("attempt_started")])
