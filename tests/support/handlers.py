"""Handlers' bodies and resources that tests of the worker share."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from skiplock import JobRecord

Log = list[str]
both_kinds = pytest.mark.parametrize("kind", ["async", "def"])


class Hold:
    """A handler's body that a test lets go: for a thread or the loop."""

    def __init__(self) -> None:
        self.began, self.free = threading.Event(), threading.Event()

    def in_thread(self) -> None:
        self.began.set()
        assert self.free.wait(60)

    async def on_loop(self) -> None:
        self.began.set()
        while not self.free.is_set():
            await asyncio.sleep(0.005)


def wait_of(record: JobRecord) -> float:
    """Seconds between the end of its latest attempt and when it is due."""
    assert record.run_at is not None
    return (record.run_at - record.attempts[-1].ended_at).total_seconds()


def sync_resource(log: Log, name: str = "sync") -> Callable[[], Iterator[str]]:
    def resource() -> Iterator[str]:
        log.append(f"open {name}")
        try:
            yield name
        except BaseException as error:
            log.append(f"{name} told of {type(error).__name__}")
            raise
        finally:
            log.append(f"close {name}")

    return resource


def async_resource(log: Log, name: str = "async") -> Callable[[], AsyncIterator[str]]:
    async def resource() -> AsyncIterator[str]:
        await asyncio.sleep(0)
        log.append(f"open {name}")
        try:
            yield name
        except BaseException as error:
            log.append(f"{name} told of {type(error).__name__}")
            raise
        finally:
            await asyncio.sleep(0)
            log.append(f"close {name}")

    return resource
