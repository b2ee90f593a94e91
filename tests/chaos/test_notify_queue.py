"""The server's queue of notifications is full, and names of any text go through all that notifies.

Kinds: one listener in a long transaction fills the queue for everybody (DB-24 to DB-27; case 13), payloads that are too long
(DB-23, DB-29), names that are quoted wrongly (SEC-01, SEC-18).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from click.testing import CliRunner

from skiplock import JobContext, Skiplock, Task
from skiplock.cli.root import cli
from skiplock.desk.find import list_call, queues_call
from skiplock.desk.queues import pause_call, resume_call
from skiplock.store.embedded import EmbeddedServer, start_server
from skiplock.store.migrate import migrate
from tests.support.server import SETTINGS, binaries_under_test
from tests.support.tour import Tour, tour
from tests.support.workers import running_worker, settled, until

USAGE = "SELECT pg_notification_queue_usage()"


@pytest.fixture(scope="module")
def small_server() -> Iterator[EmbeddedServer]:
    """Its queue holds half a megabyte. Before PostgreSQL 17 it is always 8 GB: nobody fills that here, nor in production."""
    settings = dict(SETTINGS)
    with start_server(binaries=binaries_under_test(), settings=settings) as server:
        if _has_small_queues(server):
            server.stop("immediate")
            settings["max_notify_queue_pages"] = "64"
            with start_server(binaries=binaries_under_test(), settings=settings) as small:
                migrate(small.dsn())
                yield small
        else:
            migrate(server.dsn())
            yield server


def _has_small_queues(server: EmbeddedServer) -> bool:
    with psycopg.connect(server.dsn()) as connection:
        return connection.info.server_version >= 170000


@contextmanager
def full_queue(server: EmbeddedServer) -> Iterator[psycopg.Connection]:
    """Somebody listens, and sits in a transaction; somebody else notifies, as long as it can."""
    dsn = server.dsn()
    with psycopg.connect(dsn, autocommit=True) as listens, psycopg.connect(dsn, autocommit=True) as notifies:
        listens.execute("LISTEN forgotten")
        listens.execute("BEGIN")
        listens.execute("SELECT 1")
        if _has_small_queues(server):
            with pytest.raises(psycopg.errors.ProgramLimitExceeded):
                while True:
                    notifies.execute(
                        "SELECT pg_notify('forgotten', n || repeat('x', 7000)) FROM generate_series(1, 20) n"
                    )
        yield notifies


async def test_everything_goes_on_while_the_queue_is_full(small_server: EmbeddedServer) -> None:
    """Enqueues with a bell armed, retries that are due soon, cancels: none of them fails at its commit, all are found.

    To see it fail: take the look at pg_notification_queue_usage out of sql/produce/ring.sql or of cancel (sql/desk/act.sql).
    """
    with full_queue(small_server) as other:
        if _has_small_queues(small_server):
            [usage] = other.execute(USAGE).fetchone() or (0,)
            assert usage > 0.5
        worker = await tour(small_server.dsn())
        for event in ("claim_failed", "settle_failed", "beat_failed"):
            assert not worker.heard(event), worker.heard(event)
    await _empties(small_server)


async def test_a_worker_hears_again_once_the_queue_has_room(
    small_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skiplock.work.listen.PROVED_WITHIN", 1.5)
    monkeypatch.setattr("skiplock.work.listen.DEAF", (0.5, 0.5))
    app = Tour(small_server.dsn()).app
    async with app:
        with full_queue(small_server):
            context = running_worker(app, beat_every=0.5)
            worker = await context.__aenter__()
            if _has_small_queues(small_server):
                await worker.until_heard("listen_failed")
                assert not worker.worker._ear.works
        try:
            await worker.until(lambda: worker.worker._ear.works)
        finally:
            await context.__aexit__(None, None, None)


async def _empties(server: EmbeddedServer) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as look:
        await until(
            lambda: look.execute("SELECT pg_notify('forgotten', ''), pg_notification_queue_usage()").fetchone()[1] < 0.5
        )  # type: ignore[index]


# --- names of any text ------------------------------------------------------------------------------------------------

NAMES = {
    "a quote": "a'b",
    "a double quote": 'a"b',
    "a statement": "a'; DROP SCHEMA skiplock CASCADE; --",
    "a backslash": "a\\b\\",
    "formats": "%s %(x)s {} {0} $1 :x ?",
    "an array": "{a,b,NULL}",
    "the word NULL": "NULL",
    "one case": "Foo",
    "the other case": "foo",
    "accents": "ünï",
    "accents, composed otherwise": "u\u0308ni\u0308",
    "a family": "👩‍👩‍👧‍👦",
    "200 of four bytes": "🐘" * 200,
    "spaces": " two  words ",
    "markup": "<script>alert(1)</script>",
    "an address": "../../etc/passwd",
}


async def test_names_of_any_text(dsn: str) -> None:
    """Tasks and queues of all these names at once: each job runs in its own queue under its own task, and wakes its worker."""
    app, ran, tasks = Skiplock(dsn), list[str](), dict[str, Task[..., None]]()
    for name in NAMES.values():

        def work(ctx: JobContext) -> None:
            ran.append(ctx.job.task)

        tasks[name] = app.task(name=name, queue=name)(work)
    async with app:
        for name in NAMES.values():
            await app.arun(pause_call(name, app.schema))
        async with running_worker(
            app, queues=dict.fromkeys(NAMES.values(), 2), beat_every=100.0, lost_after=300.0, poll_every=100.0
        ) as worker:
            held = [await tasks[name].aenqueue() for name in NAMES.values()]
            assert {q.name for q in await app.arun(queues_call(app.schema)) if q.paused} == set(NAMES.values())
            for name in NAMES.values():
                await app.arun(resume_call(name, app.schema))
            for job in held:
                assert (await settled(job)).state == "completed"
            await worker.until(lambda: worker.worker._ear.works)
            for name in NAMES.values():
                await worker.until(lambda: worker.worker._sleeper.asleep)
                record = await settled(await tasks[name].aenqueue(), limit=10)
                assert (record.task, record.queue, record.state) == (name, name, "completed")
                assert [r.id for r in await app.arun(list_call(app.schema, queue=name, task=name, limit=1))] == [
                    record.id
                ]
    assert sorted(ran) == sorted([*NAMES.values()] * 2)


def test_names_of_any_text_on_the_command_line(dsn: str) -> None:
    def ask(*words: str) -> Any:
        done = CliRunner().invoke(cli, words, env={"SKIPLOCK_DATABASE_URL": dsn})
        assert done.exit_code == 0, (words, done.output, done.exception)
        return json.loads(done.stdout)

    for name in [*NAMES.values(), "--json", "-"]:
        ask("queues", "pause", "--json", "--", name)
        stored = ask("enqueue", "--json", f"--queue={name}", "--", name)
        listed = ask("jobs", "list", "--json", f"--queue={name}", f"--task={name}")
        assert listed["jobs"][0]["id"] == stored["id"], name
        assert {queue["name"]: queue["paused"] for queue in ask("queues", "list", "--json")["queues"]}[name] is True
        ask("queues", "resume", "--json", "--", name)
