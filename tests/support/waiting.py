"""Waiting for a condition instead of sleeping for a guess."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], *, seconds: float = 20.0, pause: float = 0.02) -> T:
    """The first true value `condition` gives, or a failure that shows its last one."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise AssertionError(f"still {value!r} after {seconds} s")
        time.sleep(pause)
    return value
