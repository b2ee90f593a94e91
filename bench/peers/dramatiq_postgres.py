"""Dramatiq with dramatiq-postgres, its broker for PostgreSQL."""

from __future__ import annotations

import os
from typing import Any

from bench.marks import Marks
from bench.peers.dramatiq import Dramatiq


class Adapter(Dramatiq):
    name = "dramatiq_postgres"
    packages = ("dramatiq-postgres", "psycopg[binary]")
    settings = "psycopg binary, 32 threads, prefetch 256, no results, listen/notify"
    unfinished_sql = "select count(*) from dramatiq.queue"

    def _make_broker(self) -> Any:
        from dramatiq_postgres import PostgresBroker

        return PostgresBroker(url=self.dsn, results=False)

    def setup(self) -> None:
        import psycopg
        from dramatiq_postgres.schema import init

        with psycopg.connect(self.dsn) as connection, connection.cursor() as cursor:
            init(cursor)

    def work(self, marks: Marks) -> None:
        os.environ.setdefault("dramatiq_queue_prefetch", "256")
        super().work(marks)
