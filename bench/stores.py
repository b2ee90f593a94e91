"""Where a system under test keeps its jobs, as the driver sees it."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import psycopg

from bench.server import cpu_of, postmaster
from bench.system import System
from skiplock.store.embedded import EmbeddedServer

START_TIME = 10.0  # seconds Redis may take to start


class BenchError(Exception):
    """The run cannot go on."""


class Store(ABC):
    """A store of one system, at `dsn`."""

    dsn: str

    @abstractmethod
    def reset(self) -> None:
        """Empty it."""

    @abstractmethod
    def settle(self) -> None:
        """After filling: as it would be some time later."""

    @abstractmethod
    def base(self) -> int:
        """The highest job id given out."""

    @abstractmethod
    def watching(self, base: int, jobs: int) -> AbstractContextManager[Callable[[], int]]:
        """Tells how many of `jobs` jobs above `base` are not recorded as done, whenever it is called."""

    @abstractmethod
    def requests(self) -> int:
        """Transactions (PostgreSQL) or commands (Redis) so far."""

    @abstractmethod
    def cpu(self) -> float:
        """CPU seconds of the server so far."""

    @abstractmethod
    def close(self) -> None:
        """Stop what was started for it."""


class Postgres(Store):
    """A database of its own on the server, copied from a template that has only the schema."""

    def __init__(
        self, server: EmbeddedServer, database: str, kind: type[System], make: Callable[[str], object]
    ) -> None:
        self.dsn, self.database, self._kind = server.dsn(database), database, kind
        self._postmaster, self._template = postmaster(server), f"{database}_template"
        self._admin = psycopg.connect(server.dsn(), autocommit=True)
        self._create(self._template, "template0")
        make(server.dsn(self._template))
        # A pool that its process left open would stand in the way of copying.
        self._admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [self._template]
        )

    def _create(self, name: str, template: str) -> None:
        self._admin.execute(f"drop database if exists {name} with (force)".encode())
        self._admin.execute(f"create database {name} template {template}".encode())

    def reset(self) -> None:
        self._create(self.database, self._template)

    def settle(self) -> None:
        """Statistics as autovacuum would leave them, and no checkpoint due."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("analyze")
        self._admin.execute("checkpoint")

    def base(self) -> int:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            return _int(connection.execute(self._kind.base_sql.encode()).fetchone())

    @contextmanager
    def watching(self, base: int, jobs: int) -> Iterator[Callable[[], int]]:
        sql = self._kind.unfinished_sql.encode()
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute("set enable_seqscan = off")
            yield lambda: _int(connection.execute(sql, {"base": base, "jobs": jobs}).fetchone())

    def requests(self) -> int:
        self._admin.execute("select pg_stat_clear_snapshot()")
        sql = "select xact_commit from pg_stat_database where datname = %s"
        return _int(self._admin.execute(sql, [self.database]).fetchone())

    def cpu(self) -> float:
        return cpu_of(self._postmaster)

    def close(self) -> None:
        """The server goes with everything else."""
        self._admin.close()


class Redis(Store):
    """A server of its own on a Unix socket, started anew for each repetition.

    It writes every command to a file and syncs that once a second, its usual way of keeping data: a crash may lose the
    last second of jobs, where PostgreSQL loses none.
    """

    def __init__(self, folder: Path, kind: type[System]) -> None:
        self._folder, self._socket, self._kind = folder, folder / "socket", kind
        self.dsn = f"unix://{self._socket}"
        self._process: subprocess.Popen[bytes] | None = None

    def reset(self) -> None:
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir()
        options = {"unixsocket": str(self._socket), "port": "0", "dir": str(self._folder)}
        options |= {"appendonly": "yes", "appendfsync": "everysec", "save": ""}
        command = ["redis-server", *[word for key, value in options.items() for word in (f"--{key}", value)]]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + START_TIME
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise BenchError("redis-server does not start")
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            return bool(self.ask("PING") == "PONG")
        except OSError:
            return False

    def ask(self, *words: str) -> Any:
        """One command, on a connection of its own, so that nothing lingers when the server is replaced."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(str(self._socket))
            parts = [f"${len(word.encode())}\r\n{word}\r\n" for word in words]
            connection.sendall(f"*{len(words)}\r\n{''.join(parts)}".encode())
            with connection.makefile("rb") as answer:
                return _parse(answer)

    def settle(self) -> None:
        """Nothing to do."""

    def base(self) -> int:
        return 0

    @contextmanager
    def watching(self, base: int, jobs: int) -> Iterator[Callable[[], int]]:
        yield lambda: self._kind.unfinished(self.ask)

    def requests(self) -> int:
        lines: str = self.ask("INFO", "stats")
        return next(
            int(line.split(":")[1]) for line in lines.splitlines() if line.startswith("total_commands_processed")
        )

    def cpu(self) -> float:
        return cpu_of(self._process.pid) if self._process else 0.0

    def close(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None


def _parse(answer: Any) -> Any:
    """An answer in Redis' protocol, version 2."""
    line = answer.readline()[:-2]
    kind, rest = line[:1], line[1:].decode()
    if kind == b"-":
        raise RuntimeError(rest)
    if kind == b":":
        return int(rest)
    if kind == b"*":
        return [_parse(answer) for _ in range(int(rest))]
    if kind == b"$":
        if rest == "-1":
            return None
        text = answer.read(int(rest) + 2)[:-2]
        return text.decode()
    return rest


def _int(row: tuple[Any, ...] | None) -> int:
    return int(row[0]) if row else 0
