"""A primary and its standby on this machine: streaming replication that can be cut, and a failover.

with primary_and_standby() as pair:
    pair.replicated()        # the standby has everything
    pair.cut()               # from now on commits are acknowledged by the primary alone
    pair.fail_over()         # the primary is gone; what it had not sent is lost
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg

from skiplock.store.embedded import EmbeddedServer, start_server
from skiplock.store.embedded_binaries import run, scratch_folder, server_account
from skiplock.store.embedded_data import give
from tests.support.fleets import one, rows
from tests.support.server import SETTINGS, binaries_under_test
from tests.support.waiting import eventually

_RECEIVERS = "SELECT count(*) FROM pg_stat_wal_receiver"


@dataclass(frozen=True)
class Pair:
    """Two servers; `dsn` names both and asks for the one that takes writes."""

    primary: EmbeddedServer
    standby: EmbeddedServer

    @property
    def dsn(self) -> str:
        hosts = ",".join(quote(str(server.socket_dir)) for server in (self.primary, self.standby))
        return f"postgresql://postgres@/postgres?host={hosts}&port=5432,5432&target_session_attrs=read-write"

    def replicated(self) -> None:
        """Wait until the standby has all that the primary has written by now."""
        written = one(self.primary.dsn(), "SELECT pg_current_wal_insert_lsn()::text")
        caught_up = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"
        eventually(lambda: one(self.standby.dsn(), caught_up, written), seconds=30)

    def cut(self) -> None:
        """The standby hears no more."""
        change(self.standby, "primary_conninfo", "")
        eventually(lambda: one(self.standby.dsn(), _RECEIVERS) == 0, seconds=30)

    def make_synchronous(self) -> None:
        """From now on a commit is acknowledged only when the standby has it on its disk."""
        change(self.primary, "synchronous_standby_names", "*")
        sync = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'"
        eventually(lambda: one(self.primary.dsn(), sync) == 1, seconds=30)

    def fail_over(self) -> None:
        """The primary vanishes and the standby takes its place."""
        self.primary.halt("immediate")
        self.promote()

    def promote(self) -> None:
        """The standby takes writes from now on."""
        assert one(self.standby.dsn(), "SELECT pg_promote(true, 30)")


def change(server: EmbeddedServer, setting: str, value: str) -> None:
    """A setting of the running server."""
    rows_of_none(server.dsn(), f"ALTER SYSTEM SET {setting} = '{value}'")
    rows(server.dsn(), "SELECT pg_reload_conf()")


def rows_of_none(dsn: str, sql: str) -> None:
    """A statement without an answer."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql)


@contextmanager
def primary_and_standby() -> Iterator[Pair]:
    """Both are temporary."""
    account = server_account()
    folder = scratch_folder(account)
    data = folder / "standby"
    try:
        with start_server(binaries=binaries_under_test(), settings=SETTINGS) as primary:
            data.mkdir(0o700)
            give(data, account)
            copy: list[str | Path] = [
                primary.bin / "pg_basebackup",
                "-h",
                primary.socket_dir,
                "-U",
                "postgres",
                "-D",
                data,
                "-R",
            ]
            done = run([*copy, "-X", "stream", "-c", "fast"], account)
            assert done.returncode == 0, done.stdout
            _forget(data)
            standby = start_server(data, binaries=binaries_under_test(), settings=SETTINGS)
            try:
                yield Pair(primary, standby)
            finally:
                standby.stop("immediate")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _forget(data: Path) -> None:
    """What came along although it is the primary's: its log, and the lock of its socket."""
    for path in (data / "server.log", *data.glob(".s.PGSQL.*")):
        path.unlink(missing_ok=True)
