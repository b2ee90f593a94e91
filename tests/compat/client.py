"""A program that uses skiplock, of whatever release is on the path: one order a line on stdin, one answer a line on stdout.

{"do": "enqueue", "task": "record", "options": {"queue": "mail"}}    {"ok": [7]}
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from typing import Any

import psycopg
from click.testing import CliRunner

from skiplock.cli.root import cli
from tests.compat.jobs import app


class Client:
    """Each method without underscore is an order; what it returns is the answer."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner()
        self._stream: Stream | None = None

    def enqueue(self, task: str, options: dict[str, Any] | None = None, **args: Any) -> list[int]:
        return [app.find_task(task).using(**options or {}).enqueue(**args).id]

    def aenqueue(self, task: str, options: dict[str, Any] | None = None, **args: Any) -> list[int]:
        return [self._runner.run(app.find_task(task).using(**options or {}).aenqueue(**args)).id]

    def many(self, task: str, count: int, options: dict[str, Any] | None = None, **args: Any) -> list[int]:
        found = app.find_task(task).using(**options or {})
        return [job.id for job in app.enqueue_many([found.job(**args) for _ in range(count)])]

    def in_transaction(self, task: str, options: dict[str, Any] | None = None, **args: Any) -> list[int]:
        """One that is rolled back, and one that is not."""
        with psycopg.connect(app.dsn) as connection:
            app.find_task(task).using(connection=connection, **options or {}).enqueue(**args)
            connection.rollback()
            return [app.find_task(task).using(connection=connection, **options or {}).enqueue(**args).id]

    def get(self, job: int) -> dict[str, Any]:
        found = app.get(job)
        errors = [attempt.message for attempt in found.attempts]
        return {
            "state": found.state,
            "result": found.result,
            "args": found.args,
            "attempt": found.attempt,
            "errors": errors,
        }

    def cancel(self, job: int) -> str:
        return app.job(job).cancel()

    def retry(self, job: int) -> str:
        return app.job(job).retry()

    def delete(self, job: int) -> str:
        return app.job(job).delete()

    def cli(self, argv: list[str]) -> dict[str, Any]:
        found = CliRunner().invoke(cli, argv)
        return {"code": found.exit_code, "out": found.stdout, "err": found.stderr}

    def start_stream(self) -> None:
        """Enqueue without a pause, in every way, until told to stop."""
        self._stream = Stream(self)
        self._stream.start()

    def streamed(self) -> int:
        assert self._stream is not None
        return len(self._stream.ids)

    def stop_stream(self) -> dict[str, Any]:
        assert self._stream is not None
        self._stream.stopped.set()
        self._stream.join()
        return {"ids": self._stream.ids, "error": self._stream.error}


class Stream(threading.Thread):
    """Ends with the first error."""

    def __init__(self, client: Client) -> None:
        super().__init__(daemon=True)
        self.stopped = threading.Event()
        self.ids: list[int] = []
        self.error = ""
        self._client = client

    def run(self) -> None:
        ways = (self._client.enqueue, self._client.in_transaction, self._client.aenqueue)
        try:
            while not self.stopped.is_set():
                for way in ways:
                    self.ids += way("record")
                self.ids += self._client.many("record", 10)
                self.ids += self._client.enqueue("record", {"delay": 0.2})
                self.ids += self._client.enqueue("fails_once")
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"


def main() -> None:
    client = Client()
    for line in sys.stdin:
        order = json.loads(line)
        try:
            answer = {"ok": getattr(client, order.pop("do"))(**order)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
