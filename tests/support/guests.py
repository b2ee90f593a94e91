"""Every kind of connection a caller may own, each opened on a DSN as a `Guest`. For tests of `connection=`.

@pytest.mark.parametrize("kind", SYNC_GUESTS)             # likewise ASYNC_GUESTS, with `async with` and awaits
def test_it(dsn: str, kind: SyncKind) -> None:
    with kind(dsn) as guest:
        ...                                               # in a transaction until guest.commit() or guest.rollback()
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg
import psycopg_pool
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_async

from tests.support.django_setup import django_on


@dataclass(frozen=True)
class Guest:
    """`commit` and `rollback` are the connection's own, awaitable for async kinds; `state` is what must not change."""

    connection: Any
    commit: Callable[[], Any]
    rollback: Callable[[], Any]
    state: Callable[[], object] = lambda: None


SyncKind = Callable[[str], AbstractContextManager[Guest]]
AsyncKind = Callable[[str], AbstractAsyncContextManager[Guest]]


@contextmanager
def engine_on(dsn: str, driver: str = "psycopg", **options: Any) -> Iterator[sa.Engine]:
    engine = sa.create_engine(_url(dsn, driver), **options)
    try:
        yield engine
    finally:
        engine.dispose()


@asynccontextmanager
async def async_engine_on(dsn: str, driver: str = "asyncpg", **options: Any) -> AsyncIterator[sa_async.AsyncEngine]:
    engine = sa_async.create_async_engine(_url(dsn, driver), **options)
    try:
        yield engine
    finally:
        await engine.dispose()


def _url(dsn: str, driver: str) -> sa.URL:
    return sa.make_url(dsn).set(drivername=f"postgresql+{driver}")


# --- sync ------------------------------------------------------------------------------------------------------------


@contextmanager
def psycopg_connection(dsn: str) -> Iterator[Guest]:
    with psycopg.connect(dsn, row_factory=dict_row, cursor_factory=psycopg.ClientCursor) as mine:
        yield Guest(mine, mine.commit, mine.rollback, lambda: _psycopg_state(mine))


@contextmanager
def psycopg_subclass(dsn: str) -> Iterator[Guest]:
    class Mine(psycopg.Connection[Any]):
        pass

    with Mine.connect(dsn) as mine:
        yield Guest(mine, mine.commit, mine.rollback, lambda: _psycopg_state(mine))


@contextmanager
def psycopg_pooled(dsn: str) -> Iterator[Guest]:
    with psycopg_pool.ConnectionPool(dsn, min_size=1, open=True) as pool, pool.connection() as mine:
        yield Guest(mine, mine.commit, mine.rollback, lambda: _psycopg_state(mine))


def _psycopg_state(mine: Any) -> object:
    return mine.row_factory, mine.cursor_factory, mine.autocommit, mine.prepare_threshold, mine.isolation_level


@contextmanager
def sqlalchemy_connection(dsn: str) -> Iterator[Guest]:
    with engine_on(dsn) as engine, engine.connect() as mine:
        yield Guest(
            mine, mine.commit, mine.rollback, lambda: (mine.get_execution_options(), mine.get_isolation_level())
        )


@contextmanager
def sqlalchemy_streaming(dsn: str) -> Iterator[Guest]:
    """Options an application may set for its own big reads."""
    options = {"stream_results": True, "no_parameters": True}
    with engine_on(dsn, execution_options=options) as engine, engine.connect() as mine:
        mine.execution_options(yield_per=3)
        yield Guest(mine, mine.commit, mine.rollback, mine.get_execution_options)


@contextmanager
def sqlalchemy_session(dsn: str) -> Iterator[Guest]:
    with engine_on(dsn, json_deserializer=_not_wanted) as engine, orm.Session(engine) as mine:
        yield Guest(mine, mine.commit, mine.rollback, lambda: (mine.autoflush, mine.expire_on_commit))


@contextmanager
def sqlalchemy_scoped_session(dsn: str) -> Iterator[Guest]:
    with engine_on(dsn) as engine:
        mine = orm.scoped_session(orm.sessionmaker(engine))
        yield Guest(mine, mine.commit, mine.rollback, lambda: mine.autoflush)
        mine.remove()


@contextmanager
def sqlalchemy_psycopg2(dsn: str) -> Iterator[Guest]:
    with engine_on(dsn, "psycopg2") as engine, engine.connect() as mine:
        yield Guest(mine, mine.commit, mine.rollback, mine.get_execution_options)


@contextmanager
def django_proxy(dsn: str, **changed: Any) -> Iterator[Guest]:
    with django_on(dsn, **changed) as mine:
        mine.set_autocommit(False)
        yield Guest(mine, mine.commit, mine.rollback, lambda: (mine.autocommit, mine.in_atomic_block))


@contextmanager
def django_wrapper(dsn: str) -> Iterator[Guest]:
    with django_proxy(dsn, OPTIONS={"server_side_binding": True}) as proxy:
        from django.db import connections

        yield Guest(connections["default"], proxy.commit, proxy.rollback, proxy.state)


SYNC_GUESTS: list[SyncKind] = [
    psycopg_connection,
    psycopg_subclass,
    psycopg_pooled,
    sqlalchemy_connection,
    sqlalchemy_streaming,
    sqlalchemy_session,
    sqlalchemy_scoped_session,
    sqlalchemy_psycopg2,
    django_proxy,
    django_wrapper,
]


# --- async -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def psycopg_async(dsn: str) -> AsyncIterator[Guest]:
    async with await psycopg.AsyncConnection.connect(dsn, row_factory=dict_row) as mine:
        yield Guest(mine, mine.commit, mine.rollback, lambda: _psycopg_state(mine))


@asynccontextmanager
async def psycopg_async_pooled(dsn: str) -> AsyncIterator[Guest]:
    async with psycopg_pool.AsyncConnectionPool(dsn, min_size=1, open=False) as pool, pool.connection() as mine:
        yield Guest(mine, mine.commit, mine.rollback, lambda: _psycopg_state(mine))


@asynccontextmanager
async def asyncpg_connection(dsn: str) -> AsyncIterator[Guest]:
    async with asyncpg_on(dsn, record_class=_Mangled) as mine:
        await mine.set_type_codec("json", schema="pg_catalog", encoder=str, decoder=_not_wanted)
        transaction = mine.transaction()
        await transaction.start()
        yield Guest(mine, transaction.commit, transaction.rollback, mine.is_in_transaction)


@asynccontextmanager
async def asyncpg_pooled(dsn: str) -> AsyncIterator[Guest]:
    async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool, pool.acquire() as mine:
        transaction = mine.transaction()
        await transaction.start()
        yield Guest(mine, transaction.commit, transaction.rollback, mine.is_in_transaction)


@asynccontextmanager
async def asyncpg_on(dsn: str, **options: Any) -> AsyncIterator[Any]:
    mine = await asyncpg.connect(dsn, **options)
    try:
        yield mine
    finally:
        await mine.close()


class _Mangled(asyncpg.Record):  # type: ignore[misc]
    """A record class of the application's that iterates in its own way."""

    def __iter__(self) -> Any:
        return iter(self.keys())


@asynccontextmanager
async def sqlalchemy_async_psycopg(dsn: str) -> AsyncIterator[Guest]:
    async with async_engine_on(dsn, "psycopg") as engine, engine.connect() as mine:
        yield Guest(mine, mine.commit, mine.rollback, mine.sync_connection.get_execution_options)


@asynccontextmanager
async def sqlalchemy_async_asyncpg(dsn: str) -> AsyncIterator[Guest]:
    async with async_engine_on(dsn) as engine, engine.connect() as mine:
        yield Guest(mine, mine.commit, mine.rollback, mine.sync_connection.get_execution_options)


@asynccontextmanager
async def sqlalchemy_async_streaming(dsn: str) -> AsyncIterator[Guest]:
    options = {"stream_results": True, "yield_per": 3}
    async with async_engine_on(dsn, execution_options=options) as engine, engine.connect() as mine:
        yield Guest(mine, mine.commit, mine.rollback, mine.sync_connection.get_execution_options)


@asynccontextmanager
async def sqlalchemy_async_session_psycopg(dsn: str) -> AsyncIterator[Guest]:
    async with async_engine_on(dsn, "psycopg") as engine, sa_async.AsyncSession(engine) as mine:
        yield Guest(mine, mine.commit, mine.rollback, lambda: mine.autoflush)


@asynccontextmanager
async def sqlalchemy_async_session_asyncpg(dsn: str) -> AsyncIterator[Guest]:
    async with async_engine_on(dsn) as engine, sa_async.AsyncSession(engine) as mine:
        yield Guest(mine, mine.commit, mine.rollback, lambda: mine.autoflush)


@asynccontextmanager
async def sqlalchemy_async_scoped_session(dsn: str) -> AsyncIterator[Guest]:
    async with async_engine_on(dsn) as engine:
        mine = sa_async.async_scoped_session(sa_async.async_sessionmaker(engine), scopefunc=asyncio.current_task)
        yield Guest(mine, mine.commit, mine.rollback)
        await mine.remove()


ASYNC_GUESTS: list[AsyncKind] = [
    psycopg_async,
    psycopg_async_pooled,
    asyncpg_connection,
    asyncpg_pooled,
    sqlalchemy_async_psycopg,
    sqlalchemy_async_asyncpg,
    sqlalchemy_async_streaming,
    sqlalchemy_async_session_psycopg,
    sqlalchemy_async_session_asyncpg,
    sqlalchemy_async_scoped_session,
]


def _not_wanted(text: str) -> Any:
    pytest.fail(f"skiplock's answers are not to go through the application's JSON loaders: {text}")
