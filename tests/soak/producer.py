"""The application: enqueues at a steady rate, whatever happens, and keeps what it was told."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence

from skiplock import Skiplock
from skiplock.core.errors import SkiplockError
from skiplock.core.job import NewJob
from tests.soak import jobs
from tests.soak.record import Record

TURN = 0.05  # seconds between two batches
DEAD = ("hopeless", "poison")  # tasks whose jobs must end dead


class Producer(threading.Thread):
    """Jobs are numbered from 0; `kinds[n]` says which task."""

    def __init__(self, dsn: str, record: Record, rate: float, seed: int) -> None:
        super().__init__(name="producer", daemon=True)
        self._app = Skiplock(dsn, pool_size=4)
        self._record, self._rate, self._random = record, rate, random.Random(seed)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self.kinds: list[str] = []
        self.trouble: dict[str, int] = {}

    def run(self) -> None:
        due = time.monotonic()
        while not self._stopping.is_set():
            self.send([self._draw() for _ in range(max(1, round(self._rate * TURN)))])
            due = max(due + TURN, time.monotonic() - 1.0)  # after a pause, catch up with one second of it
            self._stopping.wait(max(0.0, due - time.monotonic()))
        self._app.close()

    def stop(self) -> None:
        """Send no more; join it afterwards."""
        self._stopping.set()

    def send(self, makers: Sequence[tuple[str, Callable[[int], NewJob]]]) -> bool:
        """Enqueue one batch, and keep whether it was accepted. Any thread may."""
        with self._lock:
            first = len(self.kinds)
            self.kinds += [kind for kind, _ in makers]
            numbers = range(first, len(self.kinds))
        try:
            self._app.enqueue_many([make(n) for n, (_, make) in zip(numbers, makers, strict=True)])
        except SkiplockError as error:
            self._failed(numbers, error)
        except Exception as error:  # the driver's own: also an honest answer, as long as it is an error
            self._failed(numbers, error)
        else:
            self._record.accepted.append(numbers)
            return True
        return False

    def _failed(self, numbers: range, error: Exception) -> None:
        self._record.unknown.append(numbers)
        name = type(error).__name__
        self.trouble[name] = self.trouble.get(name, 0) + 1

    def _draw(self) -> tuple[str, Callable[[int], NewJob]]:
        drawn, more = self._random.random(), self._random.random()
        if drawn < 0.80:
            return "plain", lambda n: jobs.plain.job(n)
        if drawn < 0.85:
            return "plain", lambda n: jobs.plain.using(delay=more * 3).job(n)
        if drawn < 0.90:
            return "slow", lambda n: jobs.slow.using(priority=1).job(n, more)
        if drawn < 0.94:
            return "thread", lambda n: jobs.thread.job(n)
        if drawn < 0.98:
            return "flaky", lambda n: jobs.flaky.using(priority=-1).job(n)
        return "hopeless", lambda n: jobs.hopeless.job(n)
