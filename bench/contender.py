"""The driver's side of a system under test: its database, its marks, its processes."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from bench.marks import Marks
from bench.server import cpu_of
from bench.stores import BenchError as BenchError
from bench.stores import Postgres, Redis, Store
from bench.system import System
from skiplock.store.embedded import EmbeddedServer

ROOT = Path(__file__).parent.parent
CHILD_TIME = 900.0  # seconds a producer may take
STOP_TIME = 10.0  # seconds a worker may take to stop


class TooSlow(BenchError):
    """A drain took longer than its cap."""


class Contender:
    """A system on the server. `label` tells two of the same system apart."""

    def __init__(self, server: EmbeddedServer, kind: type[System], folder: Path, label: str = "") -> None:
        self.kind, self.label = kind, label or kind.name
        self._server, self._folder = server, folder
        self._database = "bench_" + re.sub(r"\W", "_", self.label.lower())
        self._log = folder / f"{self._database}.log"
        self._marks_path = folder / f"{self._database}.marks"
        self.marks = Marks.create(self._marks_path, 1)
        self._workers: list[subprocess.Popen[bytes]] = []
        self._store = self._make_store()
        self.dsn = self._store.dsn

    def _make_store(self) -> Store:
        if self.kind.kind_of_store == "redis":
            return Redis(self._folder / f"{self._database}.redis", self.kind)
        return Postgres(self._server, self._database, self.kind, lambda dsn: self._run(dsn, "setup"))

    def twin(self, label: str) -> Contender:
        """The same system again, in a database of its own."""
        return Contender(self._server, self.kind, self._folder, f"{self.kind.name} {label}")

    def sibling(self, kind: type[System]) -> Contender:
        """Another system on the same server."""
        return Contender(self._server, kind, self._folder)

    @property
    def database(self) -> str:
        """The name of its database."""
        return self._database

    @property
    def pids(self) -> list[int]:
        """The worker processes that run."""
        return [w.pid for w in self._workers]

    def reset(self, jobs: int) -> None:
        """A fresh store and marks for so many jobs."""
        self._store.reset()
        self.marks.close()
        self.marks = Marks.create(self._marks_path, jobs)

    def settle(self) -> None:
        """After filling: statistics as autovacuum would leave them, and no checkpoint due."""
        self._store.settle()

    def connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection to its database."""
        return psycopg.connect(self.dsn, autocommit=True)

    def server_connection(self) -> psycopg.Connection[tuple[Any, ...]]:
        """A connection to the server that does not count as one of its database."""
        return psycopg.connect(self._server.dsn(), autocommit=True)

    # -- enqueuing ---------------------------------------------------------------------------------------------------

    def produce(self, verb: str, *numbers: int) -> dict[str, float]:
        """Enqueue in a process of its own; see `bench.child`."""
        answer: dict[str, float] = json.loads(self._run(self.dsn, verb, *numbers).strip().splitlines()[-1])
        return answer

    def _run(self, dsn: str, verb: str, *numbers: int) -> str:
        command = [*self._command(dsn, verb), *map(str, numbers)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=CHILD_TIME, env=_environment())
        if done.returncode:
            raise BenchError(f"{self.label} {verb} failed:\n{done.stderr[-3000:]}")
        return done.stdout

    def _command(self, dsn: str, verb: str) -> list[str]:
        return [*self.kind.command(), dsn, str(self._marks_path), verb]

    # -- workers -----------------------------------------------------------------------------------------------------

    def start(self, workers: int = 1) -> None:
        """Start worker processes."""
        for _ in range(workers):
            with self._log.open("ab") as log:
                self._workers.append(
                    subprocess.Popen(
                        self._command(self.dsn, "work"),
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
            with suppress(subprocess.TimeoutExpired):
                worker.wait(STOP_TIME)
            _kill(worker)
        if early:
            raise BenchError(f"{self.label}: a worker ended with {early}:\n{self._log.read_text()[-3000:]}")

    def cpu(self) -> tuple[float, float]:
        """CPU seconds so far: of the workers, and of the server."""
        return sum(cpu_of(w.pid) for w in self._workers), self._store.cpu()

    def commits(self) -> int:
        """Transactions of its database so far; commands, where it is Redis."""
        return self._store.requests()

    # -- draining ----------------------------------------------------------------------------------------------------

    def base(self) -> int:
        """The highest job id given out."""
        return self._store.base()

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
        with self._store.watching(base, jobs) as unfinished:
            while unfinished():
                self._check(deadline)
                time.sleep(0.003)
            return time.monotonic()

    def _check(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise TooSlow(f"{self.label}: not drained in time:\n{self._log.read_text()[-3000:]}")
        if any(w.poll() is not None for w in self._workers):
            self.stop()

    def close(self) -> None:
        """Stop what runs; the server goes with everything else."""
        for worker in self._workers:
            _kill(worker)
        self._workers = []
        self._store.close()
        self.marks.close()


def _kill(worker: subprocess.Popen[bytes]) -> None:
    """With the children that it may have left; it leads a group of its own."""
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()


def _environment() -> dict[str, str]:
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
