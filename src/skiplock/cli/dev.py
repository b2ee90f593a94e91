"""`skiplock dev`: a PostgreSQL of one's own and a worker that starts anew when the code changes."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click

from skiplock.cli.failures import database_errors
from skiplock.cli.look import say
from skiplock.cli.options import Place, option, own_database_options
from skiplock.cli.worker import log_options, queue_option, seconds_option
from skiplock.store.embedded import default_data_dir, start_server
from skiplock.store.migrate import migrate

LOOK_EVERY = 200  # milliseconds between looks at the worker and at our signals
PATIENCE = 5.0  # seconds beyond the grace period before a worker is killed


@click.command(short_help="Develop an app: database, worker, reload.")
@click.argument("target", metavar="MODULE:APP")
@queue_option
@option("--data", type=click.Path(file_okay=False, path_type=Path), help="Folder of the database; kept.")
@option(
    "--watch",
    type=click.Path(exists=True, path_type=Path),
    multiple=True,
    help="Watch this instead of the current folder. Repeatable.",
)
@seconds_option("--grace", 2.0, "For running handlers to finish before a reload.")
@log_options
@own_database_options
def dev(place: Place, target: str, data: Path | None, watch: Sequence[Path], **options: Any) -> int:
    """Develop MODULE:APP: starts PostgreSQL, migrates, runs a worker and starts it anew when the code changes.

    The database is kept for the next time. With --dsn, that database is used instead. Ctrl-C stops it all.
    """
    with _told_to_stop() as stop:
        server = None if place.dsn else start_server(data or default_data_dir())
        try:
            dsn = place.dsn or (server.dsn() if server else "")
            with database_errors():
                migrate(dsn, place.schema)
            _explain(dsn, place.schema, server.data if server else None)
            command = _command(target, dsn, place.schema, **options)
            return _keep_running(DevWorker(command, dsn, options["grace"]), watch or (Path.cwd(),), stop)
        finally:
            if server is not None:
                server.stop()


@contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """An event that SIGINT and SIGTERM set, so that everything is stopped in order."""
    stop = threading.Event()
    old = {n: signal.signal(n, lambda *_: stop.set()) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)


def _explain(dsn: str, schema: str, data: Path | None) -> None:
    if data is not None:
        say(f"PostgreSQL is up, its data is in {data}", "green")
    say("In a second terminal:")
    say(f"  export SKIPLOCK_DATABASE_URL={shlex.quote(dsn)}", "bold")
    if schema != "skiplock":
        say(f"  export SKIPLOCK_SCHEMA={shlex.quote(schema)}", "bold")
    say("  skiplock enqueue TASK name=value", "bold")
    sys.stdout.flush()


def _command(
    target: str,
    dsn: str,
    schema: str,
    *,
    queue: Sequence[tuple[str, int]],
    grace: float,
    log_format: str,
    log_level: str,
) -> list[str]:
    rooms = [word for name, room in queue for word in ("--queue", f"{name}={room}")]
    logs = ["--log-format", log_format, "--log-level", log_level]
    place = ["--dsn", dsn, "--schema", schema]
    fixed = ["worker", target, "--no-supervisor", "--processes", "1", "--grace", str(grace)]
    return [sys.executable, "-m", "skiplock", *fixed, *rooms, *logs, *place]


class DevWorker:
    """The worker process. A pipe tells it when we are gone, so that it never outlives us."""

    def __init__(self, command: Sequence[str], dsn: str, grace: float) -> None:
        self._command, self._grace = list(command), grace
        self._environment = {**os.environ, "SKIPLOCK_DATABASE_URL": dsn}
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        reading, self._pipe = os.pipe()
        try:
            # A process group of its own: Ctrl-C reaches us alone, and we stop it in order.
            self._process = subprocess.Popen(
                [*self._command, "--parent-pipe", str(reading)],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[reading],
                process_group=0,
            )
        finally:
            os.close(reading)

    def ended(self) -> int | None:
        """Its exit code, if it has ended."""
        return self._process.poll() if self._process else None

    def stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with suppress(ProcessLookupError):
            process.terminate()
        try:
            process.wait(self._grace + PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(self._pipe)


def _keep_running(worker: DevWorker, folders: Sequence[Path], stop: threading.Event) -> int:
    if find_spec("watchfiles") is None:
        say("Code changes are not noticed: `pip install watchfiles` and start again.", "yellow")
        with worker:
            while not stop.is_set() and worker.ended() is None:
                stop.wait(LOOK_EVERY / 1000)
            return worker.ended() or 0
    from watchfiles import PythonFilter, watch

    say(f"Watching {', '.join(str(folder) for folder in folders)}; Ctrl-C stops everything.", "dim")
    said = False
    looks = watch(
        *folders, watch_filter=PythonFilter(), stop_event=stop, rust_timeout=LOOK_EVERY, yield_on_timeout=True
    )
    with worker:
        for changes in looks:
            if changes:
                names = ", ".join(sorted({Path(path).name for _, path in changes})[:5])
                say(f"{names} changed: starting anew", "cyan")
                worker.stop()
                worker.start()
                said = False
            elif worker.ended() is not None and not said:
                say("The worker has ended; waiting for a change.", "yellow")
                said = True
    return 0
