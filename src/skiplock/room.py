"""Waiting for room in a bounded queue: the same for ordinary code and for coroutines, but for how they sleep."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from skiplock.core.errors import QueueFullError
from skiplock.core.room import RoomWait

T = TypeVar("T")


def run_with_room(run: Callable[[], T], patience: RoomWait) -> T:
    """The first answer of `run` that is no QueueFullError, or that one when the time is up."""
    while True:
        began = time.monotonic()
        try:
            return run()
        except QueueFullError as error:
            time.sleep(patience.pause_after(error))
        patience.waited(time.monotonic() - began)


async def arun_with_room(run: Callable[[], Awaitable[T]], patience: RoomWait) -> T:
    """The async twin."""
    while True:
        began = time.monotonic()
        try:
            return await run()
        except QueueFullError as error:
            await asyncio.sleep(patience.pause_after(error))
        patience.waited(time.monotonic() - began)
