"""How deep JSON is nested, found out before anything that recurses looks at it.

A decoder that meets a bracket calls itself, and what ends it is not Python's recursion limit but the thread's stack: one of
256 KiB is used up by 600 nested objects, and then the whole process is gone. Nobody means to nest deeper than `MAX_DEPTH`.
"""

from __future__ import annotations

import re
from array import array
from itertools import accumulate
from typing import Any

import msgspec

# Levels of containers. msgspec and Python both stop near 1,000, PostgreSQL's parser at its stack limit (several thousand).
MAX_DEPTH = 200
DEEP_REASON = f"is nested deeper than {MAX_DEPTH} levels"

SHALLOW = 2 * MAX_DEPTH  # bytes: JSON that is no longer has no room for more levels, so nobody needs to ask
_PASSES = 8  # enough for nearly all JSON that people write
_CHUNK = 1_000_000  # brackets looked at before other threads get their turn
_NO_STRUCTURE = bytes(set(range(256)) - set(b'[]{}"'))
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_STEPS = bytes.maketrans(b"[]", b"\x01\xff")  # as signed bytes: one level down, one level up
_TEXT = re.compile(rb'"[^"]*"')


class TooDeepError(ValueError):
    """JSON nested deeper than `MAX_DEPTH`."""

    def __init__(self) -> None:
        super().__init__(DEEP_REASON)


def too_deep(raw: str | bytes) -> bool:
    """Whether this JSON is nested deeper than `MAX_DEPTH`: exactly, in one go through it, without recursion.

    What is no JSON gets some answer, and no more than the levels counted in it.
    """
    if len(raw) <= SHALLOW:
        return False
    if isinstance(raw, str):
        if raw.count("[") + raw.count("{") <= MAX_DEPTH:
            return False
        raw = raw.encode("utf-8", "surrogatepass")
    elif raw.count(b"[") + raw.count(b"{") <= MAX_DEPTH:
        return False
    return _depth(_brackets(raw)) > MAX_DEPTH


def _brackets(raw: bytes) -> bytes:
    """The brackets outside of strings, as of one kind."""
    # Without escapes a quotation mark opens or ends a string; of the strings only the brackets in them are left, and most
    # have none.
    bare = raw.replace(b"\\\\", b"").replace(b'\\"', b"").translate(_ONE_KIND, _NO_STRUCTURE).replace(b'""', b"")
    return _TEXT.sub(b"", bare) if b'"' in bare else bare


def _depth(brackets: bytes) -> int:
    for taken in range(_PASSES):
        if not brackets:
            return taken
        brackets = brackets.replace(b"[]", b"")  # the innermost: every level that is left counts one less
    level = deepest = 0
    for start in range(0, len(brackets), _CHUNK):
        steps = array("b", brackets[start : start + _CHUNK].translate(_STEPS))
        levels = list(accumulate(steps, initial=level))
        level, deepest = levels[-1], max(deepest, max(levels))
    return _PASSES + deepest


def decode_json(raw: str | bytes) -> Any:
    """Any JSON as plain values. Raises TooDeepError, and msgspec.DecodeError (a ValueError too) for what is none."""
    if too_deep(raw):
        raise TooDeepError
    return msgspec.json.decode(raw)
