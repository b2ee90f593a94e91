"""The one place that decides what a database error means.

| what happened                                             | meaning       | what the worker does                     |
|-----------------------------------------------------------|---------------|------------------------------------------|
| 40001, 40P01, 55P03, 57014 (serialization, deadlock, …)   | again         | repeats the statement after a short wait |
| 08xxx, 57P0x, 25006 (read-only), 53xxx, no SQLSTATE       | reconnect     | drops the connection, backs off, retries |
| 3F000, 42P01, 42883, 42703 (schema, table, function)      | schema        | backs off, says: run `skiplock db migrate` |
| 28xxx, 3D000 (password, no such database)                 | configuration | at start: stops; later: as reconnect     |
| SK001, SK004                                              | ours          | an answer of our own functions           |
| anything else                                             | bug           | logs it, backs off, retries              |
"""

from __future__ import annotations

from enum import Enum

import psycopg

from skiplock.core.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    LeaseLostError,
    OptionError,
    SchemaError,
    SkiplockError,
)


class Meaning(Enum):
    """What to do about a database error."""

    AGAIN = "again"
    RECONNECT = "reconnect"
    SCHEMA = "schema"
    CONFIGURATION = "configuration"
    OURS = "ours"
    BUG = "bug"


_AGAIN = {"40001", "40P01", "55P03", "57014"}
_SCHEMA = {"3F000", "42P01", "42883", "42703"}
_RECONNECT = {"25006", "57P01", "57P02", "57P03", "57P05"}

# Errors that were translated already.
_OURS = (
    (DatabaseUnavailableError, Meaning.RECONNECT),
    (SchemaError, Meaning.SCHEMA),
    (ConfigurationError, Meaning.CONFIGURATION),
    (SkiplockError, Meaning.OURS),
)


def sqlstate(error: BaseException) -> str | None:
    """The SQLSTATE of a driver's error, whichever driver raised it (SQLAlchemy and Django wrap theirs)."""
    seen = 0
    current: BaseException | None = error
    while current is not None and seen < 5:
        for candidate in (current, getattr(current, "orig", None)):
            code = getattr(candidate, "sqlstate", None) or getattr(candidate, "pgcode", None)
            if isinstance(code, str):
                return code
        current, seen = current.__cause__, seen + 1
    return None


def meaning(error: BaseException) -> Meaning:
    """What this error means for whoever runs our statements."""
    for ours, found in _OURS:
        if isinstance(error, ours):
            return found
    code = sqlstate(error)
    if code is None:
        is_connection = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | OSError | TimeoutError)
        return Meaning.RECONNECT if is_connection else Meaning.BUG
    if code in _AGAIN:
        return Meaning.AGAIN
    if code in _SCHEMA:
        return Meaning.SCHEMA
    if code in _RECONNECT or code[:2] in ("08", "53", "58", "XX"):
        return Meaning.RECONNECT
    if code[:2] == "28" or code == "3D000":
        return Meaning.CONFIGURATION
    return Meaning.OURS if code.startswith("SK") else Meaning.BUG


def translate(error: BaseException) -> SkiplockError | None:
    """Our own error for a driver's one, if we have something clearer to say; else None."""
    code = sqlstate(error)
    text = str(error).split("\n", 1)[0]
    if code == "SK001":
        return OptionError(text)
    if code == "SK004":
        return LeaseLostError(text)
    if code in ("3F000", "42P01", "42883"):  # only our own statements come here, whatever the schema is called
        return SchemaError(
            f"{text}: the database has no skiplock schema, or an older one; run `skiplock db migrate` "
            "and check SKIPLOCK_SCHEMA if the schema has another name"
        )
    return None


def unavailable(error: BaseException, dsn: str) -> SkiplockError:
    """The error for "no connection could be had", without the password."""
    text = " ".join(str(error).split())
    if sqlstate(error) == "3D000" or "does not exist" in text:
        return ConfigurationError(f"cannot use database {safe_dsn(dsn)}: {text}")
    return DatabaseUnavailableError(f"no connection to {safe_dsn(dsn)}: {text}")


def lost(error: BaseException) -> DatabaseUnavailableError | None:
    """The error for a connection that was lost during a call, or None if it was not.

    Not repeated by us: even after "terminating connection due to administrator command" the statement may have been
    committed, and an enqueue done twice is two jobs. Whoever calls knows whether that matters.
    """
    if meaning(error) is not Meaning.RECONNECT:
        return None
    return DatabaseUnavailableError(
        f"the connection was lost during the call, which may or may not have been done: {error}"
    )


def safe_dsn(dsn: str) -> str:
    """The DSN with its password masked, fit for messages."""
    try:
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.Error:
        return "(unreadable DSN)"
    if "password" in parts:
        parts["password"] = "***"
    return psycopg.conninfo.make_conninfo("", **parts)
