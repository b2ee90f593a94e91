"""The driver's side of a system under test: its database, its marks, its processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psycopg

from bench.marks import Marks
from bench.server import cpu_of, postmaster
from bench.system import System
from skiplock.store.embedded import EmbeddedServer

ROOT = Path(__file__).parent.parent
CHILD_TIME = 900.0  # seconds a producer may take
STOP_TIME = 10.0  # seconds a worker may take to stop


class BenchError(Exception):
    """The run cannot go on."""


class Contender:
    """A system on the server. `label` tells two of the same system apart."""

    def __init__(self, server: EmbeddedServer, kind: type[System], folder: Path, label: str = "") -> None:
        self.kind, self.label = kind, label or kind.name
        self._server, self._postmaster, self._folder = server, postmaster(server), folder
        self._database = "bench_" + self.label.replace(" ", "_")
        self.dsn = server.dsn(self._database)
        self._log = folder / f"{self._database}.log"
        self._marks_path = folder / f"{self._database}.marks"
        self.marks = Marks.create(self._marks_path, 1)
        self._workers: list[subprocess.Popen[bytes]] = []
        self._admin = psycopg.connect(server.dsn(), autocommit=True)
        self._make_template()

    def _make_template(self) -> None:
        name = self._database + "_template"
        self._admin.execute(f"drop database if exists {name} with (force)".encode())
        self._admin.execute(f"create database {name}".encode())
        self.kind(self._server.dsn(name)).setup()

    def twin(self, label: str) -> Contender:
        """The same system again, in a database of its own."""
        return Contender(self._server, self.kind, self._folder, f"{self.kind.name} {label}")

    def reset(self, jobs: int) -> None:
        """A fresh database and marks for so many jobs."""
        name = self._database
        self._admin.execute(f"drop database if exists {name} with (force)".encode())
        self._admin.execute(f"create database {name} template {name}_template".encode())
        self.marks.close()
        self.marks = Marks.create(self._marks_path, jobs)

    def settle(self) -> None:
        """After filling: statistics as autovacuum would leave them, and no checkpoint due."""
        with self.connect() as connection:
            connection.execute("analyze")
        self._admin.execute("checkpoint")

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection to its database."""
        return psycopg.connect(self.dsn, autocommit=True)

    # -- enqueuing ---------------------------------------------------------------------------------------------------

    def produce(self, verb: str, *numbers: int) -> dict[str, float]:
        """Enqueue in a process of its own; see `bench.child`."""
        command = [*self._command(verb), *map(str, numbers)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=CHILD_TIME, env=_environment())
        if done.returncode:
            raise BenchError(f"{self.label} {verb} failed:\n{done.stderr[-3000:]}")
        answer: dict[str, float] = json.loads(done.stdout.strip().splitlines()[-1])
        return answer

    def _command(self, verb: str) -> list[str]:
        return [sys.executable, "-m", "bench.child", self.kind.name, self.dsn, str(self._marks_path), verb]

    # -- workers -----------------------------------------------------------------------------------------------------

    def start(self, workers: int = 1) -> None:
        """Start worker processes."""
        for _ in range(workers):
            with self._log.open("ab") as log:
                self._workers.append(
                    subprocess.Popen(
                        self._command("work"),
                        cwd=ROOT,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                        env=_environment(),
                    )
                )

    def stop(self) -> None:
        """Stop them by SIGTERM. Raises BenchError if one had ended by itself."""
        workers, self._workers = self._workers, []
        early = [w.returncode for w in workers if w.poll() is not None]
        for worker in workers:
            worker.terminate()
        for worker in workers:
            try:
                worker.wait(STOP_TIME)
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
        if early:
            raise BenchError(f"{self.label}: a worker ended with {early}:\n{self._log.read_text()[-3000:]}")

    def cpu(self) -> tuple[float, float]:
        """CPU seconds so far: of the workers, and of the server."""
        return sum(cpu_of(w.pid) for w in self._workers), cpu_of(self._postmaster)

    def commits(self) -> int:
        """Transactions of its database so far."""
        self._admin.execute("select pg_stat_clear_snapshot()")
        row = self._admin.execute(
            "select xact_commit from pg_stat_database where datname = %s", [self._database]
        ).fetchone()
        return int(row[0]) if row else 0

    # -- draining ----------------------------------------------------------------------------------------------------

    def base(self) -> int:
        """The highest job id given out."""
        with self.connect() as connection:
            row = connection.execute(self.kind.base_sql.encode()).fetchone()
        assert row is not None
        return int(row[0])

    def drain(self, first: int, jobs: int, base: int, cap: float) -> dict[str, float]:
        """With workers started: wait until these jobs are recorded as done.

        jobs_s: jobs / (all recorded − first start). warm_jobs_s: between the 10 % and the 90 % start.
        """
        self._wait_first(first, jobs, cap)
        before = self.cpu()
        self._wait_started(first, jobs, cap)
        ended = self._wait_recorded(jobs, base, cap)
        after = self.cpu()
        starts = self.marks.starts(first, jobs)
        low, high = len(starts) // 10, len(starts) * 9 // 10
        return {
            "jobs": jobs,
            "jobs_s": jobs / (ended - starts[0]),
            "warm_jobs_s": (high - low) / max(starts[high] - starts[low], 1e-9),
            "twice": self.marks.repeated(first, jobs),
            "worker_us": (after[0] - before[0]) / jobs * 1e6,
            "server_us": (after[1] - before[1]) / jobs * 1e6,
        }

    def _wait_first(self, first: int, jobs: int, cap: float) -> None:
        deadline = time.monotonic() + cap
        while not self.marks.started(first, min(jobs, 2000)):
            self._check(deadline)
            time.sleep(0.002)

    def _wait_started(self, first: int, jobs: int, cap: float) -> None:
        """Jobs start nearly in order: looking at one after the other costs next to nothing beside the workers."""
        deadline, n = time.monotonic() + cap, first
        while n < first + jobs:
            if self.marks.is_started(n):
                n += 1
                continue
            self._check(deadline)
            time.sleep(0.01)

    def _wait_recorded(self, jobs: int, base: int, cap: float) -> float:
        deadline = time.monotonic() + cap
        with self.connect() as connection:
            connection.execute("set enable_seqscan = off")
            while True:
                row = connection.execute(self.kind.unfinished_sql.encode(), {"base": base, "jobs": jobs}).fetchone()
                now = time.monotonic()
                if row == (0,):
                    return now
                self._check(deadline)
                time.sleep(0.003)

    def _check(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise BenchError(f"{self.label}: not drained in time:\n{self._log.read_text()[-3000:]}")
        if any(w.poll() is not None for w in self._workers):
            self.stop()

    def close(self) -> None:
        """Stop what runs; the server goes with everything else."""
        for worker in self._workers:
            worker.kill()
            worker.wait()
        self._workers = []
        self._admin.close()
        self.marks.close()


def _environment() -> dict[str, str]:
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
