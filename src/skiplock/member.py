"""A member of the fleet: one worker process as its supervisor sees it."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from skiplock.work.startmap import StartMap

STACKS_IN = 0.5  # seconds that a process gets to write where its threads are, before it is killed


class Member:
    """Starts at once. `code` is its exit code, negative for a signal, None while it lives."""

    def __init__(self, command: Sequence[str]) -> None:
        self.startmap = StartMap.create()
        try:
            reading, self._pipe = os.pipe()
        except OSError:
            self.startmap.close()
            raise
        told = ["--child", "--startmap", str(self.startmap.fd), "--parent-pipe", str(reading)]
        try:
            # A process group of its own: Ctrl-C in a terminal reaches the supervisor alone, which then tells the children.
            self._process = subprocess.Popen(
                [*command, *told],
                pass_fds=[self.startmap.fd, reading],
                process_group=0,
                stdin=subprocess.DEVNULL,
            )
        except BaseException:
            self.close()
            raise
        finally:
            os.close(reading)
        self.born = time.monotonic()
        self.retired_at: float | None = None  # when it was told that its successor is there
        self.killed_because = ""
        self.kill_at = math.inf  # when it is killed

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def code(self) -> int | None:
        return self._process.poll()

    @property
    def has_left(self) -> bool:
        """It ended and holds nothing: whatever it had is settled or given back."""
        return self.code is not None and self.startmap.worker == 0

    def silence(self, now: float) -> float:
        """Seconds since the database last heard a beat of it; 0 while it need not beat."""
        at = self.startmap.heard_at
        return now - at if at and self.startmap.worker else 0.0

    def is_suspended(self) -> bool:
        """Whether someone stopped it (SIGSTOP, a debugger): then it does not run, and nobody may say that it does."""
        return _state_of(self.pid) in ("T", "t", "Z", "X")

    def signal(self, number: int) -> None:
        """Signal it, if it still lives."""
        self._process.send_signal(number)

    def kill(self, because: str) -> None:
        """Have it write where its threads are, and kill it in a moment (`kill_due`). Waits for nothing."""
        if not self.killed_because and self.code is None:
            self.killed_because = because
            ready = self.startmap.worker != 0  # else it may not have learned to write them yet, and would dump its core
            if ready:
                self.signal(signal.SIGQUIT)
            self.kill_at = time.monotonic() + (STACKS_IN if ready else 0.0)

    def kill_due(self, now: float) -> None:
        """Do it when the time has come."""
        if now >= self.kill_at:
            self.kill_at = math.inf
            self.signal(signal.SIGKILL)

    def wait(self) -> None:
        """Until it has ended."""
        self._process.wait()

    def close(self) -> None:
        """Let go of what we held for it. It must have ended, or never have begun."""
        os.close(self._pipe)
        self.startmap.close()


def _state_of(pid: int) -> str:
    """R, S, T, … as the kernel names them; empty if it does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:  # no /proc on this system
        command = ["ps", "-o", "stat=", "-p", str(pid)]
        try:
            return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()[:1]
        except OSError:
            return ""
