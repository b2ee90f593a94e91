"""Where in some JSON an error sits, and what it is about. Only for what was refused already: slow paths."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec

from skiplock.core.failure import safe_text
from skiplock.core.inspect_value import Refusal, find_fault, shown, step

Decode = Callable[[str | bytes], Any]
Encode = Callable[[Any], bytes]

_LONGEST = 2_000  # characters of an error's text that are looked at
_MSGSPEC_PATH = re.compile(r" - at `(?:key` in `)?\$(.*?)`$", re.DOTALL)
_FIELD = re.compile(r"(?:unknown|missing required) field `(.*)`$", re.DOTALL)
_MAX_TRIALS = 1000  # keys tried to find out which one msgspec meant by `[...]`
_MAX_TRIED = 20_000_000  # bytes decoded on the way


class ModelError(ValueError):
    """What a pydantic model said about its data; `path` lies inside the model."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


def first_model_error(error: ValueError) -> tuple[str, str]:
    """Path and message of the first thing a pydantic ValidationError complains about."""
    try:
        first = error.errors()[0]  # type: ignore[attr-defined]  # pydantic's, which is not imported here
        path = "".join(f"[{part}]" if isinstance(part, int) else step(part) for part in first["loc"])
        return path, f"{first['msg']}, got {shown(first['input'])}"
    except Exception:
        return "", safe_text(error, _LONGEST)


def unencodable(value: Any, error: Exception, encode: Encode) -> tuple[str, str]:
    """Path and reason for a value that has no JSON of its own kind."""
    if isinstance(error, Refusal):
        return error.path, error.reason
    try:
        find_fault(value, encode)
    except Refusal as refusal:
        return refusal.path, refusal.reason
    except Exception as again:
        error = again
    return "$", f"cannot be stored as JSON: {safe_text(error, 300)}"


def located(error: Exception, raw: str | bytes, decode: Decode, encode: Encode) -> tuple[str, str]:
    """Path and reason of a decoding error, with what was found there."""
    text = safe_text(error, _LONGEST)
    match = _MSGSPEC_PATH.search(text)
    reason = text[: match.start()] if match else text
    try:
        plain = msgspec.json.decode(raw)
    except Exception as again:
        return _unreadable(raw, again, encode)
    inside = match[1] if match else ""
    trials = min(_MAX_TRIALS, _MAX_TRIED // (len(raw) + 1) + 1)
    path, value = _expand(plain, inside, text, lambda trial: decode(msgspec.json.encode(trial)), trials)
    model = error.__cause__
    if isinstance(model, ModelError):
        return f"${path}{model.path}", f"is refused: {safe_text(model, 300)}"
    field = _FIELD.search(reason)
    if field:
        return f"${path}{step(field[1])}", f"is refused: {safe_text(reason, 300)}"
    return f"${path}", f"is refused: {safe_text(reason, 300)}, given {shown(value)}"


def _unreadable(raw: str | bytes, error: Exception, encode: Encode) -> tuple[str, str]:
    """Python's own parser takes lone surrogates and numbers beyond all floats, so that they can be pointed at."""
    what = "cannot be read" if isinstance(error, msgspec.ValidationError) else "is no JSON"
    text = _MSGSPEC_PATH.sub("", safe_text(error, 300))
    try:
        find_fault(json.loads(raw), encode)
    except Refusal as refusal:
        return refusal.path, refusal.reason
    except (ValueError, RecursionError):
        return "$", f"{what}: {text}"
    return "$", f"{what}: {text}"


def _expand(plain: Any, inside: str, text: str, decode: Callable[[Any], Any], trials: int) -> tuple[str, Any]:
    """msgspec's path with its ``[...]`` (some key of a dict) replaced by the key it means, and the value there.

    The key is found by trial: the dict is cut to one entry at a time until the same error comes up again.
    """
    steps: list[str | int | None] = [
        None if part == "[...]" else int(part[1:-1]) if part[0] == "[" else part[1:]
        for part in re.findall(r"\[\.\.\.\]|\[\d+\]|\.[^.\[]+", inside)
    ]
    path, node = "", plain
    for part in steps:
        if part is None:
            found = _guilty_key(plain, node, text, decode, trials)
            if found is None:
                return path + "[…]", node
            part = found
            path += step(part)
        else:
            path += f"[{part}]" if isinstance(part, int) else step(part)
        try:
            node = node[part]
        except (LookupError, TypeError):
            return path, node
    return path, node


def _guilty_key(plain: Any, node: Any, text: str, decode: Callable[[Any], Any], trials: int) -> str | None:
    if not isinstance(node, dict):
        return None
    entries = list(node.items())
    try:
        for key, child in entries[:trials]:
            node.clear()
            node[key] = child
            try:
                decode(plain)
            except Exception as error:
                if safe_text(error, _LONGEST) == text:
                    return str(key)
        return None
    finally:
        node.clear()
        node.update(entries)
