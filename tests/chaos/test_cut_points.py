"""Every statement of a worker and of a producer, cut off: before it reaches the server, and after its commit before the answer.

Kinds: an answer lost after COMMIT in claim, enqueue and settle (case 14, DB-42), connections that break in the middle (DB-48,
DB-44), an answer that arrives in part, rescue and promote whose fate is unknown (DB-17).

Protections to try: `Settler.run` keeps a batch whose statement failed (drop it instead: the jobs of a cut settle never end);
`Claimer._run` remembers the lease of a claim without an answer (forget it: those jobs stay running); `settle` accepts a pair
again that it has settled (`_not_settled`; refuse it: `settle_refused`); `pool.run` raises for a lost connection (repeat the
call instead: two jobs of one enqueue).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from skiplock import Backoff, DatabaseUnavailableError, JobContext, Retry, Skiplock
from tests.support.proxy import FaultProxy, Moment, Trap, Way
from tests.support.verbs import Verbs
from tests.support.workers import RunningWorker, running_worker, settled, until

QUICK: dict[str, Any] = {"beat_every": 0.2, "lost_after": 2.0, "poll_every": 0.3}
# `keep` bytes of the answer still arrive: enough to begin a row, not enough to end one.
VARIANTS = [
    pytest.param((Moment.BEFORE, Way.RESET, 0), id="before"),
    pytest.param((Moment.AFTER, Way.RESET, 0), id="after commit"),
    pytest.param((Moment.AFTER, Way.FIN, 40), id="answer truncated"),
]
Variant = tuple[Moment, Way, int]


def set_trap(proxy: FaultProxy, text: str, variant: Variant, **more: Any) -> Trap:
    moment, way, keep = variant
    return proxy.trap(text, moment, way, keep=keep, **more)


class Work:
    """A worker's tasks, and how often each attempt of each job has really run."""

    def __init__(self, app: Skiplock) -> None:
        self.ran: Counter[tuple[int, int]] = Counter()

        @app.task(name="t")
        async def work(ctx: JobContext) -> None:
            self.ran[ctx.id, ctx.attempt] += 1

        @app.task(name="again")
        async def again(ctx: JobContext) -> None:
            self.ran[ctx.id, ctx.attempt] += 1
            if ctx.attempt == 1:
                raise Retry(delay=0.05)


def check_balance(db: Verbs, work: Work) -> None:
    """Nothing lost, nothing run twice, no attempt spent that did not run."""
    jobs = db.rows("SELECT id, state, attempt, task FROM skiplock.jobs")
    assert {job.state for job in jobs} == {"completed"}, jobs
    assert work.ran == Counter({(job.id, nth): 1 for job in jobs for nth in range(1, job.attempt + 1)})
    assert {job.attempt for job in jobs if job.task == "t"} == {1}
    assert {job.attempt for job in jobs if job.task == "again"} <= {2}
    assert db.count("jobs_running") == 0


async def all_done(worker: RunningWorker, db: Verbs) -> None:
    open_jobs = "SELECT count(*) FROM skiplock.jobs WHERE state <> 'completed'"
    await worker.until(lambda: db.value(open_jobs) == 0, limit=20)


def jobs_to_claim(db: Verbs) -> None:
    db.enqueue_some(7)


def a_job_to_promote(db: Verbs) -> None:
    db.enqueue(delay="0.05 s")


def a_job_to_retry(db: Verbs) -> None:
    db.enqueue("again")


def a_job_lost_before(db: Verbs) -> None:
    with db.transaction():
        job = db.enqueue()
        db.rows("UPDATE skiplock.jobs_ready SET losses = 1 WHERE id = %s", job)


def a_lost_worker(db: Verbs) -> None:
    """For the next beat to rescue."""
    with db.transaction():
        lost = db.register("lost", lost_after=0.1)
        db.enqueue_some(3, queue="other")
        db.claim(lost, {"other": 3})
        db.rows("UPDATE skiplock.jobs_running SET queue = 'default' WHERE worker = %s", lost)
        db.rows("UPDATE skiplock.workers SET beat_at = beat_at - interval '10 s' WHERE id = %s", lost)


def nothing(db: Verbs) -> None:
    """It comes by itself."""


# At the start, in this order; then again and again, whatever brings them about.
AT_START = ["skiplock.register(", "skiplock.lanes(", "skiplock.arm(", "skiplock.make_days(", "LISTEN", "pg_notify("]
LATER: list[tuple[str, Callable[[Verbs], None]]] = [
    ("skiplock.claim(", jobs_to_claim),
    ("skiplock.settle(", jobs_to_claim),
    ("skiplock.settle(", a_job_to_retry),
    ("skiplock.promote(", a_job_to_promote),
    ("skiplock.claim_suspects(", a_job_lost_before),
    ("skiplock.beat(", a_lost_worker),
    ("skiplock.beat(", nothing),
    ("skiplock.disarm(", jobs_to_claim),
    ("skiplock.arm(", jobs_to_claim),
]


@pytest.mark.parametrize("variant", VARIANTS)
async def test_every_statement_of_a_worker(
    proxy: FaultProxy, db: Verbs, monkeypatch: pytest.MonkeyPatch, variant: Variant
) -> None:
    """One worker for all of them, since each must leave it as it was."""
    monkeypatch.setattr("skiplock.work.bell.BUSY_FOR", -1.0)  # every full claim takes the bell down
    app = Skiplock(proxy.dsn)
    work = Work(app)
    traps = [set_trap(proxy, text, variant) for text in AT_START]
    async with running_worker(app, queues={"default": 3}, max_ahead=0, **QUICK) as worker:
        db.enqueue()
        for trap in traps:
            await worker.until(trap.sprung.is_set)
        for text, bring in LATER:
            await all_done(worker, db)
            trap = set_trap(proxy, text, variant)
            bring(db)
            await worker.until(trap.sprung.is_set)
        await all_done(worker, db)
        # The statement that mends a lost claim is cut too.
        traps = [set_trap(proxy, text, variant) for text in ("skiplock.claim(", "skiplock.release_claim(")]
        db.enqueue_some(5)
        for trap in traps:
            await worker.until(trap.sprung.is_set)
        await all_done(worker, db)
        leaving = set_trap(proxy, "skiplock.leave(", variant)
    assert leaving.sprung.is_set()
    assert worker.heard("worker_lost") == []
    # A retry that was committed may be on its next attempt before it is settled again: that is refused, as it should be.
    again = {row.id for row in db.rows("SELECT id FROM skiplock.jobs WHERE task = 'again'")}
    assert {job for refused in worker.heard("settle_refused") for job in refused["jobs"]} <= again
    check_balance(db, work)


@pytest.mark.parametrize("variant", VARIANTS)
async def test_the_worker_of_a_cut_goodbye_is_found_lost(proxy: FaultProxy, db: Verbs, variant: Variant) -> None:
    """Cut before: its row stays until others find it silent. Cut after: it is gone. Either way nothing is left of it."""
    async with running_worker(Skiplock(proxy.dsn), **QUICK):
        trap = set_trap(proxy, "skiplock.leave(", variant)
    assert trap.sprung.is_set()
    assert db.count("workers") == (1 if variant[0] is Moment.BEFORE else 0)
    async with running_worker(Skiplock(proxy.dsn), **{**QUICK, "lost_after": 0.7}) as heir:
        await heir.until(lambda: db.count("workers") == 1)


# -- producers ---------------------------------------------------------------------------------------------------------

KINDS = ["enqueue", "enqueue_many", "aenqueue", "aenqueue_many"]


@pytest.fixture
def producer(proxy: FaultProxy) -> Any:
    with Skiplock(proxy.dsn) as app:

        @app.task(name="t")
        def work() -> None: ...

        yield app


async def enqueue(app: Any, kind: str) -> None:
    task = app.tasks["t"]
    jobs = [task.job() for _ in range(20)]
    if kind == "enqueue":
        await asyncio.to_thread(task.enqueue)
    elif kind == "enqueue_many":
        await asyncio.to_thread(app.enqueue_many, jobs)
    elif kind == "aenqueue":
        await task.aenqueue()
    else:
        await app.aenqueue_many(jobs)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_cut_enqueue_says_that_its_fate_is_unknown(
    producer: Any, proxy: FaultProxy, db: Verbs, kind: str, variant: Variant
) -> None:
    """And it is not repeated: only the caller knows whether twice matters. The next one works at once. First on a connection
    without, then on one with a prepared statement."""
    size = 20 if "many" in kind else 1
    for warm in (0, 4):
        for _ in range(warm):
            await enqueue(producer, kind)
        stored, sent = db.count(), proxy.count("skiplock.enqueue_many(")
        trap = set_trap(proxy, "skiplock.enqueue_many(", variant)
        with pytest.raises(DatabaseUnavailableError, match="may or may not"):
            await enqueue(producer, kind)
        assert trap.sprung.is_set()
        assert proxy.count("skiplock.enqueue_many(") == sent + 1
        await until(lambda s=stored: db.count() == s + (0 if variant[0] is Moment.BEFORE else size), limit=5)
        await enqueue(producer, kind)
        assert proxy.count("skiplock.enqueue_many(") == sent + 2
    await producer.aclose()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_large_enqueue_many_keeps_the_chunks_that_were_stored(
    producer: Any, proxy: FaultProxy, db: Verbs, monkeypatch: pytest.MonkeyPatch, variant: Variant
) -> None:
    monkeypatch.setattr("skiplock.app.ENQUEUE_CHUNK", 50)
    set_trap(proxy, "skiplock.enqueue_many(", variant, nth=2)
    with pytest.raises(DatabaseUnavailableError):
        producer.enqueue_many([producer.tasks["t"].job() for _ in range(130)])
    assert db.count() == (50 if variant[0] is Moment.BEFORE else 100)
    assert proxy.count("skiplock.enqueue_many(") == 2


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("text", ["skiplock.enqueue_many(", "COMMIT"])
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_an_enqueue_in_the_callers_transaction_shares_its_fate(
    producer: Any, proxy: FaultProxy, db: Verbs, kind: str, text: str, variant: Variant
) -> None:
    """The driver's own error comes through; the job is there if and only if the caller's row is."""
    db.rows("CREATE TABLE IF NOT EXISTS business (note text)")
    db.rows("DELETE FROM business")
    task = producer.tasks["t"]
    trap = set_trap(proxy, text, variant)

    def in_transaction() -> None:
        with psycopg.connect(proxy.dsn) as connection:
            connection.execute("INSERT INTO business VALUES ('ours')")
            task.using(connection=connection).enqueue()

    async def in_async_transaction() -> None:
        async with await psycopg.AsyncConnection.connect(proxy.dsn) as connection:
            await connection.execute("INSERT INTO business VALUES ('ours')")
            await task.using(connection=connection).aenqueue()

    with pytest.raises(psycopg.OperationalError):
        await (asyncio.to_thread(in_transaction) if kind == "sync" else in_async_transaction())
    assert trap.sprung.is_set()
    there = 1 if text == "COMMIT" and variant[0] is Moment.AFTER else 0
    await until(lambda: db.value("SELECT count(*) FROM business") == there, limit=5)
    assert db.count() == there


# -- handlers with transactions of their own -----------------------------------------------------------------------------


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("text", ["skiplock.complete(", "COMMIT"])
async def test_a_handlers_transaction_takes_effect_once(
    proxy: FaultProxy, db: Verbs, text: str, variant: Variant
) -> None:
    """`ctx.transaction()` cut at its completion or commit: whether it was committed decides whether the job runs again,
    whatever the handler was told."""
    db.rows("CREATE TABLE IF NOT EXISTS effects (job bigint, attempt integer)")
    db.rows("DELETE FROM effects")
    app = Skiplock(proxy.dsn)

    @app.task(name="t", max_attempts=3, backoff=Backoff(base=0, floor=0, jitter=False))
    async def work(ctx: JobContext) -> None:
        async with ctx.transaction() as connection:
            await connection.execute("INSERT INTO effects VALUES (%s, %s)", [ctx.id, ctx.attempt])

    async with running_worker(app, **QUICK) as worker:
        trap = set_trap(proxy, text, variant)
        job = await work.aenqueue()
        await worker.until(trap.sprung.is_set)
        record = await settled(job, limit=20)
        committed = text == "COMMIT" and variant[0] is Moment.AFTER
    assert (record.state, record.attempt) == ("completed", 1 if committed else 2)
    effects = [tuple(row) for row in db.rows("SELECT job, attempt FROM effects")]
    assert effects == [(job.id, record.attempt)]
