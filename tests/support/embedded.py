"""Helpers of the tests about servers we start ourselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from skiplock.store import embedded_binaries
from skiplock.store.embedded import EmbeddedServer, start_server
from skiplock.store.embedded_binaries import Account
from tests.support.databases import connect
from tests.support.server import binaries_under_test

BINARIES = binaries_under_test()


def start(data: Path | None = None, **settings: str) -> EmbeddedServer:
    return start_server(data, binaries=BINARIES, settings=settings)


def ask(server: EmbeddedServer, query: str) -> Any:
    with connect(server.dsn()) as connection:
        row = connection.execute(query).fetchone()
        return row and row[0]


def postmaster(server: EmbeddedServer) -> int:
    return int((server.data / "postmaster.pid").read_text().split()[0])


def is_alive(pid: int) -> bool:
    """A zombie (nobody may be there to reap it, in a container) is as dead as one that was reaped."""
    status = Path(f"/proc/{pid}/stat")
    if Path("/proc/self/stat").exists():  # small Linux images have no ps
        try:
            state = status.read_text().rpartition(")")[2].strip()
        except (FileNotFoundError, ProcessLookupError):
            return False
    else:
        state = subprocess.run(
            ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
        ).stdout
    return bool(state.strip()) and not state.startswith("Z")


def modes_up(path: Path) -> dict[Path, tuple[int, int]]:
    return {p: (p.stat().st_mode, p.stat().st_uid) for p in (path, *path.parents)}


def server_user() -> Account:
    account = embedded_binaries.server_account()
    assert account is not None
    return account


_PARENT = """
import os, pathlib, signal, sys
from skiplock.store.embedded import start_server
signal.signal(signal.SIGINT, signal.SIG_IGN)
*words, user = sys.argv[1:]
if user:  # from here on as this one: after the imports, since our Python may be out of the user's reach
    uid, gid = map(int, user.split(":"))
    os.setgroups([]), os.setgid(gid), os.setuid(uid)
binaries, data = (pathlib.Path(word) if word else None for word in words)
server = start_server(data, binaries=binaries)
print(server.data, server.dsn(), flush=True)
signal.pause()
"""


def parent_command(data: Path | None = None, *, binaries: Path | None = None, user: Account | None = None) -> list[str]:
    """A process that starts a server (as `user`), says "data dsn" in a line, and waits to be killed."""
    identity = f"{user.uid}:{user.gid}" if user else ""
    return [sys.executable, "-c", _PARENT, str(binaries or BINARIES or ""), str(data or ""), identity]
