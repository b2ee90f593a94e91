"""The unique key of a job from its arguments: equal arguments have equal keys, others do not.

What counts is what the handler would be called with, not how it came to be: an argument that was left out equals one that was
given its default, 1 equals 1.0 for a parameter that is a float, and the order of dicts and sets, the zone in which a point in
time is written and trailing zeros of a Decimal do not count. Where a parameter takes anything, 1, 1.0 and True differ.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal
from enum import Enum
from typing import Any

import msgspec

from skiplock.core.codec import encode_value
from skiplock.core.inspect_value import fields_of, kind_of

# Only takes zeros away: no number that fits into the arguments of a job has so many digits that it would be rounded.
_EXACT = Context(prec=100_000_000, Emin=MIN_EMIN, Emax=MAX_EMAX)


def digest_of(task: str, queue: str, arguments: Mapping[str, Any]) -> str:
    """32 hexadecimal digits for a task, a queue and arguments by name."""
    named = {name: _argument(value) for name, value in arguments.items()}
    return hashlib.sha256(_encode([task, queue, named])).hexdigest()[:32]


def _argument(value: Any) -> Any:
    for attempt in (_canonical, lambda stored: msgspec.Raw(encode_value(stored))):
        try:
            return attempt(value)
        except Exception:
            continue
    return {"default": kind_of(value)}  # which need not be anything that can be stored: it equals itself


def _canonical(value: Any) -> Any:
    """The same for equal values, made of what JSON has."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):
        return _canonical(value.value)
    if isinstance(value, float):
        return float.__add__(value, 0.0)  # -0.0 equals 0.0
    if isinstance(value, datetime):
        return (value if value.utcoffset() is None else value.astimezone(UTC)).isoformat()
    if isinstance(value, Decimal):
        return str(value.normalize(_EXACT)) if value else "0"
    if isinstance(value, dict):
        return {_text(key): _canonical(child) for key, child in value.items()}
    if isinstance(value, set | frozenset):
        return sorted((_canonical(child) for child in value), key=_encode)
    fields = fields_of(value)
    if fields is not None:
        return _canonical_fields(value, fields)
    if isinstance(value, list | tuple):
        return [_canonical(child) for child in value]
    return msgspec.Raw(encode_value(value))


def _canonical_fields(value: Any, fields: list[tuple[str, Any]]) -> Any:
    tag = (
        value.__struct_config__.tag if isinstance(value, msgspec.Struct) else None
    )  # tells the members of a union apart
    try:
        return [tag, {name: _canonical(child) for name, child in fields}]
    except Exception:
        return msgspec.Raw(encode_value(value))  # a model with fields of types that only it can write


def _text(key: Any) -> str:
    """A key of a dict as it is in JSON."""
    found = _canonical(key)
    return found if isinstance(found, str) else _encode(found).decode()


def _encode(canonical: Any) -> bytes:
    return msgspec.json.encode(canonical, order="sorted")
