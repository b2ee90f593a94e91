"""The workers: `skiplock worker` with two processes, in a session of its own, as a person would start it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from skiplock.cli.demo.surroundings import CONCURRENCY

GRACE = 12.0  # seconds for the fleet to stop before it is made to


class Fleet:
    """A context manager: nothing of the fleet outlives it."""

    def __init__(self, env: Mapping[str, str], log: Path, *, processes: int = 2) -> None:
        self.log = log
        self.exit_code: int | None = None
        self._env = env
        self._processes = processes
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command(),
                env={**os.environ, **self._env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C reaches the demo alone, which then stops the fleet in order
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(GRACE if kind is None else 5.0)

    def command(self) -> list[str]:
        queues = [part for queue, room in CONCURRENCY.items() for part in ("--queue", f"{queue}={room}")]
        target = "skiplock.cli.demo.jobs:app"
        return [
            sys.executable,
            "-m",
            "skiplock",
            "worker",
            target,
            *queues,
            "--processes",
            str(self._processes),
            "--log-format",
            "json",
        ]

    @property
    def ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def owns(self, pid: int) -> bool:
        """Whether that process is one of the fleet's workers, on this machine. Only such a one may be killed."""
        if self._process is None or pid == self._process.pid:
            return False
        try:
            return os.getsid(pid) == self._process.pid
        except OSError:
            return False

    def stop(self, grace: float = GRACE) -> int | None:
        """SIGTERM, wait, and if that does not help SIGKILL. Returns the exit code; None if it had to be killed."""
        process, self._process = self._process, None
        if process is None:
            return self.exit_code
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            with suppress(subprocess.TimeoutExpired):  # then `exit_code` stays None, which says that it was killed
                self.exit_code = process.wait(grace)
        finally:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return self.exit_code

    def tail(self, lines: int = 5) -> str:
        """The end of the log, for an error message."""
        return "\n".join(self.log.read_text("utf-8", "replace").splitlines()[-lines:])
