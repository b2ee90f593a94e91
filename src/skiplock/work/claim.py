"""Claim: one round trip for all of a worker's queues."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence

from skiplock.core.cursor import ClaimCursor
from skiplock.core.job import Job
from skiplock.store.call import Call, Row
from skiplock.store.guard import is_too_much
from skiplock.store.link import Link
from skiplock.store.literal import number_array, text_array
from skiplock.store.schema import render

# A claim does not wait for its commit to reach the disk: one that is lost in a crash of the server is only a job that is
# ready again, and its lease, which is random, fences the attempt that had begun. It saves a flush between an enqueue and
# the handler's start. (Local to this statement's transaction; settles and enqueues wait.)
_CLAIM = """SELECT id, job_lease, queue, priority, position, task, args, attempt, max_attempts, losses, enqueued_at, meta, options
FROM (SELECT set_config('synchronous_commit', 'off', true)) AS asynchronous, LATERAL skiplock.claim($1::text::bigint, $2::text::bigint, ($3::text)::text[], ($4::text)::integer[], ($5::text)::text[],
    ($6::text)::text[], ($7::text)::smallint[], ($8::text)::bigint[])"""
_SUSPECTS = """SELECT id, job_lease, queue, priority, position, task, args, attempt, max_attempts, losses, enqueued_at, meta, options
FROM skiplock.claim_suspects($1::text::bigint, $2::text::bigint, ($3::text)::text[], ($4::text)::integer[], ($5::text)::text[], $6::text::boolean)"""
_WHERE = "SELECT queue, priority, position FROM skiplock.lanes(($1::text)::text[])"
_RELEASE = "SELECT skiplock.release_claim($1::text::bigint, $2::text::bigint)"


MOST = 1 << 20  # jobs of a queue in one claim: no limit


class Claimer:
    """Claims for one worker. Remembers the cursors, and the leases of claims whose answer was lost."""

    def __init__(self, link: Link, schema: str, tasks: Sequence[str]) -> None:
        self.cursor = ClaimCursor()
        self._link = link
        self._schema = schema
        self._tasks = text_array(tasks)
        self._lost: list[tuple[int, int]] = []
        self._starts = True
        self._most = MOST

    def fitting(self, rooms: Mapping[str, int]) -> Mapping[str, int]:
        """`rooms`, or less of them after a claim was too much for the server (a statement_timeout)."""
        most = self._most
        return rooms if most == MOST else {queue: min(room, most) for queue, room in rooms.items()}

    def start_afresh(self) -> None:
        """Forget where the lines had got to: the server may be another one."""
        self.cursor.reset()
        self._starts = True

    async def claim(self, worker: int, rooms: Mapping[str, int]) -> tuple[list[Job], bool]:
        """Up to `rooms[queue]` jobs of each queue, started under one fresh lease; and whether the whole line was seen.

        A database error passes through; what that claim may have taken is given back before the next one.
        """
        await self._give_back()
        if self._starts:
            call: Call[list[Row]] = Call(render(_WHERE, self._schema), (text_array(rooms),), list)
            self.cursor.seed(((row[0], row[1], row[2]) for row in await self._link.run(call)), time.monotonic())
            self._starts = False
        now = time.monotonic()
        full = self.cursor.use_full(now)
        lanes = [] if full else [lane for lane in self.cursor.plan(now) if lane[0] in rooms]
        full = full or not lanes
        try:
            jobs = await self._run(_CLAIM, worker, rooms, _lanes(None if full else lanes))
        except Exception:
            if full:
                self.cursor.full.failed(time.monotonic() - now, time.monotonic())
            raise
        done = time.monotonic()
        self.cursor.full.spent(full, done - now, done)
        if not jobs and not full:
            self.cursor.was_dry(done)
        self.cursor.saw(((j.queue, j.priority, j.position) for j in jobs), done, whole=full)
        return jobs, full

    async def claim_suspects(self, worker: int, rooms: Mapping[str, int], *, alone: bool) -> list[Job]:
        """Jobs that were lost with a worker before: see claim.sql."""
        await self._give_back()
        return await self._run(_SUSPECTS, worker, rooms, (str(alone).lower(),))

    async def _run(self, sql: str, worker: int, rooms: Mapping[str, int], more: tuple[str | None, ...]) -> list[Job]:
        # Drawn here and not by the server, so that a claim whose answer is lost can be given back by its lease.
        lease = random.getrandbits(63)
        params = (str(worker), str(lease), text_array(rooms), number_array(list(rooms.values())), self._tasks, *more)
        try:
            jobs = await self._link.run(Call(render(sql, self._schema), params, _jobs))
        except BaseException as error:
            self._lost.append((worker, lease))
            if is_too_much(error):
                self._most = max(1, min(self._most, max(rooms.values(), default=1)) // 2)
            raise
        self._most = min(MOST, self._most * 2)
        return jobs

    async def _give_back(self) -> None:
        while self._lost:
            worker, lease = self._lost[0]
            call: Call[int] = Call(
                render(_RELEASE, self._schema), (str(worker), str(lease)), lambda rows: int(rows[0][0])
            )
            await self._link.run(call)
            self._lost.pop(0)

    async def give_back(self) -> None:
        """Give back what a claim with a lost answer may have taken. For the shutdown."""
        await self._give_back()


def _lanes(lanes: Sequence[tuple[str, int, int]] | None) -> tuple[str | None, str | None, str | None]:
    if lanes is None:
        return (None, None, None)
    return (
        text_array([lane[0] for lane in lanes]),
        number_array([lane[1] for lane in lanes]),
        # From the last position seen on. What lay before may have come back (released jobs): the claim without cursor
        # finds it.
        number_array([lane[2] for lane in lanes]),
    )


def _jobs(rows: Sequence[Row]) -> list[Job]:
    return [Job(*row) for row in rows]
