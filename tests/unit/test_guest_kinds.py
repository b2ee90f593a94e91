"""Who is recognised as what, what the others are told, and how placeholders are rewritten. No database."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any
from unittest.mock import Mock

import asyncpg
import psycopg
import psycopg_pool
import pytest
import sqlalchemy as sa
from psycopg import AsyncConnection, Connection
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_async

from skiplock.core.errors import UnsupportedConnectionError
from skiplock.store.call import Call
from skiplock.store.guests import _percent_sql, arun_on, is_async_connection, kind_of, run_on
from tests.support import django_setup

CALL = Call("SELECT 1", (), list)
DSN = "postgresql://nobody@localhost/nothing"


def bare(cls: type) -> Any:
    """An instance that never connected: only its class matters here."""
    return cls.__new__(cls)


def django_thing(path: str) -> Callable[[], Any]:
    def thing() -> Any:
        django_setup.configure()
        import django.core.cache
        import django.db
        import django.db.transaction

        return eval(path, {"django": django})

    return thing


@contextlib.contextmanager
def a_connection() -> Iterator[None]:
    yield


@contextlib.asynccontextmanager
async def an_async_connection() -> AsyncIterator[None]:
    yield


async def get_connection() -> None: ...


# psycopg's pools with open=False start no threads and open no connection.
WRONG: list[tuple[str, Callable[[], Any], str, str]] = [
    ("dsn", lambda: DSN, "a str", "A DSN or a name is no connection; pass a psycopg 3 Connection"),
    ("none", lambda: None, "a NoneType", "Pass a psycopg 3 Connection"),
    ("sqlite", lambda: bare(sqlite3.Connection), "a sqlite3.Connection", "Pass a psycopg 3 Connection"),
    ("own", lambda: bare(type("Mine", (), {})), "test_guest_kinds.Mine", "or a Django connection"),
    ("cursor", lambda: Mock(spec=psycopg.Cursor), "a psycopg Cursor", "`cursor.connection`"),
    ("server cursor", lambda: Mock(spec=psycopg.ServerCursor), "a psycopg Cursor", "`cursor.connection`"),
    ("async cursor", lambda: Mock(spec=psycopg.AsyncCursor), "a psycopg AsyncCursor", "`cursor.connection`"),
    ("transaction", lambda: bare(psycopg.Transaction), "a psycopg Transaction", "`transaction.connection`"),
    ("pool", lambda: psycopg_pool.ConnectionPool(DSN, open=False), "a psycopg_pool ConnectionPool",
     "Pass a connection: `with pool.connection() as connection`"),
    ("null pool", lambda: psycopg_pool.NullConnectionPool(DSN, open=False), "a psycopg_pool ConnectionPool",
     "Pass a connection: `with pool.connection() as connection`"),
    ("async pool", lambda: bare(psycopg_pool.AsyncConnectionPool), "a psycopg_pool AsyncConnectionPool",
     "Pass a connection: `async with pool.connection() as connection`"),
    ("asyncpg pool", lambda: bare(asyncpg.Pool), "an asyncpg Pool",
     "Pass a connection: `async with pool.acquire() as connection`"),
    ("acquire", lambda: bare(asyncpg.pool.PoolAcquireContext), "an asyncpg pool.acquire() that was not entered",
     "Pass a connection: `async with pool.acquire() as connection`"),
    ("asyncpg transaction", lambda: bare(asyncpg.transaction.Transaction), "an asyncpg Transaction", "opened on"),
    ("engine", lambda: sa.create_engine("postgresql+psycopg://"), "a SQLAlchemy Engine",
     "Pass a connection: `with engine.begin() as connection`"),
    ("async engine", lambda: sa_async.create_async_engine("postgresql+asyncpg://"), "a SQLAlchemy AsyncEngine",
     "Pass a connection: `async with engine.begin() as connection`"),
    ("sessionmaker", orm.sessionmaker, "a SQLAlchemy sessionmaker", "`with sessionmaker.begin() as session`"),
    ("async sessionmaker", sa_async.async_sessionmaker, "a SQLAlchemy async_sessionmaker",
     "`async with sessionmaker.begin() as session`"),
    ("root transaction", lambda: bare(sa.RootTransaction), "a SQLAlchemy Transaction", "it was begun on"),
    ("session transaction", lambda: bare(orm.SessionTransaction), "a SQLAlchemy SessionTransaction", "begun on"),
    ("async transaction", lambda: bare(sa_async.AsyncTransaction), "a SQLAlchemy AsyncTransaction", "begun on"),
    ("raw connection", lambda: bare(sa.pool.base._ConnectionFairy), "a connection of SQLAlchemy's pool", "taken from"),
    ("connections", django_thing("django.db.connections"), "Django `connections`", '`connections["default"]`'),
    ("atomic", django_thing("django.db.transaction.atomic()"), "Django `transaction.atomic()`",
     "`from django.db import connection`"),
    ("context manager", a_connection, "a context manager that was not entered", "`with ... as connection`"),
    ("async context manager", an_async_connection, "an async context manager that was not entered",
     "`async with ... as connection`"),
]  # fmt: skip


@pytest.mark.parametrize(("make", "what", "way_out"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_what_is_no_connection_is_refused_with_a_way_out(make: Callable[[], Any], what: str, way_out: str) -> None:
    thing = make()
    for run in (run_on, lambda *args: asyncio.run(arun_on(*args))):
        with pytest.raises(UnsupportedConnectionError) as caught:
            run(thing, CALL)
        assert what in str(caught.value)
        assert way_out in str(caught.value)


@pytest.mark.parametrize("cls", [asyncpg.Connection, AsyncConnection, sa_async.AsyncSession, sa_async.AsyncConnection])
def test_async_connections_are_known(cls: type) -> None:
    assert is_async_connection(bare_quiet(cls))


@pytest.mark.parametrize("cls", [orm.Session, sa.Connection, sa_async.AsyncEngine, asyncpg.Pool, dict])
def test_everything_else_is_left_to_the_sync_call(cls: type) -> None:
    assert not is_async_connection(bare(cls))


def test_a_coroutine_is_told_to_be_awaited() -> None:
    coroutine = get_connection()
    with pytest.raises(UnsupportedConnectionError, match=r"a coroutine that was not awaited\. Await it first"):
        run_on(coroutine, CALL)
    coroutine.close()


def test_a_psycopg2_connection_is_told_what_is_supported() -> None:
    foreign = type("connection", (), {"__module__": "psycopg2.extensions"})()
    with pytest.raises(UnsupportedConnectionError, match=r"a psycopg2 connection\. Psycopg2 itself .*psycopg 3"):
        run_on(foreign, CALL)


def test_other_databases_are_refused() -> None:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection, orm.Session(engine) as session:
        for guest in (connection, session):
            with pytest.raises(UnsupportedConnectionError, match="a SQLAlchemy connection to 'sqlite'"):
                run_on(guest, CALL)
    engine.dispose()


def test_other_databases_of_django_are_refused() -> None:
    django_setup.configure()
    from django.db.backends.sqlite3.base import DatabaseWrapper

    sqlite = DatabaseWrapper({"NAME": ":memory:", "OPTIONS": {}, "TIME_ZONE": None})
    with pytest.raises(UnsupportedConnectionError, match="a Django connection to 'sqlite'"):
        run_on(sqlite, CALL)
    cache = django_thing("django.core.cache.cache")()
    with pytest.raises(UnsupportedConnectionError, match="something that is no database"):
        run_on(cache, CALL)


def test_an_unknown_driver_below_sqlalchemy_is_named() -> None:
    connection = Mock(spec=sa.Connection)
    connection.dialect = Mock(paramstyle="qmark", driver="odd")
    connection.dialect.name = "postgresql"
    with pytest.raises(UnsupportedConnectionError, match="driver 'odd', whose parameter style 'qmark'"):
        run_on(connection, CALL)


@pytest.mark.parametrize(
    ("cls", "name"),
    [
        (Connection, "psycopg Connection"),
        (type("Mine", (Connection,), {}), "psycopg Connection"),
        (AsyncConnection, "psycopg AsyncConnection"),
        (asyncpg.Connection, "asyncpg Connection"),
        (asyncpg.pool.PoolConnectionProxy, "asyncpg Connection"),
        (sa.Connection, "SQLAlchemy Connection"),
        (orm.Session, "SQLAlchemy Session"),
        (type("Mine", (orm.Session,), {}), "SQLAlchemy Session"),
        (orm.scoped_session, "SQLAlchemy scoped_session"),
        (sa_async.AsyncConnection, "SQLAlchemy AsyncConnection"),
        (sa_async.AsyncSession, "SQLAlchemy AsyncSession"),
        (sa_async.async_scoped_session, "SQLAlchemy async_scoped_session"),
        (sqlite3.Connection, "sqlite3.Connection"),
        (dict, "dict"),
    ],
)
def test_kinds_have_names(cls: type, name: str) -> None:
    class Traced:
        """What tracers put around a connection: another type that answers with the wrapped one's class."""

        __class__ = cls  # type: ignore[assignment]

    assert kind_of(Mock(spec=cls) if cls is Connection else bare_quiet(cls)) == name
    if name not in ("dict", "sqlite3.Connection"):
        assert kind_of(Traced()) == name


def bare_quiet(cls: type) -> Any:
    # A psycopg connection that was never initialised cannot be finalised in silence.
    quiet = {"__del__": lambda self: None, "__module__": cls.__module__, "__qualname__": cls.__qualname__}
    return bare(type(cls.__name__, (cls,), quiet) if hasattr(cls, "__del__") else cls)


@pytest.mark.parametrize(
    ("sql", "rewritten", "order"),
    [
        ("SELECT 1", "SELECT 1", ()),
        ("f($1, $2)", "f(%s, %s)", (0, 1)),
        ("f($2, $1, $2::text[], $10)", "f(%s, %s, %s::text[], %s)", (1, 0, 1, 9)),
        ("a % $1 LIKE '%'", "a %% %s LIKE '%%'", (0,)),
        ("'$1' || $1", "'$1' || %s", (0,)),
        ("'it''s $1' || $1", "'it''s $1' || %s", (0,)),
        (r"E'\'$1' || $1", r"E'\'$1' || %s", (0,)),
        (r"'\' || $1", r"'\' || %s", (0,)),
        ('"odd $1 % name" = $1', '"odd $1 %% name" = %s', (0,)),
        ("-- it's $1 and 5 %\n$1", "-- it's $1 and 5 %%\n%s", (0,)),
        ("/* don't\n $1 */ $1", "/* don't\n $1 */ %s", (0,)),
        ("$$ $1 it's % $$ || $1", "$$ $1 it's %% $$ || %s", (0,)),
        ("$a$ $1 $$ $b$ $a$ || $1", "$a$ $1 $$ $b$ $a$ || %s", (0,)),
        ("column$1 = $1", "column$1 = %s", (0,)),
        ("a - $1 - $2 / $3", "a - %s - %s / %s", (0, 1, 2)),
        ("$1$2", "%s$2", (0,)),
    ],
)
def test_placeholders_are_rewritten_outside_of_text(sql: str, rewritten: str, order: tuple[int, ...]) -> None:
    assert _percent_sql(sql) == (rewritten, order)
