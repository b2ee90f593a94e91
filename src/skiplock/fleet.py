"""Processes: one worker with its signals, and the supervisor of several.

The supervisor does not touch the database while all is well. When a child dies it knows at once, reads in the shared map
which jobs had started, and gives everything back there and then; without it the others notice by the missing heartbeat.
"""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from skiplock.app import Skiplock
from skiplock.core.events import Events
from skiplock.core.settings import WorkerSettings
from skiplock.store.pool import connect, run_call
from skiplock.upkeep.rescue import report_lost_call
from skiplock.work.startmap import StartMap
from skiplock.worker import Worker

DEBOUNCE = 1.0  # seconds: process managers send one signal to a process and its group, terminals to both
KILL_AFTER = 10.0  # seconds beyond the grace period after which a child that does not end is killed
HEALTHY_AFTER = 10.0  # seconds of life after which a child's next crash counts as its first
LONGEST_PAUSE = 30.0  # seconds between restarts of a child that keeps crashing
REPORT_EVERY = 0.5  # seconds between tries to report a dead child while the database is away
HOPELESS = (2, 3, 5)  # exit codes that a restart cannot cure: usage, configuration, schema


def run_worker(
    app: Skiplock, settings: WorkerSettings, *, startmap_path: Path | None = None, parent_pipe: int | None = None
) -> int:
    """Run one worker in this process until SIGTERM or SIGINT; returns the exit code.

    0: it finished gracefully (or drained). 128 + signal: it was told twice and left at once. The caller should end with
    `os._exit`, because a handler's thread that never ends would keep the interpreter alive.
    """
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(_run(app, settings, startmap_path, parent_pipe))


async def _run(app: Skiplock, settings: WorkerSettings, startmap_path: Path | None, parent_pipe: int | None) -> int:
    loop = asyncio.get_running_loop()
    startmap = StartMap(startmap_path) if startmap_path else None
    worker = Worker(app, settings, startmap=startmap)
    told = _Told()

    def on_signal(number: int) -> None:
        level = told.again(number)
        if level >= 3:
            os._exit(128 + number)
        if level:
            worker.stop(signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
    if parent_pipe is not None:
        loop.add_reader(parent_pipe, _orphaned, loop, parent_pipe, worker)
    await worker.run()
    if startmap is not None:
        startmap.close(remove=False)
    return 128 + told.number if told.level > 1 else 0


def _orphaned(loop: asyncio.AbstractEventLoop, pipe: int, worker: Worker) -> None:
    # Nothing is ever written to the pipe: readable means that the supervisor is gone.
    loop.remove_reader(pipe)
    worker.stop("supervisor gone")


@dataclass(slots=True)
class _Told:
    """How often we were told to stop; the same order delivered twice within DEBOUNCE counts once."""

    level: int = 0
    number: int = 0
    at: float = 0.0

    def again(self, number: int) -> int:
        """The new level, or 0 if this is only an echo."""
        now = time.monotonic()
        if self.level and now - self.at < DEBOUNCE:
            return 0
        self.level, self.number, self.at = self.level + 1, number, now
        return self.level


def _loop_factory() -> Any:
    """uvloop's if it is installed (extra `fast`)."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


# -- the supervisor ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Child:
    """One place in the fleet: the process that fills it now, or when the next one is due."""

    startmap: StartMap
    process: subprocess.Popen[bytes] | None = None
    pipe: int = -1
    born: float = 0.0
    crashes: int = 0
    restart_at: float | None = 0.0
    code: int | None = None


@dataclass(slots=True)
class _Report:
    """A dead child the database has not heard of yet."""

    worker: int
    started: list[int]
    reason: str
    pid: int
    next_try: float = 0.0
    give_up: float = field(default_factory=lambda: time.monotonic() + 60.0)


class Supervisor:
    """Keeps `processes` children running. See `supervise`."""

    def __init__(
        self, command: Sequence[str], *, processes: int, dsn: str, schema: str, grace: float, events: Events
    ) -> None:
        self._command, self._dsn, self._schema, self._grace, self._events = list(command), dsn, schema, grace, events
        self._children = [_Child(StartMap.create()) for _ in range(processes)]
        self._reports: list[_Report] = []
        self._told = _Told()
        self._kill_at: float | None = None
        self._exit: int | None = None  # the code to end with, once someone decided to stop

    def run(self) -> int:
        """Until told to stop, drained, or a child fails in a way that no restart cures."""
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        old = {n: signal.signal(n, lambda *_: None) for n in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)}
        old_fd = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            while not self._over():
                self._start_due()
                select.select([reader], [], [], self._pause())
                for number in _read_all(reader):
                    if number in (signal.SIGTERM, signal.SIGINT):
                        self._on_signal(number)
                self._reap()
                self._report_due()
                self._kill_due()
        finally:
            signal.set_wakeup_fd(old_fd)
            for number, handler in old.items():
                signal.signal(number, handler)
            self._clean_up()
            reader.close()
            writer.close()
        return self._exit or 0

    def _over(self) -> bool:
        alive = any(c.process is not None for c in self._children)
        due = self._exit is None and any(c.restart_at is not None for c in self._children)
        return not alive and not due and not self._reports

    def _pause(self) -> float:
        now = time.monotonic()
        moments = [c.restart_at for c in self._children if c.restart_at is not None and self._exit is None]
        moments += [r.next_try for r in self._reports]
        if self._kill_at is not None:
            moments.append(self._kill_at)
        return max(0.0, min([60.0, *(m - now for m in moments)]))

    def _start_due(self) -> None:
        now = time.monotonic()
        for child in self._children:
            if self._exit is None and child.restart_at is not None and now >= child.restart_at:
                self._start(child)

    def _start(self, child: _Child) -> None:
        child.startmap.clear()
        reading, child.pipe = os.pipe()
        try:
            # A process group of its own: Ctrl-C in a terminal reaches the supervisor alone, which then tells the children.
            child.process = subprocess.Popen(
                [*self._command, "--child", "--startmap", str(child.startmap.path), "--parent-pipe", str(reading)],
                pass_fds=[reading],
                process_group=0,
                stdin=subprocess.DEVNULL,
            )
        finally:
            os.close(reading)
        name = "child_restarted" if child.crashes else "child_started"
        child.born, child.restart_at = time.monotonic(), None
        self._events.emit(name, pid=child.process.pid)

    def _reap(self) -> None:
        for child in self._children:
            process = child.process
            if process is None or process.poll() is None:
                continue
            child.process, child.code = None, process.returncode
            os.close(child.pipe)
            if process.returncode == 0:
                if self._exit is None and all(c.process is None and c.restart_at is None for c in self._children):
                    self._exit = 0
                continue
            self._died(child, process)

    def _died(self, child: _Child, process: subprocess.Popen[bytes]) -> None:
        code, worker, now = process.returncode, child.startmap.worker, time.monotonic()
        reason = f"worker process {process.pid} {_how(code)}"
        stopping = self._exit is not None
        if worker:
            # Killed because it would not stop in time: that interruption is ours, so no attempt is spent.
            started = [] if stopping else child.startmap.started()
            self._reports.append(_Report(worker, started, reason, process.pid))
        if stopping:
            if code == -signal.SIGTERM and not worker:
                return  # it was still starting and had not yet learned to stop gracefully; it held nothing
            self._exit = max(self._exit or 0, code if code > 0 else 128 - code)
            return
        if code in HOPELESS and now - child.born < HEALTHY_AFTER:
            self._events.emit("child_died", pid=process.pid, code=code, reason=reason, restart_in=None)
            self._stop(code)
            return
        child.crashes = 1 if now - child.born > HEALTHY_AFTER else child.crashes + 1
        wait = min(LONGEST_PAUSE, 0.1 * 2 ** min(child.crashes - 1, 20))
        child.restart_at = now + wait
        self._events.emit("child_died", pid=process.pid, code=code, reason=reason, restart_in=wait)

    def _report_due(self) -> None:
        now = time.monotonic()
        for report in [r for r in self._reports if now >= r.next_try]:
            try:
                connection = connect(self._dsn, connect_timeout=3, application_name="skiplock supervisor")
                try:
                    call = report_lost_call(report.worker, report.started, report.reason, self._schema)
                    jobs = run_call(connection, call)
                finally:
                    connection.close()
            except Exception as error:  # the database may be away; after a minute the others have found out themselves
                report.next_try = time.monotonic() + REPORT_EVERY
                self._events.emit("beat_failed", error=error, retry_in=REPORT_EVERY)
                if report.next_try > report.give_up:
                    self._reports.remove(report)
                continue
            self._reports.remove(report)
            self._events.emit(
                "child_rescued", pid=report.pid, worker=report.worker, jobs=jobs, started=len(report.started)
            )

    # -- stopping ----------------------------------------------------------------------------------------------------

    def _on_signal(self, number: int) -> None:
        level = self._told.again(number)
        if level == 1:
            self._stop(0)
        elif level == 2:
            self._signal_all(signal.SIGTERM)
            self._kill_at = time.monotonic() + KILL_AFTER
        elif level >= 3:
            self._signal_all(signal.SIGKILL)

    def _stop(self, code: int) -> None:
        self._exit = code
        self._kill_at = time.monotonic() + self._grace + KILL_AFTER
        self._signal_all(signal.SIGTERM)

    def _kill_due(self) -> None:
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._kill_at = None
            self._signal_all(signal.SIGKILL)

    def _signal_all(self, number: signal.Signals) -> None:
        for child in self._children:
            if child.process is not None and child.process.poll() is None:
                child.process.send_signal(number)

    def _clean_up(self) -> None:
        self._signal_all(signal.SIGKILL)
        for child in self._children:
            if child.process is not None:
                child.process.wait()
            child.startmap.close(remove=True)


def _read_all(reader: socket.socket) -> bytes:
    try:
        return reader.recv(4096)
    except BlockingIOError:
        return b""


def _how(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"


def supervise(command: Sequence[str], *, processes: int, dsn: str, schema: str, grace: float, events: Events) -> int:
    """Run `processes` children of `command` until told to stop; returns the exit code.

    `command` gets ``--child --startmap PATH --parent-pipe FD`` appended.
    A child that dies is reported to the database with the jobs it had started, and started again with growing pauses;
    one that ends with a usage, configuration or schema error ends the whole.
    """
    fleet = Supervisor(command, processes=processes, dsn=dsn, schema=schema, grace=grace, events=events)
    return fleet.run()
