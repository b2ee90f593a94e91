"""The supervisor vouches for children that live and do not beat.

A heartbeat has a thread of its own, but C code that holds the interpreter silences all threads of a process, and on a machine
loaded many times over a thread may wait long for its turn, or for an answer to what it said. Other workers would take the jobs
and run them a second time. The supervisor is another process and sees the difference: the child is there, nobody has stopped
it, and the database has not heard from it for half of the time after which it counts as lost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from skiplock.core.events import Events
from skiplock.core.settings import WorkerSettings
from skiplock.member import Member
from skiplock.messenger import Messenger, Vouched


@dataclass(slots=True)
class _Silence:
    """Of one child: from its last beat until the next."""

    worker: int
    since: float
    vouched_since: float | None = None  # without a break: while the database is away we know nothing
    told: bool = False
    lost: bool = False  # it had been declared lost before we could vouch


class Vouching:
    """Asked to `look` now and then, at least six times in `lost_after`."""

    def __init__(self, messenger: Messenger, events: Events, settings: WorkerSettings) -> None:
        self._messenger, self._events = messenger, events
        self._after, self._every, self._vouch_for = settings.lost_after / 2, settings.beat_every, settings.vouch_for
        self._silences: dict[Member, _Silence] = {}
        self._next = 0.0

    def look(self, children: Sequence[Member]) -> None:
        """Vouch for those that are silent, kill those that were for too long."""
        now = time.monotonic()
        silent = [c for c in children if c.silence(now) >= self._after and not c.is_suspended()]
        self._end({child: s for child, s in self._silences.items() if not _goes_on(child, s, silent)}, now)
        for child in silent:
            self._silences.setdefault(child, _Silence(child.startmap.worker, child.startmap.heard_at))
        for answer in self._messenger.answers():
            self._hear(answer, now)
        for child, silence in self._silences.items():
            too_long = silence.vouched_since is not None and now - silence.vouched_since > self._vouch_for
            if too_long and self._stands(child, now):
                child.kill(f"it had not come round for {now - silence.since:.0f} s: something holds its interpreter")
        mine = [silence.worker for silence in self._silences.values() if not silence.lost]
        if mine and now >= self._next:
            self._next = now + self._every
            self._messenger.vouch(mine)

    def _stands(self, child: Member, now: float) -> bool:
        """Whether its heart does not come round. If it does, the child has trouble with the database only, and says so itself."""
        return now - child.startmap.turned_at >= self._after

    def _end(self, ended: dict[Member, _Silence], now: float) -> None:
        for child, silence in ended.items():
            del self._silences[child]
            if silence.told and child.code is None and child.silence(now) < self._after:
                self._events.emit("worker_heard", pid=child.pid, worker=silence.worker, silent_for=now - silence.since)

    def _hear(self, answer: Vouched, now: float) -> None:
        for child, silence in self._silences.items():
            if silence.worker not in answer.asked:
                continue
            if answer.known is None:
                silence.vouched_since = None
            elif silence.worker not in answer.known:
                silence.lost = True
            else:
                self._has_vouched(child, silence, answer.at, now)

    def _has_vouched(self, child: Member, silence: _Silence, at: float, now: float) -> None:
        child.startmap.set_vouched(at)
        if silence.vouched_since is None:
            silence.vouched_since = at
        if not silence.told and self._stands(child, now):
            silence.told = True
            jobs = child.startmap.started()
            fields = {"pid": child.pid, "worker": silence.worker, "silent_for": now - silence.since, "jobs": jobs}
            self._events.emit("worker_vouched", **fields)


def _goes_on(child: Member, silence: _Silence, silent: Sequence[Member]) -> bool:
    return child in silent and child.startmap.worker == silence.worker and child.startmap.heard_at == silence.since
