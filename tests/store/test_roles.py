"""The roles of docs/guides/roles.md, with exactly the rights that are written there; and after an upgrade.

Kinds: restricted roles (case 24, UPG-04), rights that were given survive an upgrade.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

import psycopg
import pytest

from skiplock import Backoff, JobContext, MigrationBlockedError, Skiplock
from skiplock.store.migrate import migrate, restore, verify
from tests.support import connect
from tests.support.catalog import run
from tests.support.fleets import ROOT
from tests.support.workers import running_worker, settled

GUIDE = (ROOT / "docs" / "guides" / "roles.md").read_text()
OWNER, OWNER_OF_SCHEMA, WORKER, PRODUCER = re.findall(r"```sql\n(.*?)```", GUIDE, re.DOTALL)


class Roles(NamedTuple):
    """One database, as each of the guide's roles connects to it."""

    superuser: str
    owner: str
    worker: str
    producer: str


def in_database(sql: str, database: str) -> str:
    """Roles belong to the whole server, and tests run beside each other: each has its own."""
    return re.sub(r"\bjobs_(\w+)", rf"jobs_\1_{database}", sql).replace("DATABASE app", f"DATABASE {database}")


@pytest.fixture
def roles(empty_dsn: str) -> Iterator[Roles]:
    database = urlsplit(empty_dsn).path[1:]
    names = [f"jobs_{role}_{database}" for role in ("owner", "worker", "producer")]
    run(empty_dsn, in_database(OWNER, database))
    for name in names[1:]:
        run(empty_dsn, f"CREATE ROLE {name} LOGIN")
    yield Roles(empty_dsn, *[empty_dsn.replace("//postgres@", f"//{name}@") for name in names])
    for name in names:
        run(empty_dsn, f"DROP OWNED BY {name} CASCADE")
        run(empty_dsn, f"DROP ROLE {name}")


def grant(roles: Roles) -> None:
    database = urlsplit(roles.owner).path[1:]
    with connect(roles.owner) as connection:
        connection.execute(in_database(WORKER, database).encode())
        connection.execute(in_database(PRODUCER, database).encode())


async def walk(roles: Roles) -> None:
    """Everything that jobs do, each by the role that does it."""
    app, producer = Skiplock(roles.worker), Skiplock(roles.producer)

    @app.task(name="t", max_attempts=2, backoff=Backoff(base=0, floor=0))
    async def work(ctx: JobContext) -> int:
        value = await ctx.once("step", lambda: ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError("the first time")
        async with ctx.transaction(result=value):
            return value

    made = producer.task(name="t", max_attempts=2)(work.spec.function)
    async with running_worker(app) as worker:
        [job, later] = [await made.aenqueue(), await made.using(delay=0.1).aenqueue()]
        for found in (job, later):
            assert (await settled(app.job(found.id))).result == 1
        never = await made.using(delay=3600).aenqueue()
        assert await app.job(never.id).acancel() == "scheduled"
        assert await app.job(never.id).aretry() == "cancelled"
        await settled(app.job(never.id))
        await app.job(never.id).adelete()
        assert not [name for name in ("claim_failed", "settle_failed", "beat_failed") if worker.heard(name)]
    await producer.aclose()


async def test_each_role_can_do_its_part(roles: Roles) -> None:
    assert run(roles.owner, "SELECT usesuper FROM pg_user WHERE usename = current_user") == [(False,)]
    migrate(roles.owner)
    grant(roles)
    await walk(roles)
    assert verify(roles.worker) == []


async def test_after_an_upgrade_that_brings_new_tables_and_functions(roles: Roles) -> None:
    """The rights were given before; the functions that a role may call have other parameters now.

    To see it fail: take the loop of GRANTs out of store/replace.py.
    """
    migrate(roles.owner)
    for name in ("lanes", "enqueue_many", "_tell_lanes"):
        run(roles.owner, f"DROP FUNCTION skiplock.{name}")
    older = "(tasks text[], args json[], queues text[], priorities integer[]) RETURNS bigint"
    run(roles.owner, f"CREATE FUNCTION skiplock.enqueue_many{older} LANGUAGE sql AS 'SELECT 1::bigint'")
    grant(roles)
    restore(roles.owner)
    await walk(roles)


def test_a_producer_can_do_nothing_else(roles: Roles) -> None:
    migrate(roles.owner)
    grant(roles)
    for sql in (
        "SELECT * FROM skiplock.jobs",
        "SELECT * FROM skiplock.find('{1}')",
        "SELECT skiplock.cancel(1)",
        "SELECT skiplock.now()",
        "DELETE FROM skiplock.jobs_ready",
        "CREATE TABLE skiplock.mine ()",
    ):
        with connect(roles.producer) as connection, pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute(sql.encode())
    assert run(roles.producer, "SELECT skiplock.enqueue('t')") == [(1,)]


def test_the_days_a_worker_makes_are_the_owners(roles: Roles) -> None:
    """To see it fail: take SECURITY DEFINER out of days.sql."""
    migrate(roles.owner)
    grant(roles)
    assert run(roles.worker, "SELECT skiplock.make_days(9)") == [(2,)]
    owners = "SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relname LIKE 'jobs_finished_2%'"
    [(owner,)] = run(roles.superuser, owners)
    assert owner.startswith("jobs_owner")


def test_who_is_in_the_way_as_far_as_the_owner_may_know(roles: Roles) -> None:
    """Without pg_read_all_stats: no state, no age. To see it fail: take `a.state IS NULL` out of _BLOCKERS in lockwait.py."""
    migrate(roles.owner)
    with psycopg.connect(roles.superuser, application_name="somebody's psql") as holder:
        holder.execute("LOCK TABLE skiplock.migrations IN EXCLUSIVE MODE")
        in_the_way = f'In the way: pid {holder.info.backend_pid} "somebody\'s psql"$'
        with pytest.raises(MigrationBlockedError, match=in_the_way):
            migrate(roles.owner, force=True, wait=0)


def test_an_owner_of_the_schema_only(empty_dsn: str) -> None:
    database = urlsplit(empty_dsn).path[1:]
    role = f"jobs_owner_{database}"
    run(empty_dsn, f"CREATE ROLE {role} LOGIN")
    try:
        run(empty_dsn, in_database(OWNER_OF_SCHEMA, database))
        dsn = empty_dsn.replace("//postgres@", f"//{role}@")
        assert migrate(dsn)[-1] == "functions"
        assert verify(dsn) == []
        assert restore(dsn) == ["functions"]
    finally:
        run(empty_dsn, f"DROP OWNED BY {role} CASCADE")
        run(empty_dsn, f"DROP ROLE {role}")


def test_a_role_with_CREATE_on_somebody_elses_schema(empty_dsn: str) -> None:
    """Functions of others in it are none of our business."""
    database = urlsplit(empty_dsn).path[1:]
    role = f"jobs_owner_{database}"
    run(empty_dsn, f"CREATE ROLE {role} LOGIN")
    try:
        run(empty_dsn, f"CREATE SCHEMA skiplock; GRANT USAGE, CREATE ON SCHEMA skiplock TO {role}")
        run(empty_dsn, "CREATE FUNCTION skiplock.theirs() RETURNS integer LANGUAGE sql AS 'SELECT 1'")
        dsn = empty_dsn.replace("//postgres@", f"//{role}@")
        assert migrate(dsn)[-1] == "functions"
        assert verify(dsn) == []
    finally:
        run(empty_dsn, f"DROP OWNED BY {role} CASCADE")
        run(empty_dsn, f"DROP ROLE {role}")
