"""A worker process makes itself known to the database."""

from __future__ import annotations

import asyncio
import os
import socket

from skiplock._version import __version__
from skiplock.core.events import Events
from skiplock.core.failure import safe_text
from skiplock.core.settings import WorkerSettings
from skiplock.store.link import Link, is_hopeless, pause
from skiplock.store.required import required_call
from skiplock.waits import sleep_unless
from skiplock.work.beat import register_call


async def register(
    link: Link, settings: WorkerSettings, schema: str, events: Events, stop: asyncio.Event, former: int
) -> int:
    """The new worker's id, or `former` if told to stop before. Tries until it succeeds; without a `former` one, an error that
    repeating cannot cure is raised: ConfigurationError or SchemaError."""
    call = register_call(
        name_of(settings), _host(), os.getpid(), dict(settings.queues), __version__, settings.lost_after, schema
    )
    failures = 0
    while not stop.is_set():
        try:
            if former == 0:
                await link.run(required_call(schema))
            return await link.run(call)
        except Exception as error:
            if former == 0 and is_hopeless(error):
                raise
            failures += 1
            wait = pause(failures)
            events.emit("beat_failed", error=error, retry_in=wait)
            await sleep_unless(stop, wait)
    return former


def name_of(settings: WorkerSettings) -> str:
    """The name that was given, or host:pid."""
    return settings.name or f"{_host()}:{os.getpid()}"


def _host() -> str:
    """This machine's name, which may hold any bytes."""
    return safe_text(socket.gethostname(), 200)
