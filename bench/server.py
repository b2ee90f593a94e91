"""The server both systems run on: started for the run, durable, and gone afterwards."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from skiplock.core.errors import ConfigurationError
from skiplock.store.embedded import EmbeddedServer, start_server

# fsync, synchronous_commit and full_page_writes stay on: durability is what is measured. The rest keeps checkpoints
# and buffer misses out of runs that last seconds.
SETTINGS = {"shared_buffers": "1GB", "max_wal_size": "8GB", "checkpoint_timeout": "15min", "max_connections": "100"}
# For W7 and W14, which switch it on (`bench.meter`); to all other workloads it costs nothing.
_COUNTING = {"shared_preload_libraries": "pg_stat_statements"}
_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def server() -> Iterator[EmbeddedServer]:
    """A temporary server."""
    with _start() as found:
        with psycopg.connect(found.dsn(), autocommit=True) as connection:
            track_statements(connection, "none")
        yield found


def _start() -> EmbeddedServer:
    try:
        return start_server(settings={**SETTINGS, **_COUNTING})
    except ConfigurationError:  # binaries without the contributed modules: it works without, and counts less
        return start_server(settings=SETTINGS)


def track_statements(connection: psycopg.Connection[tuple[object, ...]], which: str) -> None:
    """Which statements pg_stat_statements counts from now on: "none" or "top"."""
    connection.execute(f"alter system set pg_stat_statements.track = '{which}'".encode())
    connection.execute("select pg_reload_conf()")


def facts(dsn: str) -> dict[str, str]:
    """What the figures depend on: version, durability, and how fast this disk commits."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        names = ("server_version", "fsync", "synchronous_commit", "full_page_writes", *SETTINGS)
        found = {n: str(_one(connection, f"select current_setting('{n}')")) for n in names}
        found["commits_s"] = f"{_commits(connection):.0f}"
    return found


def _commits(connection: psycopg.Connection[tuple[object, ...]], count: int = 500) -> float:
    connection.execute("create table bench_commits (n integer)")
    began = time.perf_counter()
    for n in range(count):
        connection.execute("insert into bench_commits values (%s)", [n])
    seconds = time.perf_counter() - began
    connection.execute("drop table bench_commits")
    return count / seconds


def _one(connection: psycopg.Connection[tuple[object, ...]], sql: str) -> object:
    row = connection.execute(sql.encode()).fetchone()
    assert row is not None
    return row[0]


def cpu_of(pid: int) -> float:
    """CPU seconds of a process and of its children, living and gone. 0 where there is no /proc."""
    total = 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        user, system, gone_user, gone_system = map(int, fields[11:15])
        if int(folder.name) == pid:
            total += user + system + gone_user + gone_system
        elif int(fields[1]) == pid:
            total += user + system
    return total / _TICKS


def postmaster(found: EmbeddedServer) -> int:
    """The server's main process."""
    return int((found.data / "postmaster.pid").read_text().split("\n", 1)[0])
