"""Arguments, results and metadata to JSON text and back, so that what comes out is what went in, or nothing goes in.

A task's `ArgsCodec` is built once from its signature. Each `encode` decodes what it made and compares: checking the
real round trip is both cheaper (microseconds, in C) and stricter than any list of rules about types.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from contextlib import suppress
from datetime import date, datetime
from typing import Any, NoReturn

import msgspec

from skiplock.core.annotations import Parameter, check_type, parameters_of, resolve, signature_of
from skiplock.core.depth import DEEP_REASON, SHALLOW, decode_json, too_deep
from skiplock.core.errors import ArgumentError, OptionError, PayloadTooLargeError, TaskDefinitionError
from skiplock.core.failure import safe_text
from skiplock.core.inspect_value import Refusal, compare, find_fault, kind_of, shown, step
from skiplock.core.job import MAX_NAME
from skiplock.core.locate import ModelError, first_model_error, located, unencodable

MAX_RESULT = 1_048_576  # bytes of an encoded result, unless the caller says otherwise

_NUL = b"\\u0000"
_NOT_IN_NAMES = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")


def _to_json(value: Any) -> Any:
    """For msgspec: what it cannot encode itself. TypeError if we cannot either."""
    if hasattr(type(value), "model_validate_json"):
        return value.model_dump(mode="json", by_alias=True, round_trip=True, warnings=False)
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, datetime):
        moment = (value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond)
        return datetime(*moment, tzinfo=value.tzinfo, fold=value.fold)
    if isinstance(value, date):
        return date(value.year, value.month, value.day)
    raise TypeError(f"objects of type {kind_of(value)} cannot be stored as JSON")


def _from_json(kind: Any, value: Any) -> Any:
    """For msgspec: values of types it does not know (pydantic models, `object`)."""
    if kind is object:
        return value
    try:
        return kind.model_validate_json(msgspec.json.encode(value))
    except ValueError as error:
        first = first_model_error(error)
        raise ModelError(f"{kind.__name__}: {first[1]}", first[0]) from error


encode_value = _encode = msgspec.json.Encoder(enc_hook=_to_json).encode


class ArgsCodec:
    """Encodes and decodes the arguments of one task. Build it with `ArgsCodec.of`."""

    __slots__ = ("_close", "_decode", "_defaults", "_function", "_names", "_optional", "_parameters", "_struct", "task")

    def __init__(self, function: Callable[..., Any], task: str, parameters: tuple[Parameter, ...]) -> None:
        self.task = task
        self._function = function
        self._parameters = parameters
        self._names = tuple(p.name for p in parameters)
        self._optional = tuple(p.name for p in parameters if p.optional)
        self._defaults: dict[str, Any] | None = None  # of the optional ones, once they are asked for
        self._close: frozenset[str] = frozenset()  # parameters to be compared in detail
        self._struct: Any = None  # None until the annotations could be resolved
        self._decode: Callable[[str | bytes], Any]

    @classmethod
    def of(cls, function: Callable[..., Any], *, task: str, skip: frozenset[str] = frozenset()) -> ArgsCodec:
        """The codec for `function`; `skip` names its parameters that are not arguments (context, resources).

        Raises TaskDefinitionError for what cannot be stored. Annotations that mention names which do not exist yet
        are resolved at first use.
        """
        codec = cls(function, task, parameters_of(function, task, skip))
        with suppress(NameError):
            codec._build()
        return codec

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, limit: int) -> str:
        """The arguments as JSON text of at most `limit` bytes.

        Raises ArgumentError (with `task` and `path`) for whatever would not come back as it was given, and
        PayloadTooLargeError.
        """
        if self._struct is None:
            self._resolve()
        try:
            given = self._struct(*args, **kwargs)
        except TypeError:
            self._refuse_call(args, kwargs)
        try:
            raw = _encode(given)
            if len(raw) > limit:
                raise _too_large("the arguments", len(raw), limit, self.task)
            if len(raw) > SHALLOW and too_deep(raw):
                _refuse_depth(given)
            back = self._decode(raw)
            if _NUL in raw or self._close or given != back:
                self._look_closely(given, back, raw)
        except ArgumentError:
            raise
        except Exception as error:
            self._refuse(given, error)
        return raw.decode()

    def decode(self, raw: str | bytes) -> dict[str, Any]:
        """The keyword arguments for the function; those that were omitted are left out.

        Raises ArgumentError if the stored JSON does not fit the signature.
        """
        if self._struct is None:
            self._resolve()
        if len(raw) > SHALLOW and too_deep(raw):
            raise self._misfit("$", DEEP_REASON)
        try:
            given = self._decode(raw)
        except Exception as error:
            raise self._misfit(*located(error, raw, self._decode, _encode)) from error
        found = msgspec.structs.asdict(given)
        for name in self._optional:
            if found[name] is msgspec.UNSET:
                del found[name]
        return found

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters that are arguments."""
        return self._names

    def named(self, raw: str) -> dict[str, Any]:
        """All arguments by name, as the function would see them: those that were omitted have their defaults."""
        if self._defaults is None:
            parameters = inspect.signature(self._function).parameters
            self._defaults = {name: parameters[name].default for name in self._optional}
        return self._defaults | self.decode(raw)

    # --- building ---

    def _build(self) -> None:
        hints = resolve(self._function, {p.name: p.annotation for p in self._parameters})
        hints = {name: Any if hint is object else hint for name, hint in hints.items()}
        close = frozenset(name for name, hint in hints.items() if not check_type(self.task, name, hint))
        by_name = [_field(p, hints) for p in self._parameters if p.keyword_only]
        by_place = [_field(p, hints) for p in self._parameters if not p.keyword_only]
        # Two steps, because msgspec makes all fields of a class keyword-only or none.
        base = msgspec.defstruct("Keywords", by_name, kw_only=True, gc=False)
        struct = msgspec.defstruct("Arguments", by_place, bases=(base,), forbid_unknown_fields=True, gc=False)
        self._decode = msgspec.json.Decoder(struct, dec_hook=_from_json).decode
        self._close = close
        self._struct = struct

    def _resolve(self) -> None:
        try:
            self._build()
        except NameError as error:
            raise TaskDefinitionError(
                f"task {self.task}: its annotations cannot be resolved: {error}. "
                "Import the type at module level (not under TYPE_CHECKING, not inside a function)"
            ) from error

    # --- refusing: slow paths ---

    def _look_closely(self, given: Any, back: Any, raw: bytes) -> None:
        for name in self._names:
            value, returned = getattr(given, name), getattr(back, name)
            if value is msgspec.UNSET or (name not in self._close and value == returned):
                continue
            try:
                compare(value, returned)
            except Refusal as refusal:
                raise refusal.within(step(name)) from None
        if _NUL in raw:  # which may be the six characters themselves
            find_fault(given, _encode)

    def _refuse(self, given: Any, error: Exception) -> NoReturn:
        """Raises ArgumentError for values that could not be encoded, decoded or did not come back the same."""
        if isinstance(error, Refusal):
            advice = f"; {error.advice}" if error.advice else ""
            raise self._error(error.path, error.reason + advice) from None
        try:
            find_fault(given, _encode)
            raw = _encode(given)
        except Refusal as refusal:
            raise self._error(refusal.path, refusal.reason) from None
        except Exception as again:
            raise self._error("$", f"cannot be stored as JSON: {safe_text(again, 300)}") from again
        path, reason = located(error, raw, self._decode, _encode)
        raise self._error(path, reason) from error

    def _refuse_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NoReturn:
        """Raises ArgumentError for arguments that do not fit the signature."""
        whole = signature_of(self._function, self.task)
        wanted = [p for p in whole.parameters.values() if p.name in self._names]
        signature = inspect.Signature(wanted)
        reason, path = "the arguments do not fit", "$"
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            reason = str(error)
            quoted = re.search(r"'(\w+)'", reason)
            path = f"${step(quoted[1])}" if quoted else "$"
        raise ArgumentError(f"{self.task}{signature}: {reason}", task=self.task, path=path)

    def _error(self, path: str, reason: str) -> ArgumentError:
        return ArgumentError(f"{self.task}: {path} {reason}", task=self.task, path=path)

    def _misfit(self, path: str, reason: str) -> ArgumentError:
        text = f"{self.task}: the stored arguments do not fit its signature: {path} {reason}"
        return ArgumentError(text, task=self.task, path=path)


def _field(parameter: Parameter, hints: dict[str, Any]) -> Any:
    hint = hints[parameter.name]
    return (parameter.name, hint, msgspec.UNSET) if parameter.optional else (parameter.name, hint)


def encode_result(value: Any, *, limit: int = MAX_RESULT, task: str = "") -> str | None:
    """A handler's return value as JSON text of at most `limit` bytes, or None for None.

    Raises ArgumentError (with `path`) for what JSON in PostgreSQL cannot hold, and PayloadTooLargeError. The value
    need not come back as the same type: it is there to be looked at.
    """
    if value is None:
        return None
    try:
        raw = _encode(value)
        if len(raw) > limit:
            raise _too_large("the result", len(raw), limit, task)
        if len(raw) > SHALLOW and too_deep(raw):
            _refuse_depth(value)
        if type(value) not in (int, bool) and _is_suspicious(raw):
            find_fault(value, _encode)
    except ArgumentError:
        raise
    except Exception as error:
        path, reason = unencodable(value, error, _encode)
        raise ArgumentError(f"{task or 'result'}: the result at {path} {reason}", task=task, path=path) from error
    return raw.decode()


def _is_suspicious(raw: bytes) -> bool:
    """Whether this JSON shows traces of what must be refused: NaN leaves a null, Decimal("NaN") a text."""
    return _NUL in raw or b"null" in raw or b'NaN"' in raw or b'Infinity"' in raw or b'nan"' in raw or b'inf"' in raw


def _refuse_depth(value: Any) -> NoReturn:
    """Raises Refusal for what is nested too deep, with the path to where it is."""
    find_fault(value, _encode)
    raise Refusal(DEEP_REASON)


def plain_json(value: Any, what: str, limit: int) -> str:
    """A dict of plain JSON values (str, int, float, bool, None, lists and dicts of them) as JSON text.

    `what` names the option in messages. Raises OptionError.
    """
    if not isinstance(value, dict):
        raise OptionError(f"{what}: {shown(value)} is not a dict")
    try:
        raw = _encode(value)
        if len(raw) > limit:
            raise OptionError(f"{what}: {len(raw):,} bytes of JSON, at most {limit:,} are allowed")
        compare(value, decode_json(raw))
        if _NUL in raw:
            find_fault(value, _encode)
    except OptionError:
        raise
    except Exception as error:
        path, reason = unencodable(value, error, _encode)
        raise OptionError(f"{what}: {path} {reason}") from error
    return raw.decode()


def check_name(value: Any, what: str) -> str:
    """The name of a queue, task or tag as plain str. Raises OptionError unless it is 1 to `MAX_NAME` printable characters."""
    if type(value) is str and 0 < len(value) <= MAX_NAME and value.isprintable():
        return value
    if not isinstance(value, str):
        raise OptionError(f"{what}: {shown(value)} is not text")
    name = str.__str__(value)  # of an enum member, its value
    if not name:
        raise OptionError(f"{what}: must not be empty")
    if len(name) > MAX_NAME:
        raise OptionError(f"{what}: {shown(name)} has {len(name):,} characters, at most {MAX_NAME} are allowed")
    if _NOT_IN_NAMES.search(name):
        raise OptionError(f"{what}: {shown(name)} holds control characters, NUL or lone surrogates")
    return name


def check_text(value: Any, what: str) -> str:
    """Any text that PostgreSQL can hold, as plain str: what is looked for need not be a name that could be given today.

    Raises OptionError.
    """
    if not isinstance(value, str):
        raise OptionError(f"{what}: {shown(value)} is not text")
    text = str.__str__(value)
    if _UNSTORABLE.search(text):
        raise OptionError(f"{what}: {shown(text)} holds NUL or lone surrogates")
    return text


def _too_large(what: str, size: int, limit: int, task: str) -> PayloadTooLargeError:
    way_out = "store the data elsewhere (a table, a file, an object store) and pass its key"
    text = f"{task or 'job'}: {what} would be {size:,} bytes of JSON, at most {limit:,} are allowed; {way_out}"
    return PayloadTooLargeError(text, task=task)
