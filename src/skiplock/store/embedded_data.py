"""The data folder of an `embedded` server: made, checked, locked while somebody starts it, and who runs on it."""

from __future__ import annotations

import fcntl
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from skiplock.core.errors import ConfigurationError
from skiplock.store.embedded_binaries import USER_VARIABLE, Account, Binaries, permitted

START_SECONDS: Final = 120


def make_data_folder(data: Path, account: Account | None) -> None:
    """Create what is missing of `data`; what exists keeps its owner and its permissions."""
    made: list[Path] = []
    try:
        for path in (*reversed(data.parents), data):
            if path.exists():
                continue
            path.mkdir(0o700)
            made.append(path)
            if account is not None and path != data:
                path.chmod(0o755)  # whatever root's umask: the server's user must get through
        if data in made:
            give(data, account)
            check_access(data, account)
    except BaseException as error:
        for path in reversed(made):
            path.rmdir()
        if isinstance(error, OSError):
            raise ConfigurationError(f"cannot use {data} for PostgreSQL's data: {error}") from error
        raise


def give(folder: Path, account: Account | None) -> None:
    """Make a folder that we have just created the server's."""
    if account is not None:
        os.chown(folder, account.uid, account.gid)


def check_access(data: Path, account: Account | None) -> None:
    """Refuse a folder the server's user cannot use, rather than open it."""
    server_uid = os.geteuid() if account is None else account.uid
    if data.stat().st_uid != server_uid:
        way_out = (
            f"give one that does not exist yet, or set {USER_VARIABLE} to its owner" if account else "give another"
        )
        raise ConfigurationError(f"{data} does not belong to the user who runs PostgreSQL: {way_out}")
    if account is not None and not permitted(account, "-w", data):
        raise ConfigurationError(
            f"as root, PostgreSQL runs as user {account.name!r}, who cannot reach {data}: a folder above it is closed, "
            f"and skiplock does not open it. Give a folder elsewhere (/var/lib/skiplock/..., say), "
            f"or set {USER_VARIABLE} to a user who can"
        )


def check_version(data: Path, programs: Binaries) -> None:
    try:
        major = (data / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        raise ConfigurationError(f"{data} is neither empty nor a PostgreSQL data folder: give another") from None
    if major != programs.major:
        raise ConfigurationError(
            f"{data} was written by PostgreSQL {major}, and {programs.bin} holds version {programs.version}: "
            f"start it with binaries of version {major} (and pg_dump it, to move on), or give another folder"
        )


@contextmanager
def alone(data: Path) -> Iterator[None]:
    """One starter at a time per folder: two terminals may do it at once. Locks the folder, so it leaves no file."""
    try:
        lock = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise ConfigurationError(f"cannot use {data} for PostgreSQL's data: {error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def running(data: Path) -> tuple[Path, int] | None:
    """Socket folder and port of the server that runs on `data`; waits for one that is just starting or stopping."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        try:
            lines = (data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return None
        # pid, data, start time, port, socket folder, address, shared memory, status
        if len(lines) < 1 or not _alive(int(lines[0])):
            return None
        if len(lines) >= 8 and lines[7].strip() == "ready":
            place, port = Path(lines[4]), int(lines[3])
            # The pid of a dead server may have gone to another process; only its socket proves it.
            return (place, port) if _answers(place / f".s.PGSQL.{port}") else None
        time.sleep(0.05)
    return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
