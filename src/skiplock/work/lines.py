"""A worker's lines: for each queue its slots, the jobs claimed ahead, and how fast they go."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

from skiplock.core.ahead import claim_ahead, smoothed
from skiplock.core.job import Job

SLOW = 1.0  # seconds: what the handlers of a stalled line are taken to need until measured again


class Line:
    """One queue in this process. `mean` is the mean run time of its handlers in seconds, None while unknown."""

    __slots__ = ("buffer", "concurrency", "mean", "name", "running", "seen", "starts")

    def __init__(self, name: str, concurrency: int) -> None:
        self.name = name
        self.concurrency = concurrency
        self.running = 0
        self.buffer: deque[Job] = deque()
        self.mean: float | None = None
        self.starts = 0  # attempts started, ever
        self.seen = 0  # `starts` at the latest look of `take_stalled`

    @property
    def free(self) -> int:
        """Slots that neither run a job nor have one waiting in the buffer."""
        return self.concurrency - self.running - len(self.buffer)

    def measured(self, took: float) -> None:
        """An attempt took that long."""
        self.mean = smoothed(self.mean, took, 0.05)


class Lines:
    """All lines of a worker. `round_trip` is what a claim takes, in seconds, smoothed."""

    def __init__(self, queues: Mapping[str, int], max_ahead: int, max_claim: int) -> None:
        self.by_name = {name: Line(name, concurrency) for name, concurrency in queues.items()}
        self.round_trip = 0.005
        self._max_ahead = max_ahead
        self._max_claim = max_claim

    @property
    def running(self) -> int:
        """Attempts in progress, handlers that outlived their timeout included."""
        return sum(line.running for line in self.by_name.values())

    @property
    def started(self) -> int:
        """Attempts so far."""
        return sum(line.starts for line in self.by_name.values())

    @property
    def buffered(self) -> int:
        """Jobs claimed and not started."""
        return sum(len(line.buffer) for line in self.by_name.values())

    def rooms(self) -> dict[str, int]:
        """How many jobs each queue may claim now; empty if it is not worth a statement yet.

        A line asks once half of its ahead is used up, so that claims stay large, or at once for a free slot when
        nothing is held ahead.
        """
        rooms: dict[str, int] = {}
        worth = False
        for line in self.by_name.values():
            ahead = claim_ahead(line.concurrency, line.mean, self.round_trip, self._max_ahead)
            room = min(line.free + ahead, self._max_claim)
            if room > 0:
                rooms[line.name] = room
                worth = worth or len(line.buffer) <= ahead // 2
        return rooms if worth else {}

    def free(self) -> dict[str, int]:
        """Free slots by queue: room for jobs that must start at once."""
        return {line.name: line.free for line in self.by_name.values() if line.free > 0}

    def take_stalled(self) -> list[Job]:
        """Empty the buffers of lines that started nothing since the latest call: fast jobs turned slow, and what was
        claimed ahead would wait behind them while other workers may be idle. These jobs are to be released."""
        stalled: list[Job] = []
        for line in self.by_name.values():
            if line.buffer and line.starts == line.seen:
                stalled += line.buffer
                line.buffer.clear()
                line.mean = max(line.mean or 0.0, SLOW)
            line.seen = line.starts
        return stalled

    def take_buffered(self) -> list[Job]:
        """Empty all buffers: these jobs are to be released."""
        jobs = [job for line in self.by_name.values() for job in line.buffer]
        for line in self.by_name.values():
            line.buffer.clear()
        return jobs
