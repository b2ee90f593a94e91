"""The bell: when to rest, and how to be woken.

A worker arms the bell of its queues only when it is about to sleep; from then on an enqueue sends a NOTIFY. As long as it
stays armed, a dry claim can go to rest at once: whatever is enqueued later rings. A busy worker takes the bell down, so a
saturated system sends no NOTIFY at all. Arming and disarming are writes: each at most about once a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from skiplock.store.call import Call, nothing
from skiplock.store.link import Link
from skiplock.store.literal import text_array
from skiplock.store.schema import render

# After arming: an enqueuing transaction may have looked at the bell before, and commit after. Seconds between looks.
RECHECKS = (0.0, 0.02, 0.1, 0.5, 2.0)
BUSY_FOR = 1.0  # seconds of work without a dry claim, after which the bell is taken down
WITHOUT_BELL = 0.5  # seconds between looks while notifications do not arrive


class Sleeper:
    """Decides how a worker rests between two claims."""

    def __init__(self, link: Link, schema: str, queues: Sequence[str]) -> None:
        names = text_array(queues)
        self._arm: Call[None] = Call(render("SELECT skiplock.arm(($1::text)::text[])", schema), (names,), nothing)
        self._disarm: Call[None] = Call(render("SELECT skiplock.disarm(($1::text)::text[])", schema), (names,), nothing)
        self._link = link
        self._armed = False
        self._rechecks = 0
        self._last_dry = time.monotonic()
        self.asleep = False

    async def rest(self, woken: asyncio.Event, limit: float, *, works: bool) -> None:
        """After a dry claim: wait for `woken` (the bell, or an attempt that ended), at most `limit` seconds."""
        self._last_dry = time.monotonic()
        if not self._armed:
            await self._link.run(self._arm)
            self._armed = True
            self._rechecks = 0
        wait = limit
        if self._rechecks < len(RECHECKS):
            wait = min(limit, RECHECKS[self._rechecks])
            self._rechecks += 1
        elif not works:
            wait = min(limit, WITHOUT_BELL)
        if wait <= 0:
            return
        self.asleep = True
        try:
            async with asyncio.timeout(wait):
                await woken.wait()
        except TimeoutError:
            return
        finally:
            self.asleep = False

    async def busy(self) -> None:
        """A claim was not dry: take the bell down once that has gone on for a while."""
        if self._armed and time.monotonic() - self._last_dry > BUSY_FOR:
            self._armed = False
            await self._link.run(self._disarm)
