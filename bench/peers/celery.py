"""Celery, with its Redis broker."""

from __future__ import annotations

import os
from typing import Any

from bench.marks import Marks, payload
from bench.peers.peer import RedisPeer
from bench.system import Ask


class Adapter(RedisPeer):
    name = "celery"
    packages = ("celery[redis]", "hiredis")
    settings = "prefork 2, prefetch 100, -O fair, no results, gossip, mingle, heartbeat or remote control, hiredis"
    has_bulk = False
    _noop: Any
    _producer: Any

    def _open(self, marks: Marks | None) -> Any:
        from celery import Celery

        app = Celery("bench", broker=self.dsn.replace("unix:", "redis+socket:"))
        app.conf.update(
            task_ignore_result=True,
            worker_prefetch_multiplier=100,
            worker_disable_rate_limits=True,
            worker_enable_remote_control=False,
            worker_send_task_events=False,
            broker_connection_retry_on_startup=True,
        )

        @app.task(name="noop")
        def noop(to: str, subject: str, n: int) -> None:
            assert marks
            marks.start(n)

        self._noop = noop
        return app

    @classmethod
    def unfinished(cls, ask: Ask) -> int:
        return int(ask("LLEN", "celery")) + int(ask("HLEN", "unacked"))

    async def open(self) -> None:
        app = self._open(None)
        self._producer = app.amqp.Producer(app.connection_for_write())

    async def one(self, n: int) -> None:
        self._noop.apply_async(kwargs=payload(n), producer=self._producer)

    async def close(self) -> None:
        self._producer.close()

    def work(self, marks: Marks) -> None:
        without = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
        name = f"w{os.getpid()}@%h"
        self._open(marks).worker_main(["worker", "-c", "2", "-O", "fair", "-l", "WARNING", "-n", name, *without])
