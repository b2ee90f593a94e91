"""An exception as text that can always be stored: bounded, printable, free of what PostgreSQL refuses.

An exception is foreign code: its `__str__` may raise, its message may hold 10 MB or a NUL, its chain may be a circle.
Whatever it does, `describe` answers, and the work it does is bounded (why `traceback.format_exception` is not used:
it builds every member of a group and of a chain before it cuts any).
"""

from __future__ import annotations

import os
import traceback
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from skiplock.core.outcome import Failure

MAX_FRAMES = 60  # frames shown of one traceback: half from its start, half from its end
MAX_CHAIN = 12  # exceptions shown of one chain of causes
MAX_GROUP = 8  # members shown of one exception group
MAX_GROUP_DEPTH = 4
MAX_BLOCKS = 2000  # lines and frames of all together: groups of groups of groups multiply
_HUGE = 1_000_000  # characters; longer text is shortened before any other work is done on it

_PACKAGE = f"{Path(__file__).parent.parent}{os.sep}"
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n"
_CONTEXT = "\nDuring handling of the above exception, another exception occurred:\n"

Place = tuple[FrameType, int]  # a frame and the line it was at


def describe(error: BaseException, *, message_limit: int = 4000, traceback_limit: int = 32000) -> Failure:
    """The error as a Failure. Limits are characters. Never raises, whatever the exception does."""
    try:
        full = "\n".join(islice(_chain(error, 0), MAX_BLOCKS))
    except BaseException as trouble:  # rather a failure without traceback than a job that cannot be settled
        full = f"<traceback unavailable: {type(trouble).__name__}>"
    return Failure(
        error_class=safe_text(_class_name(error), 300),
        message=safe_text(_message(error), message_limit),
        traceback=safe_text(full, traceback_limit),
    )


def safe_text(text: object, limit: int) -> str:
    """`str(text)` in at most `limit` characters; NUL and lone surrogates written as escapes. Never raises.

    What is too long keeps its head and its tail, with a line between them that says how much is missing.
    """
    whole = text if type(text) is str else _message(text)
    dropped = 0
    if len(whole) > _HUGE:
        dropped = len(whole) - _HUGE
        cut_at = _HUGE // 2
        whole, tail = _escaped(whole[:cut_at]), _escaped(whole[-cut_at:])
        whole += tail
    else:
        whole = _escaped(whole)
    if dropped == 0 and len(whole) <= limit:
        return whole
    room = limit - len(_mark(len(whole) + dropped))
    if room < 2:
        return whole[: max(limit, 0)]
    head = room // 2
    tail_length = room - head
    missing = len(whole) - room + dropped
    return whole[:head] + _mark(missing) + whole[len(whole) - tail_length :]


def _mark(missing: int) -> str:
    return f"\n… {missing:,} characters cut …\n"


def _escaped(text: str) -> str:
    if "\0" in text:
        text = text.replace("\0", "\\x00")
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _message(error: object) -> str:
    try:
        return str.__str__(str(error))  # a subclass of str comes back as plain str
    except BaseException as trouble:
        return f"<no message: str() of {_class_name(error)} raised {_class_name(trouble)}>"


def _class_name(error: object) -> str:
    cls = type(error)  # not `error.__class__`, which may lie
    try:
        name, module = cls.__qualname__, cls.__module__
        return name if module == "builtins" else f"{module}.{name}"
    except BaseException:
        return type.__dict__["__name__"].__get__(cls) or "Exception"


def _real(error: BaseException, name: str) -> Any:
    """What the interpreter itself set: read past any property of that name in a subclass."""
    return BaseException.__dict__[name].__get__(error)


# --- traceback -------------------------------------------------------------------------------------------------------


def _chain(error: BaseException, depth: int) -> Iterator[str]:
    """The lines of an error after those of its causes, oldest first, as Python prints them."""
    links: list[tuple[BaseException, str]] = []
    seen: set[int] = set()
    current: BaseException | None = error
    link = ""
    while current is not None and id(current) not in seen and len(links) < MAX_CHAIN:
        links.append((current, link))
        seen.add(id(current))
        current, link = _before(current)
    if current is not None:
        yield "… older causes are not shown …\n"
    for member, after in reversed(links):
        yield from _one(member, depth)
        if after:
            yield after


def _before(error: BaseException) -> tuple[BaseException | None, str]:
    cause = _real(error, "__cause__")
    if cause is not None:
        return cause, _CAUSE
    return (None if _real(error, "__suppress_context__") else _real(error, "__context__")), _CONTEXT


def _one(error: BaseException, depth: int) -> Iterator[str]:
    places, skipped = _places(_real(error, "__traceback__"))
    if places:
        yield "Traceback (most recent call last):"
        half = len(places) // 2 if skipped else len(places)
        yield from _frames(places[:half])
        if skipped:
            yield f"  … {skipped:,} frames not shown …"
            yield from _frames(places[half:])
    message = safe_text(error, 4000)
    yield f"{safe_text(_class_name(error), 300)}: {message}" if message else safe_text(_class_name(error), 300)
    yield from _notes(error)
    if issubclass(type(error), BaseExceptionGroup):  # `isinstance` asks the error for its class, which may lie or raise
        yield from _members(error, depth)


def _places(tb: TracebackType | None) -> tuple[list[Place], int]:
    """The places of a traceback, without skiplock's own at the top; at most `MAX_FRAMES`, and how many were left out."""
    first = tb
    while tb is not None and tb.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        tb = tb.tb_next
    tb = tb or first  # all of them are ours: then they are what there is to see
    head: list[Place] = []
    tail: deque[Place] = deque(maxlen=MAX_FRAMES // 2)
    count = 0
    while tb is not None:
        (head if count < MAX_FRAMES // 2 else tail).append((tb.tb_frame, tb.tb_lineno))
        count, tb = count + 1, tb.tb_next
    return [*head, *tail], count - len(head) - len(tail)


def _frames(places: list[Place]) -> Iterator[str]:
    for text in traceback.StackSummary.extract(iter(places)).format():
        yield text.rstrip("\n")


def _notes(error: BaseException) -> Iterator[str]:
    try:
        notes = vars(error).get("__notes__")
    except BaseException:
        return
    if isinstance(notes, list):
        for note in list.__getitem__(notes, slice(10)):  # past what a subclass makes of it
            yield safe_text(note, 1000)


def _members(group: BaseException, depth: int) -> Iterator[str]:
    members: tuple[BaseException, ...] = BaseExceptionGroup.__dict__["exceptions"].__get__(group)
    if depth >= MAX_GROUP_DEPTH:
        yield f"  … {len(members):,} exceptions inside, not shown …"
        return
    for number, member in enumerate(members[:MAX_GROUP], 1):
        yield f"  +---------------- {number} of {len(members):,} ----------------"
        for block in _chain(member, depth + 1):
            for line in block.split("\n"):
                yield f"  | {line}"
    if len(members) > MAX_GROUP:
        yield f"  … {len(members) - MAX_GROUP:,} more exceptions …"
