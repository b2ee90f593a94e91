"""Settle: outcomes go to the database in natural batches, and are kept until it has taken them.

The first outcome goes out at once; what ends while that statement is in flight goes with the next. A batch whose fate a
cut connection left open is sent again: settle.sql is idempotent under its lease.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import msgspec

from skiplock.core.events import Events
from skiplock.core.outcome import Failure, Outcome, Verdict
from skiplock.store.call import Call, Row
from skiplock.store.guard import Meaning, is_too_much, meaning
from skiplock.store.link import Link, pause
from skiplock.store.literal import number_array, text_array
from skiplock.store.schema import render
from skiplock.work.startmap import StartMap

MAX_BATCH = 2000
MAX_BYTES = 8_000_000  # of results and failures in one statement
# Outcomes that were settled and are remembered, should a failover undo that (see reconcile.py): what a standby may lag behind.
RECENT = 20_000
RECENT_BYTES = 16_000_000
RECENT_FOR = 60.0  # seconds
_SETTLE = """SELECT refused_id, refused_lease FROM skiplock.settle(
    ($1::text)::bigint[], ($2::text)::bigint[], ($3::text)::real[], ($4::text)::json[], $5::text::json)"""


class _Settled(NamedTuple):
    at: float  # monotonic seconds
    outcomes: list[Outcome]
    size: int


class Settler:
    """Collects outcomes and settles them. `add` is called by the runner, on the loop."""

    def __init__(self, link: Link, schema: str, events: Events, startmap: StartMap | None = None) -> None:
        self._link = link
        self._startmap = startmap
        self._sql = render(_SETTLE, schema)
        self._events = events
        self._open: list[Outcome] = []
        self._slots: list[int] = []  # of the start map, one an outcome
        self._recent: deque[_Settled] = deque()
        self._recent_count = self._recent_bytes = 0
        self._most = MAX_BATCH  # outcomes in one statement; less for a while after one was too much for the server
        self._wake = asyncio.Event()
        self._again = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, outcome: Outcome, slot: int = -1) -> None:
        """Keep this outcome until it is settled, and its slot of the start map: a job whose handler has ended and whose
        outcome is lost with the process has had its effect, and must count as started."""
        self._open.append(outcome)
        self._slots.append(slot)
        self._wake.set()
        self._idle.clear()

    @property
    def pending(self) -> int:
        """Outcomes not yet settled."""
        return len(self._open)

    def unsettled(self) -> list[tuple[int, int]]:
        """(job id, lease) of the outcomes that the database has not acknowledged."""
        return [(outcome.id, outcome.lease) for outcome in self._open]

    def recent(self, pairs: Collection[tuple[int, int]]) -> dict[tuple[int, int], Outcome]:
        """Those of these (job id, lease) pairs that were settled a moment ago, with how."""
        if not pairs:
            return {}
        settled = [outcome for batch in self._recent for outcome in batch.outcomes]
        return {pair: outcome for outcome in settled if (pair := (outcome.id, outcome.lease)) in pairs}

    async def flushed(self) -> None:
        """Wait until everything added so far is settled."""
        await self._idle.wait()

    async def run(self) -> None:
        """The loop; ends when cancelled."""
        failures = 0
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._open:
                batch, size = _head(self._open, self._most)
                try:
                    refused = await self._link.run(settle_call(batch, self._sql))
                except Exception as error:  # whatever it is, the outcomes are kept
                    failures += 1
                    wait = pause(failures)
                    self._events.emit("settle_failed", error=error, retry_in=wait)
                    if is_too_much(error):
                        self._most = max(1, len(batch) // 2)
                    if meaning(error) in (Meaning.BUG, Meaning.OURS):
                        await self._one_by_one(batch)
                    await self._rest(wait)
                    continue
                failures = 0
                self._most = min(MAX_BATCH, self._most + 1 + self._most // 8)
                self._remember(batch, size)
                self._settled(len(batch))
                if self._events.wants("settled"):
                    self._events.emit("settled", jobs=len(batch))
                if refused:
                    self._events.emit("settle_refused", jobs=[job_id for job_id, _ in refused])
            self._idle.set()

    def again(self) -> None:
        """The database is there after all: do not wait any longer for the next try."""
        self._again.set()

    async def _rest(self, seconds: float) -> None:
        self._again.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._again.wait()
        except TimeoutError:
            return

    async def _one_by_one(self, batch: list[Outcome]) -> None:
        """The server refused a batch for what is in it: settle the others, and the culprit with a plain text instead.

        Stops at the first that fails both ways; what is left is tried again after a pause.
        """
        for outcome in batch:
            try:
                await self._link.run(settle_call([outcome], self._sql))
            except Exception as error:
                if meaning(error) is not Meaning.BUG:
                    return
                try:
                    await self._link.run(settle_call([_last_resort(outcome)], self._sql))
                except Exception as again:
                    self._events.emit("settle_failed", error=again, retry_in=pause(1))
                    return
            self._settled(1)

    def _remember(self, batch: list[Outcome], size: int) -> None:
        recent, now = self._recent, time.monotonic()
        recent.append(_Settled(now, batch, size))
        self._recent_count += len(batch)
        self._recent_bytes += size
        while len(recent) > 1 and (
            self._recent_count > RECENT or self._recent_bytes > RECENT_BYTES or recent[0].at < now - RECENT_FOR
        ):
            oldest = recent.popleft()
            self._recent_count -= len(oldest.outcomes)
            self._recent_bytes -= oldest.size

    def _settled(self, count: int) -> None:
        if self._startmap is not None:
            for slot in self._slots[:count]:
                self._startmap.end(slot)
        del self._open[:count], self._slots[:count]


def _last_resort(outcome: Outcome) -> Outcome:
    failure = Failure(
        "SettleRefused", f"the database refused to store what this attempt ended with ({outcome.verdict})"
    )
    return Outcome(outcome.id, outcome.lease, Verdict.DEAD, outcome.took, failure=failure)


def _head(outcomes: list[Outcome], most: int) -> tuple[list[Outcome], int]:
    """The first so many, in number and in bytes; and how many bytes of results and failures those are, about."""
    size = before = 0
    for n, outcome in enumerate(outcomes[:most]):
        if outcome.result is not None:
            size += len(outcome.result)
        if outcome.failure is not None:
            size += len(outcome.failure.message) + len(outcome.failure.traceback or "")
        if size > MAX_BYTES and n:
            return outcomes[:n], before
        before = size
    return outcomes[:most], size


def settle_call(outcomes: Sequence[Outcome], sql: str) -> Call[list[tuple[int, int]]]:
    """One statement for all of these. Answers the (id, lease) pairs that were refused."""
    completed = sorted([o for o in outcomes if o.verdict == Verdict.COMPLETED], key=_by_id)
    others = sorted([o for o in outcomes if o.verdict != Verdict.COMPLETED], key=_by_id)
    params = (
        number_array([o.id for o in completed]),
        number_array([o.lease for o in completed]),
        number_array([round(o.took, 6) for o in completed]),
        text_array([o.result for o in completed]) if any([o.result is not None for o in completed]) else None,
        msgspec.json.encode([_plain(o) for o in others]).decode() if others else None,
    )
    return Call(sql, params, _pairs)


def _by_id(outcome: Outcome) -> int:
    return outcome.id


def _plain(outcome: Outcome) -> dict[str, Any]:
    return {
        "id": outcome.id,
        "lease": outcome.lease,
        "verdict": outcome.verdict,
        "took": outcome.took,
        "delay": outcome.delay,
        "failure": outcome.failure,
    }


def _pairs(rows: Sequence[Row]) -> list[tuple[int, int]]:
    return [(row[0], row[1]) for row in rows]
