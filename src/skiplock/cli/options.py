"""Options that commands share, and the kinds of values they take."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from skiplock.app import Skiplock
from skiplock.cli.session import Session
from skiplock.core.codec import check_name
from skiplock.core.errors import ConfigurationError, OptionError
from skiplock.core.settings import DSN_VARIABLES, resolve_dsn
from skiplock.core.size import size_in_bytes
from skiplock.store.schema import DEFAULT_SCHEMA, check_schema
from skiplock.task import check_time

if TYPE_CHECKING:
    _ParamType = click.ParamType[Any]
else:
    _ParamType = click.ParamType  # generic since click 8.5 only

F = TypeVar("F", bound=Callable[..., Any])
DEFAULT_CONCURRENCY = 50
MAX_ID = 2**63 - 1

# Every option can come from the environment, and its help says from which variable. So that the variable is named like
# the option, the parameter must be too (`--json` is `json`, not `as_json`).
option = functools.partial(click.option, show_envvar=True)
internal = functools.partial(click.option, hidden=True, allow_from_autoenv=False)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the jobs are. What was typed on the command line is stronger than what an app says; the environment is not."""

    dsn: str | None
    schema: str
    typed_dsn: str | None
    typed_schema: str | None

    def require(self) -> str:
        """The DSN. Raises ConfigurationError saying how to give one."""
        if not self.dsn:
            raise ConfigurationError(f"no database: give --dsn, or set {' or '.join(DSN_VARIABLES)}")
        return self.dsn

    def turn(self, app: Skiplock) -> Skiplock:
        """The app, with what was typed put in place of what it says itself, and sure to have a database."""
        typed = {"dsn": self.typed_dsn, "schema": self.typed_schema}
        app.settings = replace(app.settings, **{key: value for key, value in typed.items() if value})  # type: ignore[arg-type]
        try:
            resolve_dsn(app.settings.dsn)
        except ConfigurationError:
            self.require()
        return app


def schema_option(function: F) -> F:
    """--schema."""
    return option(
        "--schema",
        envvar="SKIPLOCK_SCHEMA",
        default=DEFAULT_SCHEMA,
        show_default=True,
        metavar="NAME",
        help="PostgreSQL schema of skiplock's tables.",
    )(function)


def database_options(function: F, *, variables: Sequence[str] | None = DSN_VARIABLES) -> F:
    """--dsn and --schema, handed over as one `place`."""

    @option("--dsn", envvar=variables, metavar="DSN", help="PostgreSQL to connect to, as a URI or key=value.")
    @schema_option
    @functools.wraps(function)
    def wrapper(*args: Any, dsn: str | None, schema: str, **kwargs: Any) -> Any:
        place = Place(dsn, check_schema(schema), dsn if typed("dsn") else None, schema if typed("schema") else None)
        return function(*args, place=place, **kwargs)

    return wrapper  # type: ignore[return-value]


# For what must not touch the database that everything else here uses: DATABASE_URL is not looked at.
own_database_options = functools.partial(database_options, variables=None)


def typed(name: str) -> bool:
    """Whether that option stands on the command line."""
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def _note_json(context: click.Context, _: click.Parameter, value: bool) -> bool:
    found = context.find_object(Session)
    if value and found is not None:
        found.json = True
    return value


# Eager, so that a complaint about any other option is JSON too.
json_option = option(
    "--json", is_flag=True, is_eager=True, callback=_note_json, help="For programs: one JSON document."
)
yes_option = option("--yes", "-y", is_flag=True, help="Do not ask.")


def confirm(question: str, *, yes: bool) -> bool:
    """Ask, unless --yes. Where nobody can answer, --yes is required."""
    if yes:
        return True
    if not sys.stdin.isatty():
        raise click.UsageError("this cannot be undone: repeat it with --yes (nobody is there to be asked)")
    return click.confirm(question, err=True)


class JobId(_ParamType):
    """A job's id."""

    name = "id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:40]) <= MAX_ID:
            self.fail(f"{text!r} is not a job id: a whole number from 1 to {MAX_ID}", param, ctx)
        return int(text)


class QueueRoom(_ParamType):
    """`mail=20`: a queue and how many of its jobs run at a time."""

    name = "name=concurrency"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        name, equals, number = str(value).rpartition("=")
        if not equals:
            name, number = str(value), str(DEFAULT_CONCURRENCY)
        try:
            check_name(name, "queue")
        except OptionError as error:
            self.fail(str(error), param, ctx)
        if not (number.isascii() and number.isdigit()) or not 1 <= int(number[:9]) <= 10_000:
            self.fail(f"{value!r}: the concurrency must be a whole number from 1 to 10000, as in mail=20", param, ctx)
        return name, int(number)


class MemorySize(_ParamType):
    """`512MiB`: an amount of memory, in bytes."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        text = str(value)
        try:
            return size_in_bytes(int(text) if text.isascii() and text.isdigit() else text, "size")
        except OptionError:
            self.fail(f"{text!r} is not an amount of memory, as in 512MiB or 2GiB", param, ctx)


class Moment(_ParamType):
    """A point in time with its zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        example = "as in 2027-03-01T09:00+01:00 or 2027-03-01T08:00Z"
        try:
            moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
        except ValueError:
            self.fail(f"{value!r} is not a time; write it {example}", param, ctx)
        if moment.tzinfo is None:
            self.fail(f"{value!r} has no time zone; write it {example}", param, ctx)
        try:
            return check_time(moment)
        except (OptionError, OverflowError) as error:
            self.fail(str(error), param, ctx)
