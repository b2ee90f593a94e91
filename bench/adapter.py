"""skiplock under test: through its public API, with default settings."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from bench.marks import Marks, payload
from bench.system import System
from skiplock import Skiplock
from skiplock.core.settings import WorkerSettings
from skiplock.fleet import run_worker
from skiplock.store.migrate import migrate
from skiplock.task import Task

TROUBLE = (
    "claim_failed",
    "settle_failed",
    "settle_refused",
    "beat_failed",
    "listen_failed",
    "worker_lost",
    "hook_failed",
)


class SkiplockSystem(System):
    """One task on the event loop, queue "default" with its 50 slots."""

    name = "skiplock"
    base_sql = "select case when is_called then last_value else 0 end from skiplock.job_numbers"
    unfinished_sql = """
        select %(jobs)s - count(*) from skiplock.jobs_finished where id > %(base)s and state = 'completed'"""
    _app: Skiplock
    _noop: Task[..., Any]

    def setup(self) -> None:
        migrate(self.dsn)

    async def open(self) -> None:
        self._app = Skiplock(self.dsn)
        self._noop = _task(self._app, None)

    async def bulk(self, numbers: Sequence[int]) -> None:
        job = self._noop.job
        await self._app.aenqueue_many([job(**payload(n)) for n in numbers])

    async def one(self, n: int) -> None:
        await self._noop.aenqueue(**payload(n))

    async def close(self) -> None:
        await self._app.aclose()

    def work(self, marks: Marks) -> None:
        app = Skiplock(self.dsn)
        _task(app, marks)
        for name in TROUBLE:
            app.on(name, lambda event: print(event, flush=True))
        os._exit(run_worker(app, WorkerSettings()))


def _task(app: Skiplock, marks: Marks | None) -> Task[..., Any]:
    @app.task(name="bench.noop")
    async def noop(to: str, subject: str, n: int) -> None:
        if marks is not None:
            marks.start(n)

    return noop
