"""Reconcile: what an asynchronous failover or a crash of the server undid although it was acknowledged, found and put right.

| undone    | seen as                                    | what happens                                                       |
|-----------|--------------------------------------------|--------------------------------------------------------------------|
| a claim   | we run it, the database says otherwise     | the attempt is broken off, as with any lost lease; the job runs again |
| a settle  | the database says we run it, and we do not | settled again, if the outcome is among the recent ones; else released |
| an enqueue | nobody can see it                         | lost: only synchronous replication protects it                      |

Asked after any of the worker's connections had to be opened again, and every half minute: behind a pooler a failover
cuts nothing that the worker could see. One statement each time, on the connection of the claims, so that no claim is in
flight meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from skiplock.core.decide import LOST
from skiplock.core.events import Events
from skiplock.core.outcome import Outcome, Verdict
from skiplock.store.call import Call, Row
from skiplock.store.link import Link
from skiplock.store.literal import number_array
from skiplock.store.schema import render
from skiplock.work.lines import Lines
from skiplock.work.run import Runner
from skiplock.work.settle import Settler

EVERY = 30.0  # seconds
SHARE = 0.01  # of the time, at most: while someone's old snapshot is held, the statement walks over dead rows
Pair = tuple[int, int]  # (job id, lease)
_RECONCILE = """SELECT timeline, job_id, job_lease, held
FROM skiplock.reconcile($1::text::bigint, ($2::text)::bigint[], ($3::text)::bigint[])"""


@dataclass(frozen=True, slots=True)
class Difference:
    """`unheld`: we have them, the database does not; `unknown`: the other way round."""

    timeline: str | None
    unheld: list[Pair]
    unknown: list[Pair]


def reconcile_call(worker: int, held: Sequence[Pair], schema: str) -> Call[Difference]:
    """See reconcile.sql."""
    params = (str(worker), number_array([pair[0] for pair in held]), number_array([pair[1] for pair in held]))
    return Call(render(_RECONCILE, schema), params, _difference)


def _difference(rows: Sequence[Row]) -> Difference:
    pairs = [(row[1], row[2], row[3]) for row in rows[1:]]
    return Difference(
        rows[0][0],
        [(i, lease) for i, lease, held in pairs if held],
        [(i, lease) for i, lease, held in pairs if not held],
    )


class Reconciler:
    """For one worker. `reopened()` counts how often one of its connections had to be opened again."""

    def __init__(
        self,
        link: Link,
        schema: str,
        lines: Lines,
        runner: Runner,
        settler: Settler,
        events: Events,
        reopened: Callable[[], int],
    ) -> None:
        self._link, self._schema = link, schema
        self._lines, self._runner, self._settler, self._events = lines, runner, settler, events
        self._reopened = reopened
        self._seen = reopened()
        self._timeline: str | None = None
        self._next_at = time.monotonic() + EVERY

    def is_due(self, now: float) -> bool:
        """Whether there is cause to ask, or it is time to."""
        return self._reopened() != self._seen or now >= self._next_at

    async def run(self, worker: int, still: Callable[[], bool]) -> bool:
        """Ask, and put right what differs, unless the worker is not `still` the same then.

        Answers whether this may be another server than before: then places in line mean nothing any more. Database errors
        pass through; it is due again then.
        """
        seen, began = self._reopened(), time.monotonic()
        held = self._held()
        found = await self._link.run(reconcile_call(worker, held, self._schema))
        done = time.monotonic()
        other = seen != self._seen or (self._timeline is not None and found.timeline != self._timeline)
        self._seen, self._timeline = seen, found.timeline
        self._next_at = done + max(EVERY, (done - began) / SHARE)
        if still():
            self._put_right(found)
        return other

    def _held(self) -> list[Pair]:
        held = [pair for pair, entry in self._runner.running.items() if not entry.settled]
        held += [(job.id, job.lease) for line in self._lines.by_name.values() for job in line.buffer]
        return held + self._settler.unsettled()

    def _put_right(self, found: Difference) -> None:
        gone = self._drop_buffered(set(found.unheld))
        for pair in found.unheld:
            entry = self._runner.running.get(pair)
            # One that completes its job in a transaction of its own has moved it itself.
            if entry is not None and not entry.settled and not (entry.context and entry.context.completing):
                self._runner.interrupt(entry, LOST)
                gone += 1
        recent = self._settler.recent(set(found.unknown))
        for pair in found.unknown:
            self._settler.add(recent.get(pair) or Outcome(*pair, Verdict.RELEASE))
        if gone or found.unknown:
            released = len(found.unknown) - len(recent)
            self._events.emit("reconciled", lost=gone, settled_again=len(recent), released=released)

    def _drop_buffered(self, gone: set[Pair]) -> int:
        dropped = 0
        for line in self._lines.by_name.values():
            for job in [job for job in line.buffer if (job.id, job.lease) in gone]:
                line.buffer.remove(job)
                dropped += 1
        return dropped
