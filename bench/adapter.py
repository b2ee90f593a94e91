"""skiplock under test: through its public API, with default settings. Other tasks and settings: `variants.py`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from bench.marks import Marks, payload
from bench.system import System
from skiplock import Skiplock
from skiplock.core.job import NewJob
from skiplock.core.settings import WorkerSettings
from skiplock.process import run_worker
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
    _task: Task[..., Any]

    def setup(self) -> None:
        migrate(self.dsn)

    async def open(self) -> None:
        self._app = Skiplock(self.dsn)
        self._task = self.declare(self._app, None)

    async def bulk(self, numbers: Sequence[int]) -> None:
        await self._app.aenqueue_many([self.job(n) for n in numbers])

    async def one(self, n: int) -> None:
        await self._task.aenqueue(**payload(n))

    async def close(self) -> None:
        await self._app.aclose()

    def work(self, marks: Marks) -> None:
        app = Skiplock(self.dsn)
        self.declare(app, marks)
        for name in TROUBLE:
            app.on(name, lambda event: print(event, flush=True))
        os._exit(run_worker(app, self.worker_settings()))

    # -- what a variant changes --------------------------------------------------------------------------------------

    def declare(self, app: Skiplock, marks: Marks | None) -> Task[..., Any]:
        """Register the task; the producer has no marks, for it runs none."""

        @app.task(name="bench.noop")
        async def noop(to: str, subject: str, n: int) -> None:
            if marks is not None:
                marks.start(n)

        return noop

    def job(self, n: int) -> NewJob:
        """Job `n`."""
        return self._task.job(**payload(n))

    def worker_settings(self) -> WorkerSettings:
        """How the worker process is set."""
        return WorkerSettings()
