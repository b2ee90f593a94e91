"""Waiting for one thing or another."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


async def either(*waits: Any) -> None:
    """Until the first of these is done; the others are cancelled."""
    tasks = [asyncio.ensure_future(w) for w in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def unless(stop: asyncio.Event, work: Coroutine[Any, Any, None], patience: float) -> None:
    """Do this work, which ends by itself once `stop` is set. If it does not within `patience` seconds, cancel it."""
    working, stopped = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([working, stopped], return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            await asyncio.wait([working], timeout=patience)
    finally:
        stopped.cancel()
        working.cancel()
    await asyncio.wait([working])
    if not working.cancelled():
        working.result()


async def sleep_unless(stop: asyncio.Event, seconds: float) -> None:
    """Sleep, but not beyond the moment when `stop` is set."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return


class Budget:
    """So many seconds for several steps together; each gets what the earlier ones left, and a little if they left nothing."""

    def __init__(self, seconds: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._until = self._loop.time() + seconds

    @property
    def left(self) -> float:
        return max(0.2, self._until - self._loop.time())
