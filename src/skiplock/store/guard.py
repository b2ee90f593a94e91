"""The one place that decides what a database error means. For users: docs/reference/errors.md.

| what happened                                                 | meaning       | what the worker does                     |
|---------------------------------------------------------------|---------------|------------------------------------------|
| 40001, 40P01, 55P03, 57014 (serialization, deadlock, …)       | again         | repeats the statement after a short wait |
| 08xxx, 53xxx, 57P0x, 58xxx, XXxxx, 25006, no SQLSTATE         | reconnect     | drops the connection, backs off, retries |
| 3F000, 42P01, 42883, 42703 (schema, table, function)          | schema        | backs off, says: run `skiplock db migrate` |
| 28xxx, 3D000 (password, no such database)                     | configuration | at start: stops; later: as reconnect     |
| SK001 to SK006                                                | ours          | an answer of our own functions           |
| anything else                                                 | bug           | logs it, backs off, retries              |

A call in a transaction of its own (`again.py`) is repeated by whoever makes it only after 40001, 40P01, 55P03 and 25006:
nothing has happened then.
"""

from __future__ import annotations

import re
from enum import Enum

import psycopg

from skiplock.core.errors import (
    ConfigurationError,
    DatabaseUnavailableError,
    LeaseLostError,
    OptionError,
    QueueFullError,
    SchemaError,
    SkiplockError,
    UniqueConflictError,
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
READ_ONLY = "25006"
# Not 57014: whoever set a statement_timeout, or cancelled the statement, does not want it twice.
_REPEATED = {"40001", "40P01", "55P03", READ_ONLY}
_SEVERITY_ERROR = "ERROR"

# What no repetition cures, as a server says it to whoever connects: libpq hands on no SQLSTATE then.
_REFUSALS = ("does not exist", "authentication failed", "no password supplied", "no pg_hba.conf entry")

# As produce/depth.sql says it.
_FULL = re.compile(r"queue (.+) is full: it holds (\d+) jobs, and (\d+) more would pass its bound of (\d+)")

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
    text = _first_line(error)
    if code == "SK001":
        return OptionError(text)
    if code == "SK004":
        return LeaseLostError(text)
    if code == "SK005":
        return UniqueConflictError(text)
    if code == "SK006":
        return _queue_full(text)
    if code in _SCHEMA:  # only our own statements come here, whatever the schema is called
        return SchemaError(
            f"{text}: the database has no skiplock schema, or an older one; run `skiplock db migrate` "
            "and check SKIPLOCK_SCHEMA if the schema has another name"
        )
    return None


def _queue_full(text: str) -> QueueFullError:
    found = _FULL.search(text)
    if found is None:
        return QueueFullError(text)
    depth, wanted, bound = (int(number) for number in found.groups()[1:])
    return QueueFullError(text, queue=found[1], depth=depth, wanted=wanted, bound=bound)


def unavailable(error: BaseException, dsn: str) -> SkiplockError:
    """The error for "no connection could be had", without the password."""
    text = " ".join(str(error).split())
    if sqlstate(error) == "3D000" or any(refusal in text for refusal in _REFUSALS):
        return ConfigurationError(f"cannot use database {safe_dsn(dsn)}: {text}")
    return DatabaseUnavailableError(f"no connection to {safe_dsn(dsn)}: {text}")


def is_repeated(error: BaseException) -> bool:
    """Whether a call in a transaction of its own may be made again at once: it was undone, and another try may do."""
    return sqlstate(error) in _REPEATED


def failed(error: BaseException) -> DatabaseUnavailableError | None:
    """The error for a call that the database did not do for now, or during which the connection was lost; None: neither.

    After a lost connection it is not repeated by us: even after "terminating connection due to administrator command" the
    statement may have been committed, and an enqueue done twice is two jobs. Whoever calls knows whether that matters.
    """
    kind = meaning(error)
    if kind not in (Meaning.AGAIN, Meaning.RECONNECT):
        return None
    if kind is Meaning.AGAIN or _severity(error) == _SEVERITY_ERROR:
        why = (
            "takes no writes (a standby, or default_transaction_read_only is on)" if is_read_only(error) else "refused"
        )
        return DatabaseUnavailableError(f"the database {why}, and nothing was done: {_first_line(error)}")
    return DatabaseUnavailableError(
        f"the connection was lost during the call, which may or may not have been done: {error}"
    )


def is_too_much(error: BaseException) -> bool:
    """Whether a smaller statement may succeed: cancelled by a statement_timeout, or out of memory."""
    return sqlstate(error) in ("57014", "53200")


def is_read_only(error: BaseException) -> bool:
    """Whether the server takes no writes: after a failover, another one does."""
    return sqlstate(error) == READ_ONLY


def _severity(error: BaseException) -> str | None:
    """`ERROR`: the statement was rolled back, and the session goes on. None: nobody said."""
    return error.diag.severity_nonlocalized if isinstance(error, psycopg.Error) else None


def _first_line(error: BaseException) -> str:
    return str(error).strip().split("\n", 1)[0]


def safe_dsn(dsn: str) -> str:
    """The DSN with its password masked, fit for messages."""
    try:
        parts = psycopg.conninfo.conninfo_to_dict(dsn)
    except psycopg.Error:
        return "(unreadable DSN)"
    if "password" in parts:
        parts["password"] = "***"
    return psycopg.conninfo.make_conninfo("", **parts)
