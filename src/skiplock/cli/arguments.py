"""Arguments of a job as people type them: `to=ann@example.org count=3`, checked by the task if it is known."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

import click
import msgspec

from skiplock.core.annotations import parameters_of, resolve, signature_of
from skiplock.core.depth import DEEP_REASON, too_deep
from skiplock.core.errors import ArgumentError, OptionError
from skiplock.core.inspect_value import shown
from skiplock.core.task import TaskSpec

Texts = dict[str, str]  # JSON text by argument
_STORED = "the stored arguments do not fit its signature: "


def split(pairs: Sequence[str], what: str) -> dict[str, str]:
    """`name=value` words as a dict. Raises UsageError."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.UsageError(f"{what} {pair!r}: write name=value")
        if name in found:
            raise click.UsageError(f"{what} {name!r} is given twice")
        found[name] = value
    return found


def whole(text: str | None) -> Texts:
    """The members of a JSON object, each as JSON text, so that numbers keep their digits. Raises UsageError."""
    if text is None:
        return {}
    _check_depth(text)
    try:
        members = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeError) as error:
        raise click.UsageError(f"--json-args: not a JSON object: {error}") from None
    return {name: bytes(raw).decode() for name, raw in members.items()}


def merged(given: Mapping[str, str], words: Texts) -> Texts:
    """Both together. Raises UsageError if an argument is in both."""
    for name in words:
        if name in given:
            raise click.UsageError(f"argument {name!r} is given twice: in --json-args and as a word")
    return {**given, **words}


def as_json(value: str) -> str:
    """JSON if it parses, else the text as a JSON string. Raises OptionError for what is no text."""
    _check_depth(value)
    try:
        msgspec.json.decode(value)
    except msgspec.DecodeError:
        return as_text(value)
    except UnicodeError:
        raise _no_text(value) from None
    return value


def as_text(value: str) -> str:
    """The text as a JSON string."""
    try:
        return msgspec.json.encode(value).decode()
    except UnicodeError:
        raise _no_text(value) from None


def document(texts: Mapping[str, str]) -> str:
    """The JSON object with these members."""
    return "{" + ",".join(f"{as_text(name)}:{text}" for name, text in texts.items()) + "}"


def typed(spec: TaskSpec, given: Texts, words: Mapping[str, str]) -> dict[str, Any]:
    """Keyword arguments of the types the task's signature says. Raises ArgumentError naming the path.

    For a `str` parameter a word is text, whatever it looks like. For others it is JSON if it parses. Where that does
    not fit and text would (an enum, a Literal "1"), it is text.
    """
    hints = _hints(spec)
    texts = {n: as_text(v) if _is_text(hints.get(n), v) else as_json(v) for n, v in words.items()}
    meant: ArgumentError | None = None
    while True:
        try:
            return spec.codec.decode(document(merged(given, texts)))
        except ArgumentError as error:
            # Neither fits: the first complaint is about what was meant.
            complaint = meant if meant is not None and meant.path == error.path else error
        name = complaint.path.removeprefix("$.")
        if complaint is meant or name not in words or texts[name] == as_text(words[name]):
            text = str(complaint).replace(_STORED, "")
            raise ArgumentError(text, task=complaint.task, path=complaint.path)
        meant, texts[name] = complaint, as_text(words[name])


def _hints(spec: TaskSpec) -> dict[str, Any]:
    context = list(signature_of(spec.function, spec.name).parameters)[: int(spec.wants_context)]
    parameters = parameters_of(spec.function, spec.name, frozenset([*context, *spec.resources]))
    try:
        return resolve(spec.function, {p.name: p.annotation for p in parameters})
    except NameError:
        return {}  # the codec will say so, and better


def _is_text(hint: Any, value: str) -> bool:
    """Whether a parameter takes text: `str`, and what is made of it; for `str | None` the word null is no text."""
    if hasattr(hint, "__metadata__"):
        return _is_text(hint.__origin__, value)
    if isinstance(hint, typing.NewType):
        return _is_text(hint.__supertype__, value)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        members = [m for m in typing.get_args(hint) if m is not type(None)]
        return len(members) == 1 and value != "null" and _is_text(members[0], value)
    return hint is str


def _check_depth(text: str) -> None:
    if too_deep(text):
        raise OptionError(f"{shown(text)} {DEEP_REASON}")


def _no_text(value: str) -> OptionError:
    return OptionError(f"{value.encode('utf-8', 'surrogateescape')!r} is not text in UTF-8")
