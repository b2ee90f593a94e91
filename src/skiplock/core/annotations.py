"""What a task's signature says about its arguments: names, types, and which types need a closer look.

`parameters_of` reads the signature; `check_type` says whether an annotation can be kept as JSON and come back.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect as mi

from skiplock.core.errors import TaskDefinitionError

# For these, a value that decodes and is equal is what the handler was promised. All others are compared in detail:
# `Decimal` equals some floats, an enum member its value, a naive datetime itself; Any may hold everything.
_EQUAL_IS_ENOUGH = (
    mi.StrType,
    mi.IntType,
    mi.FloatType,
    mi.BoolType,
    mi.NoneType,
    mi.BytesType,
    mi.ByteArrayType,
    mi.UUIDType,
    mi.DateType,
    mi.TimeDeltaType,
    mi.LiteralType,
)
# What can only be an array, an object or nothing in JSON, and therefore no key.
_NO_KEYS = (
    mi.CollectionType,
    mi.TupleType,
    mi.DictType,
    mi.StructType,
    mi.DataclassType,
    mi.TypedDictType,
    mi.NamedTupleType,
    mi.BoolType,
    mi.NoneType,
)
_USE = "use types that JSON can hold (str, int, float, bool, None, list, dict, datetime, UUID, Decimal, dataclass …)"
_KINDS = {
    inspect.Parameter.POSITIONAL_ONLY: "is positional-only; arguments are stored by name, so remove the `/`",
    inspect.Parameter.VAR_POSITIONAL: "takes any number of arguments; take a list instead",
    inspect.Parameter.VAR_KEYWORD: "takes any keyword; take a dict instead",
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument of a task. `annotation` is as written: a type, or text still to be resolved."""

    name: str
    annotation: Any
    optional: bool
    keyword_only: bool


def parameters_of(function: Callable[..., Any], task: str, skip: frozenset[str]) -> tuple[Parameter, ...]:
    """The parameters of `function` that are arguments. Raises TaskDefinitionError for kinds that cannot be stored."""
    found = []
    for parameter in signature_of(function, task).parameters.values():
        name = parameter.name
        if name in skip:
            continue
        if parameter.kind in _KINDS:
            raise TaskDefinitionError(f"task {task}: parameter {name!r} {_KINDS[parameter.kind]}")
        if name.startswith("__"):
            raise TaskDefinitionError(
                f"task {task}: parameter {name!r} starts with two underscores; give it another name"
            )
        empty = inspect.Parameter.empty
        annotation = Any if parameter.annotation is empty else parameter.annotation
        keyword_only = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        found.append(Parameter(name, annotation, parameter.default is not empty, keyword_only))
    return tuple(found)


def signature_of(function: Callable[..., Any], task: str) -> inspect.Signature:
    """The function's signature, or TaskDefinitionError if it has none (some functions written in C)."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise TaskDefinitionError(f"task {task}: {function!r} has no readable signature: {error}") from error


def resolve(function: Callable[..., Any], annotations: dict[str, Any]) -> dict[str, Any]:
    """The annotations as types. Raises NameError while a name they mention does not exist (yet).

    Only those given are looked at: a context or a return type imported under TYPE_CHECKING is nobody's business here.
    """
    holder = types.SimpleNamespace(__annotations__=annotations)
    return typing.get_type_hints(holder, globalns=_globals_of(function), include_extras=True)


def _globals_of(function: Any) -> dict[str, Any]:
    inner = inspect.unwrap(function)
    while hasattr(inner, "func") and not hasattr(inner, "__globals__"):  # functools.partial
        inner = inspect.unwrap(inner.func)
    if not hasattr(inner, "__globals__"):  # an object with __call__, or a bound method
        inner = getattr(inner, "__func__", None) or type(inner).__call__
    found: dict[str, Any] = getattr(inner, "__globals__", {})
    return found


def check_type(task: str, name: str, annotation: Any) -> bool:
    """Whether equality is enough to vouch for a value of this type (else it must be compared in detail).

    Raises TaskDefinitionError if values of the type cannot be stored and come back; NameError if it is not complete yet.
    """
    where = f"task {task}: parameter {name!r} is annotated {_written(annotation)}"
    try:
        info = mi.type_info(annotation)
        msgspec.json.Decoder(annotation)  # refuses unions nobody could tell apart in JSON
    except NameError:
        raise
    except Exception as error:
        raise TaskDefinitionError(f"{where}: {error}") from error
    unknown = _unsupported(info, set())
    if unknown is not None:
        raise TaskDefinitionError(f"{where}: {unknown} cannot be stored as JSON; {_USE}")
    return _equal_is_enough(info)


def _written(annotation: Any) -> str:
    return (
        annotation.__qualname__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)
    )


def _unsupported(info: Any, seen: set[int]) -> str | None:
    """The name of the first type inside `info` that has no JSON form, or None."""
    if id(info) in seen:
        return None
    seen.add(id(info))
    if isinstance(info, mi.RawType | mi.ExtType):
        return type(info).__name__.removesuffix("Type")
    if isinstance(info, mi.CustomType):
        known = info.cls is object or hasattr(info.cls, "model_validate_json")
        return None if known else _written(info.cls)
    if isinstance(info, mi.DictType) and isinstance(info.key_type, _NO_KEYS):
        return f"a dict with keys of {type(info.key_type).__name__.removesuffix('Type').lower()}"
    for inner in _inner_types(info):
        found = _unsupported(inner, seen)
        if found is not None:
            return found
    return None


def _inner_types(info: Any) -> list[Any]:
    """The types directly inside: items, keys, values, members, fields. msgspec has no visitor of its own."""
    inner = [getattr(info, part) for part in ("type", "item_type", "key_type", "value_type") if hasattr(info, part)]
    inner += getattr(info, "item_types", ())
    if isinstance(info, mi.UnionType):
        inner += info.types
    return inner + [field.type for field in getattr(info, "fields", ())]


def _equal_is_enough(info: Any) -> bool:
    if isinstance(info, mi.DictType):
        return isinstance(info.key_type, mi.StrType) and _equal_is_enough(info.value_type)
    if isinstance(info, mi.ListType | mi.VarTupleType | mi.TupleType | mi.UnionType | mi.Metadata):
        return all(_equal_is_enough(inner) for inner in _inner_types(info))
    return isinstance(info, _EQUAL_IS_ENOUGH)
