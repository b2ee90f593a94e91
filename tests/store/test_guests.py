"""The caller's own connections: our statement lives and dies with their transaction, and leaves no trace on them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
from sqlalchemy import orm
from sqlalchemy.ext.asyncio import AsyncSession

from skiplock.core.errors import UnsupportedConnectionError
from skiplock.store.call import Call, nothing
from skiplock.store.guests import arun_on, run_on
from tests.support import connect
from tests.support.django_setup import django_on
from tests.support.guests import (
    ASYNC_GUESTS,
    SYNC_GUESTS,
    AsyncKind,
    SyncKind,
    async_engine_on,
    asyncpg_on,
    engine_on,
)

TEXTS = (
    "plain",
    "100 %, %s, %(a)s, %%",
    "$1 and $2",
    "it's \"quoted\" \\ \\' E'\\n'",
    ":name ::text ?",
    "ünïcode ☃ 🦀",
    "line\nbreak\ttab",
    "",
    None,
)

# One parameter twice and out of order, and everything a rewriter could stumble over.
SQL = r"""
-- it's a comment with $1, 100 % and an open "quote
INSERT INTO scratch (id, body, copy, rest) /* $2 isn't one % */
VALUES ($2::text::bigint, $1::text, $1::text || '', 'l''it $1 %s' || E'\' $1 %' || $q$ it's $1 % $q$)
RETURNING id, body, copy, rest, $2::text, '{"a": "$1"}'::jsonb::text
"""
REST = "l'it $1 %s" + "' $1 %" + " it's $1 % "
each_async = pytest.mark.parametrize("kind", ASYNC_GUESTS)
each_sync = pytest.mark.parametrize("kind", SYNC_GUESTS)


def insert(id: int, body: str | None = "x") -> Call[list[Any]]:
    return Call(SQL, (body, str(id)), list)


def expected(id: int, body: str | None = "x") -> list[tuple[Any, ...]]:
    return [(id, body, body, REST, str(id), '{"a": "$1"}')]


@pytest.fixture
def scratch(empty_dsn: str) -> Iterator[str]:
    with connect(empty_dsn) as connection:
        connection.execute("CREATE TABLE scratch (id bigint PRIMARY KEY, body text, copy text, rest text)")
    yield empty_dsn


def ids(dsn: str) -> list[int]:
    with connect(dsn) as connection:
        return [id for (id,) in connection.execute("SELECT id FROM scratch ORDER BY id").fetchall()]


@each_sync
def test_a_call_lives_with_the_commit_of_the_caller(scratch: str, kind: SyncKind) -> None:
    with kind(scratch) as guest:
        before = guest.state()
        assert run_on(guest.connection, insert(1)) == expected(1)
        assert ids(scratch) == []
        assert guest.state() == before
        guest.commit()
    assert ids(scratch) == [1]


@each_sync
def test_a_call_dies_with_the_rollback_of_the_caller(scratch: str, kind: SyncKind) -> None:
    with kind(scratch) as guest:
        run_on(guest.connection, insert(1))
        guest.rollback()
    assert ids(scratch) == []


@each_sync
def test_every_text_survives(scratch: str, kind: SyncKind) -> None:
    with kind(scratch) as guest:
        for id, text in enumerate(TEXTS):
            assert run_on(guest.connection, insert(id, text)) == expected(id, text)
        guest.commit()
    with connect(scratch) as look:
        assert [body for (body,) in look.execute("SELECT body FROM scratch ORDER BY id")] == list(TEXTS)


@each_sync
def test_calls_without_rows_or_parameters(scratch: str, kind: SyncKind) -> None:
    with kind(scratch) as guest:
        assert run_on(guest.connection, Call("INSERT INTO scratch (id) VALUES ($1::text::bigint)", ("7",), list)) == []
        assert run_on(guest.connection, Call("DELETE FROM scratch WHERE id = 8", (), nothing)) is None
        assert run_on(guest.connection, Call("SELECT '5 %', 2 % 2", (), list)) == [("5 %", 0)]
        assert all(
            type(row) is tuple for row in run_on(guest.connection, Call("SELECT id, body FROM scratch", (), list))
        )
        guest.commit()
    assert ids(scratch) == [7]


@each_async
async def test_an_async_call_lives_with_the_commit_of_the_caller(scratch: str, kind: AsyncKind) -> None:
    async with kind(scratch) as guest:
        before = guest.state()
        assert await arun_on(guest.connection, insert(1)) == expected(1)
        assert ids(scratch) == []
        assert guest.state() == before
        await guest.commit()
    assert ids(scratch) == [1]


@each_async
async def test_an_async_call_dies_with_the_rollback_of_the_caller(scratch: str, kind: AsyncKind) -> None:
    async with kind(scratch) as guest:
        await arun_on(guest.connection, insert(1))
        await guest.rollback()
    assert ids(scratch) == []


@each_async
async def test_every_text_survives_async(scratch: str, kind: AsyncKind) -> None:
    async with kind(scratch) as guest:
        for id, text in enumerate(TEXTS):
            assert await arun_on(guest.connection, insert(id, text)) == expected(id, text)
        await guest.commit()
    with connect(scratch) as look:
        assert [body for (body,) in look.execute("SELECT body FROM scratch ORDER BY id")] == list(TEXTS)


@each_async
async def test_async_calls_without_rows_or_parameters(scratch: str, kind: AsyncKind) -> None:
    async with kind(scratch) as guest:
        assert (
            await arun_on(guest.connection, Call("INSERT INTO scratch (id) VALUES ($1::text::bigint)", ("7",), list))
            == []
        )
        assert await arun_on(guest.connection, Call("SELECT '5 %', 2 % 2", (), list)) == [("5 %", 0)]
        rows = await arun_on(guest.connection, Call("SELECT id, body FROM scratch", (), list))
        assert all(type(row) is tuple for row in rows)
        await guest.commit()
    assert ids(scratch) == [7]


# --- what is special about one kind -----------------------------------------------------------------------------------


def test_a_savepoint_rolled_back_takes_only_its_own_call(scratch: str) -> None:
    with psycopg.connect(scratch) as guest:
        run_on(guest, insert(1))
        with guest.transaction(force_rollback=True):
            run_on(guest, insert(2))
    assert ids(scratch) == [1]


def test_autocommit_stays_autocommit(scratch: str) -> None:
    with psycopg.connect(scratch, autocommit=True) as guest:
        run_on(guest, insert(1))
        assert ids(scratch) == [1]
        assert guest.autocommit


def test_a_psycopg_pipeline_is_joined(scratch: str) -> None:
    with psycopg.connect(scratch) as guest, guest.pipeline():
        guest.execute("SELECT 1")
        assert run_on(guest, insert(1)) == expected(1)
    assert ids(scratch) == [1]


async def test_a_psycopg_pipeline_is_joined_async(scratch: str) -> None:
    async with await psycopg.AsyncConnection.connect(scratch) as guest, guest.pipeline():
        assert await arun_on(guest, insert(1)) == expected(1)
    assert ids(scratch) == [1]


def test_django_atomic_commits_and_rolls_back(scratch: str) -> None:
    with django_on(scratch) as guest:
        from django.db import transaction

        with transaction.atomic():
            run_on(guest, insert(1))
            assert ids(scratch) == []
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                run_on(guest, insert(2))
                raise ZeroDivisionError
        assert guest.get_autocommit()
        run_on(guest, insert(3))
        assert ids(scratch) == [1, 3]


async def test_a_session_inside_run_sync_is_a_sync_guest(scratch: str) -> None:
    async with async_engine_on(scratch) as engine, AsyncSession(engine) as session, session.begin():
        assert await session.run_sync(run_on, insert(1)) == expected(1)
        assert await (await session.connection()).run_sync(run_on, insert(2)) == expected(2)
    assert ids(scratch) == [1, 2]


def test_objects_of_the_session_and_jobs_share_one_transaction(scratch: str) -> None:
    class Base(orm.DeclarativeBase):
        pass

    class Scratch(Base):
        __tablename__ = "scratch"
        id: orm.Mapped[int] = orm.mapped_column(primary_key=True)

    with engine_on(scratch) as engine, orm.Session(engine) as session, session.begin():
        session.add(Scratch(id=1))
        run_on(session, insert(2))
        assert ids(scratch) == []
    assert ids(scratch) == [1, 2]


# --- the driver's errors are the caller's ----------------------------------------------------------------------------


def test_errors_of_the_driver_come_through(scratch: str) -> None:
    with psycopg.connect(scratch) as guest:
        run_on(guest, insert(1))
        with pytest.raises(psycopg.errors.UniqueViolation):
            run_on(guest, insert(1))
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            run_on(guest, insert(2))
    with pytest.raises(psycopg.OperationalError, match="closed"):
        run_on(guest, insert(3))
    assert ids(scratch) == []


async def test_errors_of_the_driver_come_through_async(scratch: str) -> None:
    async with asyncpg_on(scratch) as guest:
        with pytest.raises(asyncpg.UniqueViolationError):
            async with guest.transaction():
                await arun_on(guest, insert(1))
                await arun_on(guest, insert(1))
    with pytest.raises(asyncpg.InterfaceError, match="closed"):
        await arun_on(guest, insert(2))
    assert ids(scratch) == []


def test_errors_of_the_driver_come_through_django(scratch: str) -> None:
    with django_on(scratch) as guest:
        from django.db import IntegrityError, transaction

        with pytest.raises(IntegrityError), transaction.atomic():
            run_on(guest, insert(1))
            run_on(guest, insert(1))
        with transaction.atomic():
            transaction.set_rollback(True)
            with pytest.raises(transaction.TransactionManagementError):
                run_on(guest, insert(2))
    assert ids(scratch) == []


async def test_one_connection_driven_by_two_tasks_loses_nothing_silently(scratch: str) -> None:
    async with asyncpg_on(scratch) as guest:
        results = await asyncio.gather(*[arun_on(guest, insert(id)) for id in range(5)], return_exceptions=True)
    done = [row[0] for result in results if isinstance(result, list) for row in result]
    assert all(isinstance(result, list | asyncpg.InterfaceError) for result in results)
    assert ids(scratch) == sorted(done)

    async with await psycopg.AsyncConnection.connect(scratch) as other:
        await asyncio.gather(*[arun_on(other, insert(id)) for id in range(10, 15)])
    assert ids(scratch) == [*sorted(done), *range(10, 15)]


# --- the wrong side of a sync or async call ---------------------------------------------------------------------------


@each_async
async def test_an_async_connection_is_refused_by_a_sync_call(scratch: str, kind: AsyncKind) -> None:
    async with kind(scratch) as guest:
        with pytest.raises(UnsupportedConnectionError, match=r"It is async, this call is sync: .*aenqueue"):
            run_on(guest.connection, insert(1))
        await guest.rollback()
    assert ids(scratch) == []


@each_sync
def test_a_sync_connection_is_refused_by_an_async_call(scratch: str, kind: SyncKind) -> None:
    hint = "sync_to_async" if "django" in kind.__name__ else "to_thread"
    with kind(scratch) as guest:
        with pytest.raises(UnsupportedConnectionError, match=rf"would block the event loop: .*`enqueue`.*{hint}"):
            asyncio.run(arun_on(guest.connection, insert(1)))
        guest.rollback()
    assert ids(scratch) == []
