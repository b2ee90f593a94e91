"""Errors as people and programs see them: one line or one JSON document on stderr, and an exit code."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from skiplock.core.errors import (
    ArgumentError,
    ConfigurationError,
    DatabaseUnavailableError,
    OptionError,
    SchemaError,
    SkiplockError,
    TaskDefinitionError,
    UnknownTaskError,
)
from skiplock.store.guard import Meaning, meaning, sqlstate

PROBLEM, USAGE, CONFIGURATION, DATABASE, SCHEMA, INTERRUPTED = 1, 2, 3, 4, 5, 130
CODES = {
    0: "ok",
    PROBLEM: "a problem was found: job gone or in the wrong state, verify, demo failed",
    USAGE: "wrong usage: unknown option or task, an argument refused",
    CONFIGURATION: "wrong configuration: no DSN, no such database, app not importable",
    DATABASE: "the database is unavailable or refuses",
    SCHEMA: "no skiplock schema in the database, or another version of it",
    INTERRUPTED: "interrupted from the keyboard",
}
_BY_CLASS: tuple[tuple[type[SkiplockError], int], ...] = (
    (ArgumentError, USAGE),
    (OptionError, USAGE),
    (UnknownTaskError, USAGE),
    (ConfigurationError, CONFIGURATION),
    (TaskDefinitionError, CONFIGURATION),
    (DatabaseUnavailableError, DATABASE),
    (SchemaError, SCHEMA),
)


def exit_code(error: SkiplockError) -> int:
    """The exit code for this error."""
    return next((code for kind, code in _BY_CLASS if isinstance(error, kind)), PROBLEM)


def error_document(error: SkiplockError) -> dict[str, Any]:
    """For programs: `code` is the class in snake case without its `Error`."""
    kind = next(k.__name__ for k in type(error).__mro__ if k.__module__ == SkiplockError.__module__)
    code = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.removesuffix("Error")).lower()
    document = {"code": code, "message": str(error)}
    for more in ("path", "traceback"):
        if getattr(error, more, None):
            document[more] = getattr(error, more)
    return document


def show_error(error: SkiplockError, *, as_json: bool) -> int:
    """Print it to stderr; returns the exit code."""
    if as_json:
        _print_document(error_document(error))
    else:
        if getattr(error, "traceback", None):
            click.echo(getattr(error, "traceback"), err=True)  # noqa: B009 - only some classes have it
        _print_line(str(error))
    return exit_code(error)


def show_usage_error(error: click.ClickException, *, as_json: bool) -> int:
    """Click's own complaint: the usage line first, for people."""
    if as_json:
        _print_document({"code": "usage", "message": error.format_message()})
        return error.exit_code
    context = getattr(error, "ctx", None)
    if context is not None:
        click.echo(context.get_usage(), err=True)
        click.echo(f"Try '{context.command_path} --help' for help.\n", err=True)
    _print_line(error.format_message())
    return error.exit_code


@contextmanager
def database_errors() -> Iterator[None]:
    """Turn what the driver raises into errors of ours, with the same exit codes as everywhere."""
    try:
        yield
    except SkiplockError:
        raise
    except Exception as error:
        ours = _ours(error)
        if ours is None:
            raise
        raise ours from None


def _ours(error: Exception) -> SkiplockError | None:
    kind = meaning(error)
    text = str(error).strip().split("\n", 1)[0]
    if kind is Meaning.SCHEMA:
        return SchemaError(f"{text}: no skiplock schema there, or another version; run `skiplock db migrate`")
    if kind is Meaning.CONFIGURATION:
        return ConfigurationError(text)
    if sqlstate(error) is not None:
        return DatabaseUnavailableError(f"the database refuses: {text}")
    return DatabaseUnavailableError(text) if kind is Meaning.RECONNECT else None


def _print_document(error: dict[str, Any]) -> None:
    print(json.dumps({"error": error}), file=sys.stderr)


def _print_line(text: str) -> None:
    from rich.text import Text

    from skiplock.cli.look import console, plain

    console(stderr=True).print(Text(f"error: {plain(text)}", style="red"), soft_wrap=True)
