"""Where a handler is at this moment, as text: outermost line first, without the machinery around it."""

from __future__ import annotations

import asyncio
import gc
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType
from typing import Any

FIRST, LAST = 5, 25  # lines of a deep stack that are shown
MOST = 500  # steps down a chain of coroutines
_HERE = str(Path(__file__).parent)
# These classes themselves: what asyncio puts between a coroutine and its future calls itself a generator too.
_SUSPENDED = (CoroutineType, GeneratorType, AsyncGeneratorType)
_INNER = ("cr_await", "gi_yieldfrom", "ag_await")
_FRAME = ("cr_frame", "gi_frame", "ag_frame")


def stack_of_thread(ident: int | None) -> str:
    """Of the thread with that identity. Empty if there is none."""
    frame = sys._current_frames().get(ident) if ident is not None else None
    return "" if frame is None else _text([f for f, _ in traceback.walk_stack(frame)][::-1])


def stack_of_task(task: asyncio.Task[Any] | None) -> str:
    """Of a task that waits: down to the innermost coroutine, where `Task.get_stack` shows only the outermost."""
    return "" if task is None else _text(list(_frames(task)))


def _frames(task: asyncio.Task[Any]) -> Iterator[FrameType]:
    current: Any = task
    seen: set[int] = set()
    while current is not None and id(current) not in seen and len(seen) < MOST:
        seen.add(id(current))
        frame = _first(current, _FRAME)
        if frame is not None:
            yield frame
        current = _inner(current)


def _inner(waiting: Any) -> Any:
    """What this is waiting for."""
    if isinstance(waiting, asyncio.Task):
        return waiting.get_coro()
    if isinstance(waiting, asyncio.Future):
        # Of several that are gathered, the first that is not done: they wait for one another.
        return next((child for child in getattr(waiting, "_children", ()) if not child.done()), None)
    found = _first(waiting, _INNER)
    if found is not None or isinstance(waiting, _SUSPENDED):
        return found
    # What wraps a coroutine or a future on the way (`__await__`, `asend`) keeps it to itself, but refers to it.
    inside = (*_SUSPENDED, asyncio.Future)
    return next((other for other in gc.get_referents(waiting) if isinstance(other, inside)), None)


def _first(of: Any, names: tuple[str, ...]) -> Any:
    return next((found for name in names if (found := getattr(of, name, None)) is not None), None)


def _text(frames: list[FrameType]) -> str:
    frames = _without_machinery(frames)
    lines = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames).format()
    if len(lines) > FIRST + LAST:
        lines[FIRST:-LAST] = [f"  … {len(lines) - FIRST - LAST} more\n"]
    return "".join(lines)


def _without_machinery(frames: list[FrameType]) -> list[FrameType]:
    """From the handler, or a middleware, on."""
    ours = [frame.f_code.co_filename.startswith(_HERE) for frame in frames]
    if True not in ours:
        return frames
    start = ours.index(True)
    while start < len(frames) and ours[start]:
        start += 1
    return frames[start:] or frames
