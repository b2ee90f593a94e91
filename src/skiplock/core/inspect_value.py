"""Looks at values on their way into JSON: what cannot be stored, and what came back changed.

Two walks. `find_fault` looks at one value; `compare` looks at a value and at what its JSON decoded to. Both raise
`Refusal`, which knows the path. They run only where the fast path of `skiplock.core.codec` cannot vouch for a value.
"""

from __future__ import annotations

import dataclasses
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import msgspec

from skiplock.core.depth import DEEP_REASON, MAX_DEPTH
from skiplock.core.failure import safe_text

# Same type and equal means the same value. Everything else has a rule of its own below.
_PLAIN = frozenset({str, int, bool, type(None), bytes, bytearray, date, timedelta, UUID})
_SURROGATE = re.compile("[\ud800-\udfff]")
_NUL_REASON = "holds a NUL character, which PostgreSQL cannot store in text"
_SURROGATE_REASON = (
    "holds a lone surrogate (a byte that was not valid UTF-8), which is no text; decode it or send bytes"
)
_NAIVE_REASON = "is a datetime without a time zone; use an aware one, say datetime.now(UTC)"


class Refusal(Exception):
    """A value that cannot be stored. `reason` continues a sentence that names the value; `path` looks like ``$.a[3]``.

    `advice` says how to declare a parameter that takes the value, if one could.
    """

    def __init__(self, reason: str, path: str = "$", advice: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.advice = advice
        self._steps: list[str] = [path.removeprefix("$")]

    def within(self, step: str) -> Refusal:
        """The same refusal seen from one level further out."""
        self._steps.append(step)
        return self

    @property
    def path(self) -> str:
        path = "$" + "".join(reversed(self._steps))
        return path if len(path) <= 200 else f"{path[:100]}…{path[-99:]}"


# --- how values and places are shown to people -----------------------------------------------------------------------

_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 60


def shown(value: Any) -> str:
    """A short `repr` for an error message: bounded work, printable, never raises for an odd `__repr__`."""
    try:
        text = _short.repr(value)
    except Exception:
        text = f"<{kind_of(value)} that cannot be shown>"
    return text[:200].encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def kind_of(value: Any) -> str:
    """The name of its class: as it is known to the interpreter, whatever a metaclass makes of it."""
    return safe_text(type.__dict__["__qualname__"].__get__(type(value)), 100)


def step(key: Any) -> str:
    """One step of a path: ``.name`` for keys that are plain words, ``["any other"]`` for the rest."""
    if isinstance(key, str) and key.isascii() and key.isidentifier():
        return f".{key}" if len(key) <= 100 else f".{key[:100]}…"
    return f"[{shown(key)}]"


# --- structured values -----------------------------------------------------------------------------------------------


def fields_of(value: Any) -> list[tuple[str, Any]] | None:
    """`(name, value)` of each field of a Struct, dataclass, attrs object or pydantic model; None for anything else."""
    kind = type(value)
    if isinstance(value, msgspec.Struct):
        names: Iterable[str] = kind.__struct_fields__
    elif dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
    elif hasattr(kind, "model_validate_json"):
        return [*vars(value).items(), *(getattr(value, "__pydantic_extra__", None) or {}).items()]
    elif hasattr(kind, "__attrs_attrs__"):
        names = [attribute.name for attribute in kind.__attrs_attrs__]
    else:
        return None
    pairs = [(name, getattr(value, name, None)) for name in names]
    return [pair for pair in pairs if pair[1] is not msgspec.UNSET]  # left out of the JSON


def _children(value: Any) -> Iterator[tuple[str, Any]] | None:
    """`(step, child)` of each value inside a container, or None if this is no container."""
    if isinstance(value, dict):
        return ((step(key), child) for key, child in value.items())
    if isinstance(value, list | tuple):
        return ((f"[{index}]", child) for index, child in enumerate(value))
    if isinstance(value, set | frozenset):
        return (("[*]", child) for child in value)
    fields = fields_of(value)
    return None if fields is None else ((f".{name}", child) for name, child in fields)


# --- one value -------------------------------------------------------------------------------------------------------


def find_fault(value: Any, encode: Callable[[Any], bytes]) -> None:
    """Raises Refusal at the first thing inside `value` that JSON in PostgreSQL cannot hold; else returns.

    `encode` is tried on what has no parts, so that a type nobody can encode is named where it sits.
    """
    _find_fault(value, encode, 0, set())


def _find_fault(value: Any, encode: Callable[[Any], bytes], depth: int, above: set[int]) -> None:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        _check_text(value)
        return
    _check_number(value)
    children = _children(value)
    if children is None:
        _try_encode(value, encode)
        return
    if id(value) in above:
        raise Refusal("refers to itself")
    if depth >= MAX_DEPTH:
        raise Refusal(DEEP_REASON)
    if isinstance(value, dict):
        _check_keys(value, encode)
    above.add(id(value))
    for name, child in children:
        try:
            _find_fault(child, encode, depth + 1, above)
        except Refusal as refusal:
            raise refusal.within(name) from None
    above.discard(id(value))


def _check_text(text: str) -> None:
    if "\0" in text:
        raise Refusal(_NUL_REASON)
    if not text.isascii() and _SURROGATE.search(text):
        raise Refusal(_SURROGATE_REASON)


def _check_number(value: Any) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise Refusal(f"is {float.__repr__(value)}, which JSON cannot hold; use None or text")
    if isinstance(value, Decimal) and not value.is_finite():
        raise Refusal(f"is {Decimal.__str__(value)}, which JSON cannot hold; use None or text")


def _check_keys(value: dict[Any, Any], encode: Callable[[Any], bytes]) -> None:
    for key in value:
        try:
            if isinstance(key, str):
                _check_text(key)
            else:
                _check_number(key)
                _try_encode(key, lambda key: encode({key: 0}))
        except Refusal as refusal:
            raise Refusal(f"has a key that {refusal.reason}", step(key)) from None


def _try_encode(value: Any, encode: Callable[[Any], bytes]) -> None:
    try:
        encode(value)
    except (TypeError, NotImplementedError):
        raise Refusal(f"is of type {kind_of(value)}, which cannot be stored as JSON") from None
    except Exception as error:
        raise Refusal(f"cannot be stored as JSON: {safe_text(error, 300)}") from error


# --- a value and what came back --------------------------------------------------------------------------------------


def compare(given: Any, back: Any, depth: int = 0) -> None:
    """Raises Refusal where `back`, decoded from the JSON of `given`, is not the same value of the same type.

    Not held against a value: a tuple that became a list and the other way round (JSON has one kind of array), set and
    frozenset likewise, an int where a float or Decimal is declared, other bytes-likes where bytes are, and a time zone
    that became the offset it stood for.
    """
    kind, found = type(given), type(back)
    if kind in _PLAIN and kind is found:
        if given != back:
            raise _changed(given, back)
    elif isinstance(given, datetime) and isinstance(back, datetime):
        _compare_datetimes(given, back)
    elif kind is found and (kind is float or kind is Decimal or isinstance(given, time | Enum)):
        _compare_scalars(given, back)
    elif isinstance(given, dict | list | tuple | set | frozenset) or kind is found:
        if depth >= MAX_DEPTH:
            raise Refusal(DEEP_REASON)
        _compare_containers(given, back, depth + 1)
    elif not _is_conversion(given, back):
        _check_number(given)
        raise _changed(given, back)


def _compare_scalars(given: Any, back: Any) -> None:
    _check_number(given)
    aware = getattr(given, "tzinfo", None) is not None
    if given != back or aware is not (getattr(back, "tzinfo", None) is not None):
        raise _changed(given, back)


def _compare_datetimes(given: datetime, back: datetime) -> None:
    if given.utcoffset() is None:
        raise Refusal(_NAIVE_REASON)
    # Not `given == back`: Python never calls times within a repeated hour equal across zones (PEP 495).
    if given.astimezone(UTC) != back.astimezone(UTC):
        raise _changed(given, back)


def _is_conversion(given: Any, back: Any) -> bool:
    """Whether `back` is what the annotation asked for and means the same."""
    if isinstance(given, int) and not isinstance(given, bool | Enum) and isinstance(back, float | Decimal):
        return bool(given == back)
    if type(back) in (date, timedelta, UUID) and isinstance(given, type(back)):
        return bool(given == back)  # subclasses, such as those of time-freezing test libraries
    if isinstance(back, bytes | bytearray):
        return isinstance(given, bytes | bytearray | memoryview) and given == back
    return False


def _compare_containers(given: Any, back: Any, depth: int) -> None:
    kind, found = type(given), type(back)
    if isinstance(given, dict) and found is dict:
        _compare_dicts(given, back, depth)
    elif kind is found and hasattr(kind, "_fields"):
        _compare_parts(zip(kind._fields, given, back, strict=True), depth)
    elif kind in (list, tuple) and found in (list, tuple) and len(given) == len(back):
        _compare_sequences(given, back, depth)
    elif kind in (set, frozenset) and found in (set, frozenset):
        _compare_sets(given, back, depth)
    else:
        _compare_objects(given, back, depth)


def _compare_dicts(given: dict[Any, Any], back: dict[Any, Any], depth: int) -> None:
    # Both keep their order, so keys pair up, unless two of them became one.
    if len(given) != len(back):
        raise Refusal("has keys that are the same once they are JSON text")
    for (key, child), (back_key, back_child) in zip(given.items(), back.items(), strict=True):
        try:
            compare(key, back_key, depth)
        except Refusal as refusal:
            raise Refusal(f"has a key that {refusal.reason}", step(key)) from None
        try:
            compare(child, back_child, depth)
        except Refusal as refusal:
            raise refusal.within(step(key)) from None


def _compare_sequences(given: Any, back: Any, depth: int) -> None:
    for index, (child, back_child) in enumerate(zip(given, back, strict=True)):
        try:
            compare(child, back_child, depth)
        except Refusal as refusal:
            raise refusal.within(f"[{index}]") from None


def _compare_sets(given: Any, back: Any, depth: int) -> None:
    same = {child: child for child in back}
    for child in given:
        try:
            compare(child, same.get(child), depth)
        except Refusal as refusal:
            raise refusal.within("[*]") from None
    if len(given) != len(back):
        raise _changed(given, back)


def _compare_objects(given: Any, back: Any, depth: int) -> None:
    fields = fields_of(given) if type(given) is type(back) else None
    if fields is None:
        if type(given) is not type(back) or given != back:
            raise _changed(given, back)
        return
    others = dict(fields_of(back) or ())
    _compare_parts(((name, child, others.get(name)) for name, child in fields), depth)


def _compare_parts(parts: Iterable[tuple[str, Any, Any]], depth: int) -> None:
    for name, child, back_child in parts:
        try:
            compare(child, back_child, depth)
        except Refusal as refusal:
            raise refusal.within(f".{name}") from None


def _changed(given: Any, back: Any) -> Refusal:
    """The refusal of a value that is not what it was."""
    kind, found = kind_of(given), kind_of(back)
    if kind == found:
        return Refusal(f"would come back changed: {shown(given)} as {shown(back)}")
    reason = f"is of type {kind} but would come back as {found} ({shown(back)})"
    return Refusal(reason, advice=f"annotate it as {kind}, or send {found}")
