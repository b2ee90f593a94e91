"""What happened, kept outside the database: what enqueue answered, and what the handlers wrote."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Record:
    """Jobs are known by the number that the producer gave them."""

    journal: Path
    accepted: list[range] = field(default_factory=list)  # enqueue answered
    unknown: list[range] = field(default_factory=list)  # enqueue said that it does not know
    starts: dict[int, int] = field(default_factory=dict)
    ends: dict[int, set[int]] = field(default_factory=dict)  # leases under which the handler came to its end
    newest: dict[int, tuple[int, int]] = field(default_factory=dict)  # (when, lease) of the latest start
    rates: deque[tuple[float, int]] = field(default_factory=deque)  # (monotonic seconds, handlers ended since the last)
    _read: dict[Path, int] = field(default_factory=dict)

    def read(self) -> None:
        """Take in what the handlers have written since."""
        ended = 0
        for path in self.journal.iterdir():
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._read[path] = self._read.get(path, 0) + len(whole)
            for line in whole.splitlines():
                ended += self._line(*line.split())
        self.rates.append((time.monotonic(), ended))

    def _line(self, what: bytes, number: bytes, lease: bytes, at: bytes) -> int:
        n = int(number)
        if what == b"b":
            self.starts[n] = self.starts.get(n, 0) + 1
            when = (int(at), int(lease))
            if when > self.newest.get(n, (0, 0)):
                self.newest[n] = when
            return 0
        self.ends.setdefault(n, set()).add(int(lease))
        return 1

    def recovered(self, since: float, rate: float) -> float | None:
        """Seconds from `since` until a second in which so many handlers ended; None: not yet."""
        points = [(at, ended) for at, ended in self.rates if at > since]
        for first in range(len(points)):
            total, last = 0, first
            while last < len(points) and points[last][0] - points[first][0] < 1.0:
                total += points[last][1]
                last += 1
            if last < len(points) and total >= rate:
                return max(0.0, points[first][0] - since)
        return None
