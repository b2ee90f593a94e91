"""The caller's own connection, of whatever kind, recognised by type.

A call runs in whatever transaction the guest is in, and that is all that happens to the guest: nothing here commits,
rolls back, opens a connection of its own or changes a setting of the connection. A guest that is in no transaction
behaves as it does for the caller's own statements: psycopg and SQLAlchemy begin one that the caller has to commit;
asyncpg, Django and autocommit connections commit at once.

The libraries are recognised by the names of their classes, so none of them is imported before the caller did.

Errors of the driver (a closed connection, an aborted transaction, a failed statement) come through unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

from psycopg import AsyncConnection, AsyncRawCursor, Connection, RawCursor
from psycopg.pq import PipelineStatus
from psycopg.rows import tuple_row

from skiplock.core.errors import UnsupportedConnectionError
from skiplock.store.call import Call
from skiplock.store.guard import translate

T = TypeVar("T")
Rows = list[tuple[Any, ...]]


def run_on(connection: object, call: Call[T]) -> T:
    """Run `call` on a sync connection of the caller, inside the transaction that connection is in.

    Raises UnsupportedConnectionError if the connection is of an unknown or async kind, before anything is sent;
    an error of our own functions is raised as the SkiplockError it means;
    whatever else the driver raises comes through unchanged.

        with psycopg.connect(dsn) as connection:
            ids = run_on(connection, call)        # nobody else sees it before the block ends; rolled back with it
    """
    kind = _recognise(connection)
    if kind is None or kind.run is None:
        raise _refusal(connection, wanted="sync")
    try:
        return call.read(kind.run(connection, call))
    except Exception as error:
        raise translate(error) or error from error.__cause__


async def arun_on(connection: object, call: Call[T]) -> T:
    """Run `call` on an async connection of the caller, inside the transaction that connection is in.

    Raises UnsupportedConnectionError if the connection is of an unknown kind, or a sync one (it would block the event
    loop), before anything is sent; an error of our own functions is raised as the SkiplockError it means;
    whatever else the driver raises comes through unchanged.

        async with async_session.begin() as session:
            ids = await arun_on(session, call)    # nobody else sees it before the block ends; rolled back with it
    """
    kind = _recognise(connection)
    if kind is None or kind.arun is None:
        raise _refusal(connection, wanted="async")
    try:
        return call.read(await kind.arun(connection, call))
    except Exception as error:
        raise translate(error) or error from error.__cause__


def is_async_connection(connection: object) -> bool:
    """Whether `connection` belongs into `arun_on`. False for whatever neither of the two takes: both say so alike.

    Touches no database.

        is_async_connection(async_session)        # True
    """
    kind = _recognise(connection)
    return kind is not None and kind.arun is not None


def kind_of(connection: object) -> str:
    """What messages call this object: ``SQLAlchemy Session`` for a known one, else its class, ``sqlite3.Connection``.

    Touches no database.

        kind_of(session)                          # 'SQLAlchemy Session'
    """
    kind = _recognise(connection)
    if kind is not None:
        return kind.name
    return _names(type(connection))[0].removeprefix("builtins.")


# --- psycopg ---------------------------------------------------------------------------------------------------------


def _psycopg(connection: Connection[Any], call: Call[Any]) -> Rows:
    # A cursor of our own class: the caller's row factory and cursor factory stay as they are and do not matter to us.
    with RawCursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(call.sql, call.params)
        return cursor.fetchall() if _has_rows(cursor) else []


async def _psycopg_async(connection: AsyncConnection[Any], call: Call[Any]) -> Rows:
    async with AsyncRawCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(call.sql, call.params)
        return await cursor.fetchall() if _has_rows(cursor) else []


def _has_rows(cursor: RawCursor[Any] | AsyncRawCursor[Any]) -> bool:
    # In pipeline mode the statement is only queued by now; fetching is what waits for its answer.
    return cursor.description is not None or cursor.connection.pgconn.pipeline_status != PipelineStatus.OFF


# --- asyncpg ---------------------------------------------------------------------------------------------------------


async def _asyncpg(connection: Any, call: Call[Any]) -> Rows:
    import asyncpg  # the caller has it imported, or this connection would not be here

    # The plain record class, since a class of the caller's may give its fields in ways of its own.
    return _tuples(await connection.fetch(call.sql, *call.params, record_class=asyncpg.Record))


# --- SQLAlchemy ------------------------------------------------------------------------------------------------------

# What the caller set on the engine or connection for its own big reads must not turn our statement into a server-side
# cursor (PostgreSQL declares cursors for queries only), and our doubled percent signs always have to be undone.
_PLAIN = {"stream_results": False, "yield_per": None, "no_parameters": False}


def _sqlalchemy(connection: Any, call: Call[Any]) -> Rows:
    result = connection.exec_driver_sql(*_for_dialect(connection.dialect, call), execution_options=_PLAIN)
    return _tuples(result.fetchall()) if result.returns_rows else []


def _sqlalchemy_session(session: Any, call: Call[Any]) -> Rows:
    return _sqlalchemy(session.connection(), call)


async def _sqlalchemy_async(connection: Any, call: Call[Any]) -> Rows:
    result = await connection.exec_driver_sql(*_for_dialect(connection.dialect, call), execution_options=_PLAIN)
    return _tuples(result.fetchall()) if result.returns_rows else []


async def _sqlalchemy_async_session(session: Any, call: Call[Any]) -> Rows:
    return await _sqlalchemy_async(await session.connection(), call)


def _for_dialect(dialect: Any, call: Call[Any]) -> tuple[str, tuple[str | None, ...]]:
    if dialect.name != "postgresql":
        raise _not_postgresql("SQLAlchemy", dialect.name)
    if dialect.paramstyle == "numeric_dollar":
        return call.sql, call.params
    if dialect.paramstyle in ("pyformat", "format"):
        return _percent_style(call)
    raise UnsupportedConnectionError(
        f"connection= is a SQLAlchemy connection over the driver {dialect.driver!r}, whose parameter style "
        f"{dialect.paramstyle!r} skiplock does not know; use psycopg or asyncpg (postgresql+psycopg://…)."
    )


# --- Django ----------------------------------------------------------------------------------------------------------


def _django(connection: Any, call: Call[Any]) -> Rows:
    vendor = getattr(connection, "vendor", None)  # None: the same proxy class also stands for a cache
    if vendor != "postgresql":
        raise _not_postgresql("Django", vendor)
    with connection.cursor() as cursor:
        cursor.execute(*_percent_style(call))
        return _tuples(cursor.fetchall()) if cursor.description else []


# --- placeholders ----------------------------------------------------------------------------------------------------

# Quoted text and comments are stepped over: a `$1` in them is no placeholder, an apostrophe in a comment opens nothing.
_TOKEN = re.compile(
    r"""
      (?P<inert> (?<!\w)[eE]'(?:[^'\\]|\\.|'')*' | '[^']*' | "[^"]*" | --[^\n]* | /\*.*?\*/
               | (?<![\w$])\$(?P<tag>[^\W\d]\w*|)\$.*?\$(?P=tag)\$ )
    | (?<![\w$])\$(?P<number>[1-9]\d*)
    | %
    """,
    re.VERBOSE | re.DOTALL,
)


def _percent_style(call: Call[Any]) -> tuple[str, tuple[str | None, ...]]:
    sql, order = _percent_sql(call.sql)
    return sql, tuple([call.params[index] for index in order])


@lru_cache(maxsize=256)
def _percent_sql(sql: str) -> tuple[str, tuple[int, ...]]:
    """``$2, $1, $2`` as ``%s, %s, %s`` and the parameters to send: (1, 0, 1)."""
    order: list[int] = []

    def rewritten(match: re.Match[str]) -> str:
        if match["number"] is None:
            return match[0].replace("%", "%%")
        order.append(int(match["number"]) - 1)
        return "%s"

    return _TOKEN.sub(rewritten, sql), tuple(order)


def _tuples(rows: Iterable[Iterable[Any]]) -> Rows:
    return [tuple(row) for row in rows]


# --- who is who ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Kind:
    """A class we know. One that cannot be used has neither `run` nor `arun`, but `instead`: what to pass or do."""

    name: str
    run: Callable[[Any, Call[Any]], Rows] | None = None
    arun: Callable[[Any, Call[Any]], Awaitable[Rows]] | None = None
    instead: str = ""


_SYNC_IN_ASYNC = (
    "pass an async connection, or do the whole transaction in a sync function that calls `enqueue` "
    "(`await asyncio.to_thread(...)`)"
)
_DJANGO_IN_ASYNC = (
    "Django's transactions are sync and belong to one thread: put the whole `transaction.atomic()` block into a sync "
    "function that calls `enqueue`, and await it through `asgiref.sync.sync_to_async`"
)
_ASYNC_IN_SYNC = "use the async method: `await task.using(connection=...).aenqueue(...)`"

_GUESTS: dict[str, _Kind] = {
    "psycopg.Connection": _Kind("psycopg Connection", run=_psycopg, instead=_SYNC_IN_ASYNC),
    "psycopg.AsyncConnection": _Kind("psycopg AsyncConnection", arun=_psycopg_async, instead=_ASYNC_IN_SYNC),
    "asyncpg.connection.Connection": _Kind("asyncpg Connection", arun=_asyncpg, instead=_ASYNC_IN_SYNC),
    "asyncpg.pool.PoolConnectionProxy": _Kind("asyncpg Connection", arun=_asyncpg, instead=_ASYNC_IN_SYNC),
    "sqlalchemy.engine.base.Connection": _Kind("SQLAlchemy Connection", run=_sqlalchemy, instead=_SYNC_IN_ASYNC),
    "sqlalchemy.orm.session.Session": _Kind("SQLAlchemy Session", run=_sqlalchemy_session, instead=_SYNC_IN_ASYNC),
    "sqlalchemy.orm.scoping.scoped_session": _Kind(
        "SQLAlchemy scoped_session", run=_sqlalchemy_session, instead=_SYNC_IN_ASYNC
    ),
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": _Kind(
        "SQLAlchemy AsyncConnection", arun=_sqlalchemy_async, instead=_ASYNC_IN_SYNC
    ),
    "sqlalchemy.ext.asyncio.session.AsyncSession": _Kind(
        "SQLAlchemy AsyncSession", arun=_sqlalchemy_async_session, instead=_ASYNC_IN_SYNC
    ),
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": _Kind(
        "SQLAlchemy async_scoped_session", arun=_sqlalchemy_async_session, instead=_ASYNC_IN_SYNC
    ),
    "django.db.backends.base.base.BaseDatabaseWrapper": _Kind(
        "Django connection", run=_django, instead=_DJANGO_IN_ASYNC
    ),
    "django.utils.connection.ConnectionProxy": _Kind("Django connection", run=_django, instead=_DJANGO_IN_ASYNC),
}

_SUPPORTED = (
    "a psycopg 3 Connection or AsyncConnection, an asyncpg Connection, a SQLAlchemy Connection, Session, "
    "AsyncConnection or AsyncSession, or a Django connection"
)

# What people hold in their hands when they mean the connection next to it.
_MISTAKES: dict[str, _Kind] = {
    name: _Kind(called, instead=instead)
    for name, called, instead in (
        ("psycopg.Cursor", "psycopg Cursor", "pass its connection: `cursor.connection`"),
        ("psycopg.AsyncCursor", "psycopg AsyncCursor", "pass its connection: `cursor.connection`"),
        ("psycopg.Transaction", "psycopg Transaction", "pass its connection: `transaction.connection`"),
        ("psycopg.AsyncTransaction", "psycopg AsyncTransaction", "pass its connection: `transaction.connection`"),
        ("psycopg_pool.pool.ConnectionPool", "psycopg_pool ConnectionPool",
         "pass a connection: `with pool.connection() as connection`"),
        ("psycopg_pool.pool_async.AsyncConnectionPool", "psycopg_pool AsyncConnectionPool",
         "pass a connection: `async with pool.connection() as connection`"),
        ("psycopg2.extensions.connection", "psycopg2 connection",
         f"psycopg2 itself is not supported (through SQLAlchemy and Django it is); pass {_SUPPORTED}"),
        ("asyncpg.pool.Pool", "asyncpg Pool", "pass a connection: `async with pool.acquire() as connection`"),
        ("asyncpg.pool.PoolAcquireContext", "asyncpg pool.acquire() that was not entered",
         "pass a connection: `async with pool.acquire() as connection`"),
        ("asyncpg.transaction.Transaction", "asyncpg Transaction", "pass the connection it was opened on"),
        ("sqlalchemy.engine.base.Engine", "SQLAlchemy Engine",
         "pass a connection: `with engine.begin() as connection`"),
        ("sqlalchemy.ext.asyncio.engine.AsyncEngine", "SQLAlchemy AsyncEngine",
         "pass a connection: `async with engine.begin() as connection`"),
        ("sqlalchemy.orm.session.sessionmaker", "SQLAlchemy sessionmaker",
         "pass a session: `with sessionmaker.begin() as session`"),
        ("sqlalchemy.ext.asyncio.session.async_sessionmaker", "SQLAlchemy async_sessionmaker",
         "pass a session: `async with sessionmaker.begin() as session`"),
        ("sqlalchemy.engine.base.Transaction", "SQLAlchemy Transaction",
         "pass the Connection it was begun on"),
        ("sqlalchemy.orm.session.SessionTransaction", "SQLAlchemy SessionTransaction",
         "pass the Session it was begun on"),
        ("sqlalchemy.ext.asyncio.engine.AsyncTransaction", "SQLAlchemy AsyncTransaction",
         "pass the AsyncConnection it was begun on"),
        ("sqlalchemy.ext.asyncio.session.AsyncSessionTransaction", "SQLAlchemy AsyncSessionTransaction",
         "pass the AsyncSession it was begun on"),
        ("sqlalchemy.pool.base.PoolProxiedConnection", "connection of SQLAlchemy's pool",
         "pass the SQLAlchemy Connection or Session it was taken from"),
        ("django.db.utils.ConnectionHandler", "Django `connections`",
         "pass one of them: `connections[\"default\"]`"),
        ("django.db.transaction.Atomic", "Django `transaction.atomic()`",
         "pass the connection: `from django.db import connection`"),
        ("contextlib._GeneratorContextManager", "context manager that was not entered",
         "enter it: `with ... as connection`"),
        ("contextlib._AsyncGeneratorContextManager", "async context manager that was not entered",
         "enter it: `async with ... as connection`"),
        ("builtins.coroutine", "coroutine that was not awaited", "await it first"),
        ("builtins.str", "str", f"a DSN or a name is no connection; pass {_SUPPORTED}"),
    )
}  # fmt: skip

_KINDS = {**_GUESTS, **_MISTAKES}


def _recognise(connection: Any) -> _Kind | None:
    # `__class__` differs from the type for the transparent proxies that tracers put around connections.
    pretended = connection.__class__
    return _kind_of_class(type(connection)) or _kind_of_class(pretended)


def _find_kind(cls: type) -> _Kind | None:
    return next((_KINDS[name] for name in _names(cls) if name in _KINDS), None)


_kind_of_class: Callable[[type], _Kind | None] = lru_cache(maxsize=256)(_find_kind)


def _names(cls: type) -> Sequence[str]:
    return [f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__]


def _refusal(connection: object, *, wanted: str) -> UnsupportedConnectionError:
    return UnsupportedConnectionError(" ".join(_reasons(connection, wanted)))


def _reasons(connection: object, wanted: str) -> Iterator[str]:
    kind = _recognise(connection)
    yield f"connection= is {_a(kind_of(connection))}."
    if kind is None:
        yield f"Pass {_SUPPORTED}."
        return
    if kind.run or kind.arun:
        yield "It is async, this call is sync:" if wanted == "sync" else "It is sync and would block the event loop:"
        yield f"{kind.instead}."
    else:
        yield f"{kind.instead[0].upper()}{kind.instead[1:]}."


def _not_postgresql(library: str, vendor: str | None) -> UnsupportedConnectionError:
    what = f"connection to {vendor!r}" if vendor else "proxy for something that is no database"
    return UnsupportedConnectionError(
        f"connection= is a {library} {what}. skiplock's jobs live in PostgreSQL: pass a connection to that database."
    )


def _a(noun: str) -> str:
    return noun if noun.startswith("Django `") else f"{'an' if noun[0].lower() in 'aeiou' else 'a'} {noun}"
