"""Start marks: a memory-mapped file with three numbers for each job: sent, first started, times started.

Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share. A mark costs a fraction of a
microsecond, and shows lost and repeated jobs.
"""

from __future__ import annotations

import mmap
import time
from pathlib import Path
from typing import Any

_FIELDS = 3
_SENT, _STARTED, _TIMES = range(_FIELDS)


def payload(n: int) -> dict[str, Any]:
    """The arguments of job `n`, as in every system measured."""
    return {"to": "user@example.com", "subject": "hello", "n": n}


class Marks:
    """The marks of a run. Written by producers and workers, read by the driver."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        self._view = memoryview(self._map).cast("q")

    @classmethod
    def create(cls, path: Path, jobs: int) -> Marks:
        """Empty marks for jobs 0 … jobs-1."""
        path.write_bytes(b"")
        with path.open("r+b") as file:
            file.truncate(8 * _FIELDS * jobs)
        return cls(path)

    def close(self) -> None:
        """Unmap; the file stays."""
        self._view.release()
        self._map.close()

    # -- writing -----------------------------------------------------------------------------------------------------

    def send(self, n: int) -> None:
        """Job `n` is about to be enqueued."""
        self._view[n * _FIELDS + _SENT] = time.monotonic_ns()

    def start(self, n: int) -> None:
        """Job `n` starts: the whole body of every handler."""
        view, at = self._view, n * _FIELDS + _STARTED
        if not view[at]:
            view[at] = time.monotonic_ns()
        view[at + 1] += 1

    # -- reading -----------------------------------------------------------------------------------------------------

    def is_started(self, n: int) -> bool:
        """Whether job `n` has started."""
        return self._view[n * _FIELDS + _STARTED] != 0

    def starts(self, first: int, jobs: int) -> list[float]:
        """When those of jobs first … first+jobs-1 that have started did so, in seconds, sorted."""
        return sorted(t / 1e9 for t in self._column(_STARTED, first, jobs) if t)

    def started(self, first: int, jobs: int) -> int:
        """How many of them have started."""
        return jobs - self._column(_STARTED, first, jobs).count(0)

    def repeated(self, first: int, jobs: int) -> int:
        """How many of them started more than once."""
        return sum(times > 1 for times in self._column(_TIMES, first, jobs))

    def delays(self, first: int, jobs: int) -> list[float]:
        """Milliseconds from sent to started, sorted; jobs that have not started are left out."""
        pairs = zip(self._column(_SENT, first, jobs), self._column(_STARTED, first, jobs), strict=True)
        return sorted((started - sent) / 1e6 for sent, started in pairs if started)

    def _column(self, field: int, first: int, jobs: int) -> list[int]:
        return self._view[first * _FIELDS + field : (first + jobs) * _FIELDS : _FIELDS].tolist()
