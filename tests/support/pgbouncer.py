"""PgBouncer in transaction mode in front of a server of ours: a socket in a folder, no port, no password.

with pgbouncer(dsn) as pooler:
    Skiplock(pooler.dsn)

Its own defaults, but for a small pool: whoever connects gets this server connection now and that one next. It refuses to run as
root, and has to be let into the server's folder: it runs as the server's user.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import psycopg
from psycopg.conninfo import conninfo_to_dict

from skiplock.store.embedded_binaries import scratch_folder, server_account
from tests.support.debian import libraries, unpacked
from tests.support.waiting import eventually

PORT = 6432
_ELSEWHERE = ("/usr/sbin/pgbouncer", "/opt/homebrew/bin/pgbouncer", "/usr/local/bin/pgbouncer")


class PgBouncer:
    """A running PgBouncer; `dsn` leads through it into the database it was made for."""

    def __init__(self, folder: Path, program: Path, loader_path: str, server: str, settings: dict[str, str]) -> None:
        self._folder, self._program, self._loader_path = folder, program, loader_path
        self._database = urlsplit(server).path[1:]
        self._process: subprocess.Popen[bytes] | None = None
        target = conninfo_to_dict(server)
        given = {
            "listen_addr": "", "listen_port": str(PORT), "unix_socket_dir": str(folder), "auth_type": "any",
            "pool_mode": "transaction", "admin_users": "postgres", "logfile": str(folder / "log"),
            "default_pool_size": "3", "server_round_robin": "1", "max_client_conn": "300",
        } | settings  # fmt: skip
        place = f"* = host={target['host']} port={target['port']} user={target['user']}"
        lines = ["[databases]", place, "[pgbouncer]", *[f"{key} = {value}" for key, value in given.items()]]
        (folder / "pgbouncer.ini").write_text("\n".join(lines) + "\n")

    @property
    def dsn(self) -> str:
        return self._address(self._database)

    def _address(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={quote(str(self._folder))}&port={PORT}"

    def start(self) -> None:
        account = server_account()
        who: dict[str, Any] = {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": []}
        environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": self._loader_path}
        self._process = subprocess.Popen(
            [self._program, "-q", self._folder / "pgbouncer.ini"],
            env=environment, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, **who,
        )  # fmt: skip
        eventually(self._answers, seconds=20)

    def _answers(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self.log()
        try:
            self.ask("SHOW VERSION")
        except psycopg.OperationalError:
            return False
        return True

    def ask(self, command: str) -> list[dict[str, Any]]:
        """A command of its console, such as SHOW POOLS."""
        with psycopg.connect(self._address("pgbouncer"), autocommit=True) as console:
            # The console understands simple queries only.
            cursor = psycopg.ClientCursor(console)
            cursor.execute(command)
            names = [column.name for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def tell(self, command: str) -> None:
        """A command of its console without an answer, such as RECONNECT."""
        with psycopg.connect(self._address("pgbouncer"), autocommit=True) as console:
            psycopg.ClientCursor(console).execute(command)

    def kill(self) -> None:
        """As a crash does: all its clients and servers are cut."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(20)

    def restart(self) -> None:
        self.kill()
        self.start()

    def log(self) -> str:
        file = self._folder / "log"
        return file.read_text(errors="replace") if file.exists() else "(it wrote no log)"


@contextmanager
def pgbouncer(server: str, **settings: Any) -> Iterator[PgBouncer]:
    """In front of the database `server`; `settings` are its own."""
    account = server_account()
    folder = scratch_folder(account)
    try:
        program, loader_path = _program(folder)
        pooler = PgBouncer(folder, program, loader_path, server, {k: str(v) for k, v in settings.items()})
        for path in folder.rglob("*"):
            path.chmod(0o755 if path.is_dir() or path == program else 0o644)
            if account is not None:
                os.chown(path, account.uid, account.gid)
        pooler.start()
        try:
            yield pooler
        except BaseException:
            print(f"--- log of PgBouncer ---\n{pooler.log()[-4000:]}")
            raise
        finally:
            pooler.kill()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _program(folder: Path) -> tuple[Path, str]:
    """The program, and where its libraries are; copied if need be to where the server's user can reach them."""
    for place in (shutil.which("pgbouncer"), *_ELSEWHERE):
        if place and Path(place).is_file():
            return Path(place), ""
    package = unpacked("pgbouncer")
    copied = folder / "libraries"
    copied.mkdir()
    for library in libraries(package):
        for file in library.glob("*.so*"):
            shutil.copyfile(file, copied / file.name)
    return Path(shutil.copyfile(package / "usr/sbin/pgbouncer", folder / "pgbouncer")), str(copied)
