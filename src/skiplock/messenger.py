"""What the supervisor tells the database of its children, from a thread of its own: the supervisor never waits for a server.

A dead child's jobs are given back (rescue.sql), and for a child that lives but does not beat the supervisor vouches
(vouch.sql). The thread and its connection exist only while there is something to tell.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from skiplock.core.events import Events
from skiplock.store.call import Call
from skiplock.store.exchange import Exchange
from skiplock.store.pool import connect, run_call
from skiplock.upkeep.rescue import report_lost_call
from skiplock.upkeep.vouch import vouch_call

T = TypeVar("T")
REPORT_EVERY = 0.5  # seconds between the first tries to report a dead child while the database is away
LONGEST_PAUSE = 3.0  # seconds between later ones
REPORT_FOR = 60.0  # seconds; by then the others have found out by themselves
ANSWER_IN = 5.0  # seconds that the server may take for one answer
KEEP_FOR = 15.0  # seconds that an unused connection is kept


@dataclass(slots=True)
class Lost:
    """A dead child the database has not heard of yet."""

    worker: int
    started: list[int]
    reason: str
    pid: int
    failures: int = 0
    next_try: float = 0.0
    give_up: float = field(default_factory=lambda: time.monotonic() + REPORT_FOR)


@dataclass(frozen=True, slots=True)
class Vouched:
    """What came of vouching for `asked` at a (monotonic) moment. `known`: those still registered, None: no answer."""

    asked: tuple[int, ...]
    known: frozenset[int] | None
    at: float


class Messenger:
    """`on_news` is called from the thread when something has been answered or given up."""

    def __init__(self, dsn: str, schema: str, events: Events, on_news: Callable[[], None]) -> None:
        self._dsn, self._schema, self._events, self._on_news = dsn, schema, events, on_news
        self._changed = threading.Condition()
        self._reports: list[Lost] = []
        self._to_vouch: tuple[int, ...] = ()
        self._answers: list[Vouched] = []
        self._thread: threading.Thread | None = None
        self._exchange: Exchange | None = None

    # -- for the supervisor --------------------------------------------------------------------------------------------

    def report(self, lost: Lost) -> None:
        """Give its jobs back as soon as the database can be reached, within REPORT_FOR."""
        with self._changed:
            self._reports.append(lost)
            self._wake()

    def vouch(self, workers: Sequence[int]) -> None:
        """Beat for these, once. What came of it is among the next `answers`."""
        with self._changed:
            self._to_vouch = tuple(workers)
            self._wake()

    def answers(self) -> list[Vouched]:
        """What came of vouching since the last call."""
        with self._changed:
            found, self._answers = self._answers, []
        return found

    @property
    def pending(self) -> bool:
        """Whether a dead child is still to be reported."""
        return bool(self._reports)

    def _wake(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="skiplock-messenger", daemon=True)
            self._thread.start()
        self._changed.notify()

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._changed:
                until = min([r.next_try for r in self._reports], default=time.monotonic() + KEEP_FOR)
                if not self._to_vouch:
                    self._changed.wait(max(0.0, until - time.monotonic()))
                workers, self._to_vouch = self._to_vouch, ()
                now = time.monotonic()
                due = [report for report in self._reports if now >= report.next_try]
                if not workers and not self._reports:
                    if now >= until:
                        self._drop()
                        self._thread = None  # nothing for a while; whatever comes next starts another
                        return
                    continue
            if workers:
                self._vouch(workers)
            for report in due:
                self._tell(report)

    def _vouch(self, workers: tuple[int, ...]) -> None:
        at = time.monotonic()
        try:
            found = self._ask(vouch_call(workers, self._schema))
        except Exception:  # the database is away, and whoever works with it says so
            answer = Vouched(workers, None, at)
        else:
            answer = Vouched(workers, frozenset(found), at)
        with self._changed:
            self._answers.append(answer)
        self._on_news()

    def _tell(self, report: Lost) -> None:
        try:
            jobs = self._ask(report_lost_call(report.worker, report.started, report.reason, self._schema))
        except Exception as error:  # the database may be away
            report.failures += 1
            wait = min(LONGEST_PAUSE, REPORT_EVERY * 1.5 ** min(report.failures - 1, 10))
            report.next_try = time.monotonic() + wait
            self._events.emit("beat_failed", error=error, retry_in=wait)
            if report.next_try > report.give_up:
                self._forget(report)
            return
        started = len(report.started)
        self._events.emit("child_rescued", pid=report.pid, worker=report.worker, jobs=jobs, started=started)
        self._forget(report)

    def _forget(self, report: Lost) -> None:
        with self._changed:
            self._reports.remove(report)
        self._on_news()

    def _ask(self, call: Call[T]) -> T:
        try:
            if self._exchange is None:
                name = "skiplock supervisor"
                self._exchange = Exchange(connect(self._dsn, connect_timeout=3, application_name=name))
            return run_call(self._exchange, call, limit=ANSWER_IN)
        except BaseException:
            self._drop()
            raise

    def _drop(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.close()
