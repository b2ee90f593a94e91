"""Vigil: what the heart's thread sees to at each of its turns, whatever the database does.

It tells the supervisor that this process runs, and looks whether the event loop goes round: a handler that blocks it stops all
others and even their timeouts, and only another thread can still say which one it is.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Collection

from skiplock.core.events import Events
from skiplock.work.run import Running
from skiplock.work.stacks import stack_of_thread
from skiplock.work.startmap import StartMap

BLOCKED_AFTER = 5.0  # seconds


class Vigil:
    """Made on the loop that it watches. `running` answers the attempts in progress."""

    def __init__(self, events: Events, running: Callable[[], Collection[Running]], startmap: StartMap | None) -> None:
        self._events, self._running, self._startmap = events, running, startmap
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._ticked = self._turned = time.monotonic()
        self._blocked_since: float | None = None

    def tick(self) -> None:
        """The loop goes round: to be called on it every second or so."""
        now = time.monotonic()
        if self._blocked_since is not None:
            self._events.emit("loop_unblocked", seconds=now - self._blocked_since)
            self._blocked_since = None
        self._ticked = now

    def turn(self) -> None:
        """The heart has come round. Called from its thread."""
        if self._startmap is not None:
            self._startmap.stamp_turn()
        now, before, ticked = time.monotonic(), self._turned, self._ticked
        self._turned = now
        if now - ticked < BLOCKED_AFTER or self._blocked_since is not None:
            return
        if now - before >= BLOCKED_AFTER:
            return  # the whole process stood still, this thread too: the loop shall have its turn first
        self._blocked_since = ticked
        current = asyncio.current_task(self._loop)
        entry = next((entry for entry in list(self._running()) if entry.aio is current), None) if current else None
        job, task = (entry.job, entry.job.task) if entry else (None, None)
        stack = stack_of_thread(self._thread)
        self._events.emit("loop_blocked", job=job, task=task, seconds=now - ticked, stack=stack)
