"""A call in a transaction of its own is made again when the database says that it undid it and that another try may do.

Serialization failures, deadlocks, lock timeouts, a server that has turned read-only (SQLSTATE 40001, 40P01, 55P03, 25006):
nothing has happened then, so that not even an enqueue can be done twice. Never in a transaction of the caller's: only they
know what else belongs to it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import psycopg

from skiplock.store.guard import failed, is_repeated, translate

T = TypeVar("T")
PAUSES = (0.02, 0.05, 0.1, 0.25, 0.5)  # seconds before each further try, at most; then the error is the caller's


def repeat(once: Callable[[], T]) -> T:
    """What `once` answers. Raises what the last error means in our own words, else the driver's error."""
    for longest in PAUSES:
        try:
            return once()
        except psycopg.Error as error:
            if not is_repeated(error):
                raise translate(error) or failed(error) or error from error
        time.sleep(longest * random.uniform(0.5, 1.0))
    try:
        return once()
    except psycopg.Error as error:
        raise translate(error) or failed(error) or error from error


async def arepeat(once: Callable[[], Awaitable[T]]) -> T:
    """The async twin of `repeat`."""
    for longest in PAUSES:
        try:
            return await once()
        except psycopg.Error as error:
            if not is_repeated(error):
                raise translate(error) or failed(error) or error from error
        await asyncio.sleep(longest * random.uniform(0.5, 1.0))
    try:
        return await once()
    except psycopg.Error as error:
        raise translate(error) or failed(error) or error from error
