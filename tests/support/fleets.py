"""Real worker processes for tests: started, watched, signalled, and never left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]


class Fleet:
    """One `skiplock worker` command, with or without a supervisor."""

    def __init__(
        self,
        dsn: str,
        log: Path,
        *,
        queues: dict[str, int],
        processes: int | None,
        options: tuple[str, ...],
        target: str = "tests.support.chaos_jobs:app",
        environment: Mapping[str, str] | None = None,
        code: Path = ROOT / "src",
    ) -> None:
        self.dsn, self.log = dsn, log
        command = [sys.executable, "-m", "skiplock", "worker", target, "--log-format", "json"]
        for name, concurrency in queues.items():
            command += ["--queue", f"{name}={concurrency}"]
        command += ["--no-supervisor"] if processes is None else ["--processes", str(processes)]
        given = environment or {}
        environment = {
            **os.environ,
            **given,
            "SKIPLOCK_DATABASE_URL": dsn,
            "PYTHONPATH": os.pathsep.join([str(code), str(ROOT)]),
        }
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [*command, *options], cwd=ROOT, env=environment, stdout=out, stderr=out, start_new_session=True
            )

    def workers(self) -> list[tuple[int, int]]:
        """(worker id, pid) of the registered processes that are alive and belong to this fleet."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            rows = connection.execute("SELECT id, pid FROM skiplock.workers ORDER BY id").fetchall()
        return [(worker, pid) for worker, pid in rows if self.owns(pid)]

    def owns(self, pid: int) -> bool:
        """Whether that process is alive and of this fleet."""
        try:
            return os.getsid(pid) == self.process.pid
        except ProcessLookupError:
            return False

    def ready(self, count: int = 1) -> list[tuple[int, int]]:
        """Wait until so many workers are registered."""
        return eventually(lambda: found if len(found := self.workers()) >= count else None, seconds=30) or []

    def events(self, name: str) -> list[dict[str, Any]]:
        """What the log says under that name."""
        return [event for event in self.all_events() if event.get("event") == name]

    def all_events(self) -> list[dict[str, Any]]:
        """What the log says, in order."""
        whole, _, _ = self.log.read_text().rpartition("\n")  # a line may be on its way
        return [json.loads(line) for line in whole.splitlines() if line.startswith("{")]

    def signal(self, number: signal.Signals) -> None:
        """Signal the command itself."""
        self.process.send_signal(number)

    def wait(self, seconds: float = 40.0) -> int:
        """Its exit code."""
        return self.process.wait(seconds)

    def destroy(self) -> None:
        """Kill everything of its session."""
        for pid in [int(p) for p in os.listdir("/proc") if p.isdigit()] if Path("/proc").exists() else []:
            if pid != self.process.pid and self.owns(pid):
                _kill(pid)
        self.process.kill()
        self.process.wait(10)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


@contextmanager
def fleet(
    dsn: str,
    folder: Path,
    *,
    queues: dict[str, int] | None = None,
    processes: int | None = 1,
    options: tuple[str, ...] = (),
    target: str = "tests.support.chaos_jobs:app",
    environment: Mapping[str, str] | None = None,
) -> Iterator[Fleet]:
    """A running fleet; destroyed at the end whatever happened. `processes=None`: no supervisor."""
    started = Fleet(
        dsn,
        folder / f"worker-{os.urandom(3).hex()}.log",
        queues=queues or {"default": 50},
        processes=processes,
        options=options,
        target=target,
        environment=environment,
    )
    try:
        yield started
    except BaseException:
        print(f"--- log of the fleet ---\n{started.log.read_text()[-6000:]}")
        raise
    finally:
        started.destroy()


def rows(dsn: str, sql: str, *params: object) -> list[Any]:
    """Look into the database."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        return connection.execute(sql, params or None).fetchall()  # type: ignore[call-overload,no-any-return]


def one(dsn: str, sql: str, *params: object) -> Any:
    """One value from the database."""
    return rows(dsn, sql, *params)[0][0]


def states(dsn: str) -> dict[str, int]:
    """How many jobs are in each state."""
    return dict(rows(dsn, "SELECT state, count(*) FROM skiplock.jobs GROUP BY state"))


def add(dsn: str, task: str, count: int = 1, args: str = "{}", **options: object) -> list[int]:
    """Enqueue jobs through SQL."""
    extra = "".join(f", {name} => {value!r}" for name, value in options.items())
    return [
        r[0]
        for r in rows(dsn, f"SELECT skiplock.enqueue(%s, %s{extra}) FROM generate_series(1, %s)", task, args, count)
    ]
