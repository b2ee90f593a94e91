"""The signals that stop a process, and what it means to be told twice."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass

DEBOUNCE = 1.0  # seconds: process managers send one signal to a process and its group, terminals to both


def stop_signals() -> list[signal.Signals]:
    """Those that mean: stop. A terminal that closes (SIGHUP) is one, unless this was started under nohup."""
    found = [signal.SIGTERM, signal.SIGINT]
    return found if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else [*found, signal.SIGHUP]


@dataclass(slots=True)
class Told:
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
