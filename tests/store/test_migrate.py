"""Migrations: once, by one of many, under any name, and found out when someone changed what they made."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from skiplock import ConfigurationError, SchemaError, Skiplock
from skiplock.store.migrate import migrate, plan, restore, script, status, verify
from skiplock.store.schema import migrations
from tests.support.catalog import contents, run
from tests.support.workers import running_worker, settled

ALL = [*(m.name for m in migrations()), "functions"]
NAMES = ["Ünï-case", "select", "two words", "50%", "x" * 40, "ü" * 20]
each_name = pytest.mark.parametrize("name", NAMES)


# --- once -------------------------------------------------------------------------------------------------------------


def test_a_fresh_database(empty_dsn: str) -> None:
    assert verify(empty_dsn) == ["schema skiplock: not installed; run `skiplock db migrate`"]
    assert [step.name for step in plan(empty_dsn)] == ALL
    assert status(empty_dsn).pending == tuple(ALL)
    assert run(empty_dsn, "SELECT to_regnamespace('skiplock')") == [(None,)], "looking changes nothing"

    assert migrate(empty_dsn) == ALL

    assert verify(empty_dsn) == []
    assert plan(empty_dsn) == []
    found = status(empty_dsn)
    assert (found.schema, set(found.applied), found.pending, found.unknown) == ("skiplock", set(ALL), (), ())


def test_twice_does_nothing_the_second_time(fresh_dsn: str) -> None:
    before = contents(fresh_dsn), run(fresh_dsn, "SELECT * FROM skiplock.migrations ORDER BY name")
    assert migrate(fresh_dsn) == []
    assert (contents(fresh_dsn), run(fresh_dsn, "SELECT * FROM skiplock.migrations ORDER BY name")) == before


def test_of_many_migrators_at_once_one_works(empty_dsn: str) -> None:
    with ThreadPoolExecutor(5) as threads:
        done = list(threads.map(lambda _: migrate(empty_dsn), range(5)))
    assert sorted(done) == [[]] * 4 + [ALL]
    assert verify(empty_dsn) == []


def test_a_failure_leaves_everything_as_it_was(empty_dsn: str) -> None:
    """A table in the way of the last thing the first migration makes."""
    run(empty_dsn, "CREATE SCHEMA skiplock")
    run(empty_dsn, "CREATE TABLE skiplock.duties ()")
    with pytest.raises(psycopg.errors.DuplicateTable):
        migrate(empty_dsn)
    assert run(empty_dsn, "SELECT relname FROM pg_class WHERE relnamespace = 'skiplock'::regnamespace") == [("duties",)]


def test_a_schema_that_is_there_already(empty_dsn: str) -> None:
    run(empty_dsn, "CREATE SCHEMA skiplock")
    assert migrate(empty_dsn) == ALL


def test_the_jobs_are_kept_when_the_functions_change(fresh_dsn: str) -> None:
    [(job,)] = run(fresh_dsn, "SELECT skiplock.enqueue('t')")
    run(fresh_dsn, "UPDATE skiplock.migrations SET checksum = 'an older one' WHERE name = 'functions'")
    assert verify(fresh_dsn) == ["functions: another version is installed; run `skiplock db migrate`"]
    assert status(fresh_dsn).pending == ("functions",)
    assert migrate(fresh_dsn) == ["functions"]
    assert run(fresh_dsn, "SELECT id FROM skiplock.jobs") == [(job,)]


def test_rights_that_were_given_survive_an_upgrade(fresh_dsn: str) -> None:
    run(fresh_dsn, "GRANT EXECUTE ON FUNCTION skiplock.pause TO pg_monitor")
    restore(fresh_dsn)
    assert run(fresh_dsn, "SELECT has_function_privilege('pg_monitor', 'skiplock.pause(text)', 'EXECUTE')") == [(True,)]


def test_workers_do_not_stop_a_migration_and_it_does_not_stop_them(fresh_dsn: str) -> None:
    async def both() -> None:
        app = Skiplock(fresh_dsn)
        done: list[int] = []

        @app.task(name="t")
        async def work(n: int) -> None:
            done.append(n)

        async with running_worker(app) as worker:
            await app.aenqueue_many([work.job(n) for n in range(200)])
            assert await asyncio.to_thread(restore, fresh_dsn) == ["functions"]
            await app.aenqueue_many([work.job(n) for n in range(200, 400)])
            await worker.until(lambda: len(done) == 400)
        assert sorted(done) == list(range(400))

    asyncio.run(both())


# --- changed by others ------------------------------------------------------------------------------------------------

CHANGES = {
    "a body": "CREATE OR REPLACE FUNCTION skiplock.pause(queue text) RETURNS void LANGUAGE sql AS 'SELECT'",
    "a setting": "ALTER FUNCTION skiplock.claim SET enable_seqscan = on",
    "whose rights it runs with": "ALTER FUNCTION skiplock.enqueue SECURITY INVOKER",
    "one that is gone": "DROP FUNCTION skiplock.pause(text)",
}


@pytest.mark.parametrize("sql", CHANGES.values(), ids=CHANGES)
def test_a_function_changed_by_hand_is_found_and_restored(fresh_dsn: str, sql: str) -> None:
    before = contents(fresh_dsn)
    run(fresh_dsn, sql)
    [problem] = verify(fresh_dsn)
    assert "changed by hand" in problem
    assert migrate(fresh_dsn) == [], "migrate alone leaves it: it is recorded as current"
    assert restore(fresh_dsn) == ["functions"]
    assert verify(fresh_dsn) == []
    assert contents(fresh_dsn) == before


OLDER = "CREATE FUNCTION skiplock.promote(batch integer) RETURNS TABLE (moved integer, due_in float8) LANGUAGE sql AS 'SELECT 7, 7.0::float8'"


def test_a_function_whose_signature_has_grown_replaces_the_older_one(fresh_dsn: str) -> None:
    """As after an upgrade: `promote` once had one parameter only."""
    before = contents(fresh_dsn)
    run(fresh_dsn, "DROP FUNCTION skiplock.promote")
    run(fresh_dsn, OLDER)
    restore(fresh_dsn)
    assert run(fresh_dsn, "SELECT moved FROM skiplock.promote(1)") == [(0,)]
    assert contents(fresh_dsn) == before


def test_a_migration_with_another_text_is_found(fresh_dsn: str) -> None:
    run(fresh_dsn, "UPDATE skiplock.migrations SET checksum = 'odd' WHERE name = %s", ALL[0])
    [problem] = verify(fresh_dsn)
    assert ALL[0] in problem and "another text" in problem


def test_a_newer_schema_is_refused_and_left_alone(fresh_dsn: str) -> None:
    run(fresh_dsn, "INSERT INTO skiplock.migrations VALUES ('9999_future', 'x')")
    before = contents(fresh_dsn)
    for act in (migrate, plan):
        with pytest.raises(SchemaError, match="9999_future"):
            act(fresh_dsn)
    assert contents(fresh_dsn) == before
    assert status(fresh_dsn).unknown == ("9999_future",)


def test_restoring_a_newer_schema_is_refused_and_changes_nothing(fresh_dsn: str) -> None:
    run(fresh_dsn, "INSERT INTO skiplock.migrations VALUES ('9999_future', 'x')")
    before = run(fresh_dsn, "SELECT * FROM skiplock.migrations ORDER BY name")
    with pytest.raises(SchemaError, match="9999_future"):
        restore(fresh_dsn)
    assert run(fresh_dsn, "SELECT * FROM skiplock.migrations ORDER BY name") == before


# --- by other means ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["skiplock", "Ünï-case"])
def test_the_script_makes_the_same_as_migrate(empty_dsn: str, fresh_dsn: str, name: str) -> None:
    if name != "skiplock":
        migrate(fresh_dsn, name)
    run(empty_dsn, script(name))
    assert contents(empty_dsn, name) == contents(fresh_dsn, name)
    assert verify(empty_dsn, name) == []
    assert migrate(empty_dsn, name) == []
    record = f'SELECT name, checksum FROM "{name}".migrations ORDER BY name'
    assert run(empty_dsn, record) == run(fresh_dsn, record)


def test_the_plan_in_psql_makes_the_same_as_migrate(empty_dsn: str) -> None:
    run(empty_dsn, "CREATE SCHEMA skiplock")
    for step in plan(empty_dsn):
        run(empty_dsn, step.sql)
    assert run(empty_dsn, "SELECT skiplock.enqueue('t')") == [(1,)]


# --- other names ------------------------------------------------------------------------------------------------------


@each_name
async def test_the_whole_walk_under_another_name(empty_dsn: str, name: str) -> None:
    assert migrate(empty_dsn, name) == ALL
    assert verify(empty_dsn, name) == []
    app = Skiplock(empty_dsn, schema=name)
    tries: list[int] = []

    @app.task(name="t", max_attempts=2)
    async def work(n: int) -> int:
        tries.append(n)
        if n == 1 and tries.count(1) == 1:
            raise ValueError("once")
        return n

    async with running_worker(app, queues={"default": 5, "ödd %": 5}):
        now = await work.aenqueue(n=0)
        again = await work.using(queue="ödd %").aenqueue(n=1)
        later = await work.using(delay=0.05).aenqueue(n=2)
        never = await work.using(delay=3600).aenqueue(n=3)
        assert await never.acancel() == "scheduled"
        for job, n in ((now, 0), (again, 1), (later, 2)):
            record = await settled(job)
            assert (record.state, record.result) == ("completed", n)
    assert run(empty_dsn, "SELECT to_regnamespace('skiplock')") == [(None,)]


def test_two_schemas_in_one_database(fresh_dsn: str) -> None:
    migrate(fresh_dsn, "other")
    with Skiplock(fresh_dsn) as one, Skiplock(fresh_dsn, schema="other") as two:

        @one.task(name="t")
        def work() -> None: ...

        other = two.task(name="t")(work.spec.function)
        work.enqueue(), work.enqueue(), other.enqueue()
    assert run(fresh_dsn, 'SELECT (SELECT count(*) FROM skiplock.jobs), (SELECT count(*) FROM "other".jobs)') == [
        (2, 1)
    ]


@pytest.mark.parametrize("name", ["", "a.b", 'a"b', "a'b", "a\\b", "a$b", "a\nb", "x" * 41, "ü" * 21, 7, None])
def test_names_that_are_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="schema="):
        script(name)


# --- rights -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def owner_dsn(empty_dsn: str) -> Iterator[str]:
    """The same database for a role that is no superuser, and may create things in this database only."""
    [(database,)] = run(empty_dsn, "SELECT current_database()")
    role = f"owner_{database}"
    run(empty_dsn, f"CREATE ROLE {role} LOGIN")
    run(empty_dsn, f"GRANT CREATE ON DATABASE {database} TO {role}")
    yield empty_dsn.replace("//postgres@", f"//{role}@")
    run(empty_dsn, f"DROP OWNED BY {role}")
    run(empty_dsn, f"DROP ROLE {role}")


async def test_an_ordinary_role_with_CREATE_on_the_database_can_migrate_and_work(owner_dsn: str) -> None:
    assert run(owner_dsn, "SELECT usesuper FROM pg_user WHERE usename = current_user") == [(False,)]
    assert migrate(owner_dsn) == ALL
    assert verify(owner_dsn) == []
    app = Skiplock(owner_dsn)

    @app.task(name="t")
    async def work() -> int:
        return 7

    async with running_worker(app):
        assert (await settled(await work.aenqueue())).result == 7
    assert restore(owner_dsn) == ["functions"]


def test_nobody_else_may_call_the_functions(fresh_dsn: str) -> None:
    allowed = run(
        fresh_dsn,
        "SELECT proname FROM pg_proc WHERE pronamespace = 'skiplock'::regnamespace AND has_function_privilege('pg_monitor', oid, 'EXECUTE')",
    )
    assert allowed == []


async def test_an_app_without_its_schema_says_so(empty_dsn: str) -> None:
    app = Skiplock(empty_dsn)

    @app.task(name="t")
    async def work() -> None: ...

    with pytest.raises(SchemaError, match="skiplock db migrate"):
        await work.aenqueue()
    with pytest.raises(SchemaError, match="skiplock db migrate"):
        async with running_worker(app):
            pytest.fail("it has started")
    await app.aclose()
