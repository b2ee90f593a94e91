"""Errors of the database put into each verb: repeated or reported as store/guard.py says; the worker lives, nothing is lost
or done twice.

Kinds: serialization failure, deadlock, lock timeout, statement timeout, disk full, out of memory, I/O and internal errors,
once and for a while, in every verb (DB-11, DB-13, DB-53 to DB-56; case 15); a table locked for seconds while jobs end
(DB-40); statements that are too much for a timeout. A really full disk is not made here: it needs a small file system,
which takes more rights than tests have; what it comes to is the 53100 that is injected.

To see them fail: take the code from `_AGAIN`, or make `meaning` answer OURS for it (the settles are dropped one by one);
empty `_REPEATED` in store/guard.py (enqueues raise); undo what a test's docstring names.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator

import psycopg
import pytest

from skiplock import JobContext, Skiplock
from skiplock.core.errors import DatabaseUnavailableError
from skiplock.store.again import PAUSES
from tests.support.databases import connect
from tests.support.defaults import change_defaults
from tests.support.faulty import FaultyVerbs
from tests.support.tour import EFFECTS, SOON, tour
from tests.support.verbs import Verbs, at_once, open_verbs
from tests.support.workers import running_worker, settled, until

CODES = {
    "40001": "serialization failure", "40P01": "deadlock", "55P03": "lock timeout", "57014": "statement timeout",
    "53100": "disk full", "53200": "out of memory", "58030": "I/O error", "XX000": "internal error",
}  # fmt: skip
UNDONE = ("40001", "40P01", "55P03")  # whoever makes a call in a transaction of its own makes it again
WORKERS = (
    "register", "lanes", "claim", "settle", "arm", "beat", "rescue", "promote", "reconcile", "make_days", "leave",
)  # fmt: skip
PRODUCERS = ("enqueue_many", "retry", "cancel", "delete", "pause", "resume", "record", "recall", "find")
every_code = pytest.mark.parametrize("code", CODES, ids=CODES.values())


@pytest.fixture
def faults(fresh_dsn: str) -> Iterator[FaultyVerbs]:
    with FaultyVerbs(fresh_dsn, *WORKERS, *PRODUCERS) as found:
        yield found


@every_code
async def test_every_verb_fails_once(fresh_dsn: str, faults: FaultyVerbs, code: str) -> None:
    """A whole tour, in which the first call of each verb comes to nothing."""
    faults.fail(code, *WORKERS)
    if code in UNDONE:
        faults.fail(code, *PRODUCERS)
    worker = await tour(fresh_dsn)
    assert [verb for verb in WORKERS if verb != "reconcile" and not faults.called(verb)] == []
    assert worker.heard("claim_failed") and worker.heard("settle_failed") and worker.heard("beat_failed")
    assert not worker.heard("worker_lost") and not worker.heard("settle_refused")
    with open_verbs(fresh_dsn) as db:
        assert {row.max for row in db.rows("SELECT max(losses) FROM skiplock.jobs")} == {0}
        if code in UNDONE:
            assert db.count("workers") == 0, "it has left, although that failed at first"


@pytest.mark.parametrize("code", ["40P01", "57014", "53100", "XX000"])
async def test_every_verb_fails_for_a_while(fresh_dsn: str, faults: FaultyVerbs, code: str) -> None:
    """Outcomes that cannot be settled are kept; afterwards all goes on by itself."""
    app, runs, go = Skiplock(fresh_dsn), Counter[int](), asyncio.Event()

    @app.task(name="t")
    async def work(ctx: JobContext) -> None:
        runs[ctx.id] += 1
        await go.wait()

    async with app, running_worker(app, queues={"default": 200}) as worker:
        jobs = await app.aenqueue_many([work.job() for _ in range(40)])
        await until(lambda: len(runs) == 40)
        faults.fail(code, *WORKERS, times=10**9)
        go.set()
        jobs += await app.aenqueue_many([work.job() for _ in range(20)])
        jobs.append(await work.using(delay=0.1).aenqueue())
        for kind in ("claim", "settle", "beat"):
            await until(lambda kind=kind: len(worker.heard(f"{kind}_failed")) >= 3)
        faults.heal()
        for job in jobs:
            assert (await settled(job)).state == "completed"
    assert len(runs) == len(jobs) and set(runs.values()) == {1}
    assert not worker.heard("worker_lost")


# --- whoever makes a call in a transaction of its own -------------------------------------------------------------------


@every_code
async def test_an_enqueue_that_was_undone_is_made_again(fresh_dsn: str, faults: FaultyVerbs, code: str) -> None:
    """Only where the server said so; else the error says that nothing was done. Never twice."""
    with Skiplock(fresh_dsn) as app, open_verbs(fresh_dsn) as db:

        @app.task(name="t")
        async def work() -> None: ...

        for way in (work.aenqueue, lambda: asyncio.to_thread(work.enqueue)):
            faults.fail(code, "enqueue_many", times=2)
            if code in UNDONE:
                await way()
                assert (faults.called("enqueue_many"), db.count("jobs_ready")) == (3, 1)
                db.empty()
            else:
                with pytest.raises(DatabaseUnavailableError, match="refused, and nothing was done: injected"):
                    await way()
                assert (faults.called("enqueue_many"), db.count("jobs_ready")) == (1, 0)
        await app.aclose()


async def test_it_is_not_made_again_for_ever(fresh_dsn: str, faults: FaultyVerbs) -> None:
    with Skiplock(fresh_dsn) as app:

        @app.task(name="t")
        async def work() -> None: ...

        for way in (work.aenqueue, lambda: asyncio.to_thread(work.enqueue)):
            faults.fail("40P01", "enqueue_many", times=10**9)
            with pytest.raises(DatabaseUnavailableError, match="nothing was done: injected") as caught:
                await way()
            assert isinstance(caught.value.__cause__, psycopg.errors.DeadlockDetected)
            assert faults.called("enqueue_many") == len(PAUSES) + 1
        await app.aclose()


async def test_nothing_is_repeated_in_a_transaction_of_the_callers(fresh_dsn: str, faults: FaultyVerbs) -> None:
    with Skiplock(fresh_dsn) as app:

        @app.task(name="t")
        async def work() -> None: ...

        faults.fail("40001", "enqueue_many")
        async with await psycopg.AsyncConnection.connect(fresh_dsn) as mine:
            with pytest.raises(psycopg.errors.SerializationFailure):
                await work.using(connection=mine).aenqueue()
            assert mine.info.transaction_status.name == "INERROR"
        assert faults.called("enqueue_many") == 1


async def test_a_completion_that_fails_in_the_handlers_transaction_fails_the_attempt(fresh_dsn: str) -> None:
    """What the handler wrote goes with it; the task's own rules say when it is tried again."""
    with FaultyVerbs(fresh_dsn, "complete") as faults, connect(fresh_dsn) as look:
        look.execute(EFFECTS)
        faults.fail("40001", "complete")
        app = Skiplock(fresh_dsn)

        @app.task(name="t", backoff=SOON)
        async def work(ctx: JobContext) -> None:
            async with ctx.transaction() as connection:
                await connection.execute(
                    "INSERT INTO public.effects VALUES (%s, %s)", [ctx.id, f"attempt {ctx.attempt}"]
                )

        async with app, running_worker(app):
            record = await settled(await work.aenqueue())
        assert (record.state, [a.error_class for a in record.attempts]) == (
            "completed",
            ["psycopg.errors.SerializationFailure"],
        )
        assert look.execute("SELECT what FROM public.effects").fetchall() == [("attempt 2",)]


# --- tables that are locked, statements that take too long ----------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"lock_timeout": "200ms"}, {"statement_timeout": "200ms"}], ids=str)
async def test_the_jobs_are_locked_while_a_hundred_end(fresh_dsn: str, settings: dict[str, str]) -> None:
    change_defaults(fresh_dsn, **settings)
    app, runs, go = Skiplock(fresh_dsn), Counter[int](), asyncio.Event()

    @app.task(name="t")
    async def work(ctx: JobContext) -> None:
        runs[ctx.id] += 1
        await go.wait()

    async with app, running_worker(app, queues={"default": 200}, lost_after=3.0) as worker:
        jobs = await app.aenqueue_many([work.job() for _ in range(100)])
        await until(lambda: len(runs) == 100)
        # Not a minute's fault: long enough for several tries, and for a beat that waits for the table to be late.
        async with await psycopg.AsyncConnection.connect(fresh_dsn) as locker:
            await locker.execute("LOCK TABLE skiplock.jobs IN ACCESS EXCLUSIVE MODE")
            go.set()
            if settings:
                await until(lambda: len(worker.heard("settle_failed")) >= 3)
            await asyncio.sleep(1.0)
        for job in jobs:
            assert (await settled(job)).state == "completed"
    assert set(runs.values()) == {1}
    assert not worker.heard("worker_lost") and not worker.heard("settle_refused")


@pytest.mark.parametrize(("verb", "size"), [("claim", "$4[1]"), ("settle", "cardinality($1)")])
async def test_a_batch_that_takes_too_long_is_made_smaller(fresh_dsn: str, verb: str, size: str) -> None:
    """Claims, or settles, of more than 20 jobs run into a statement_timeout, always.

    To see it fail: take `is_too_much` out of work/settle.py, or out of work/claim.py.
    """
    with FaultyVerbs(fresh_dsn) as faults:
        faults.wrap(verb, "", before=f"IF {size} > 20 THEN RAISE EXCEPTION 'too long' USING ERRCODE = '57014'; END IF;")
        app, go, began = Skiplock(fresh_dsn), asyncio.Event(), list[int]()

        @app.task(name="t")
        async def work(ctx: JobContext) -> None:
            began.append(ctx.id)
            await go.wait()

        async with app:
            jobs = await app.aenqueue_many([work.job() for _ in range(200)])
            async with running_worker(app, queues={"default": 200}) as worker:
                await until(lambda: len(began) == 200)
                go.set()  # all at once
                for job in jobs:
                    assert (await settled(job)).state == "completed"
        assert worker.heard(f"{verb}_failed"), "else this tests nothing"


async def test_what_is_looked_for_beyond_need_may_run_into_a_timeout(fresh_dsn: str) -> None:
    """Looks from the left end walk over dead rows, and a statement_timeout may cut each of them: the cheap form must have its
    turn, or no job is claimed, and the worker counts as lost.

    To see it fail: take `failed` (core/share.py) out of work/claim.py (no job runs), or out of work/beat.py (it is lost).
    """
    with FaultyVerbs(fresh_dsn) as faults:
        app = Skiplock(fresh_dsn)

        @app.task(name="t")
        async def work() -> None: ...

        async with app, running_worker(app, beat_every=0.2, lost_after=2.0) as worker:
            await settled(await work.aenqueue())
            slow = "IF {} THEN PERFORM pg_sleep(0.3); RAISE EXCEPTION 'too long' USING ERRCODE = '57014'; END IF;"
            faults.wrap("claim", "", before=slow.format("$6 IS NULL"))
            faults.wrap("beat", "", before=slow.format("$8"))
            began = time.monotonic()
            while time.monotonic() - began < 4.0:
                await settled(await work.aenqueue(), limit=5.0)
            assert worker.heard("beat_failed"), "else this tests nothing"
        assert not worker.heard("worker_lost")


# --- deadlocks --------------------------------------------------------------------------------------------------------


def test_clients_in_opposite_order_never_meet_a_deadlock(fresh_dsn: str) -> None:
    """Bulk enqueues, claims, settles, releases, arming and disarming of the same queues, each list in another order."""
    queues = [f"q{n}" for n in range(30)]
    with open_verbs(fresh_dsn) as db:
        # So that the bells lie in the opposite order of their names, and are always old enough to be touched.
        for queue in reversed(queues):
            db.value("SELECT skiplock.arm(%s)", [queue])
        db.rows(
            "CREATE OR REPLACE FUNCTION skiplock.now() RETURNS timestamptz LANGUAGE sql VOLATILE AS "
            "$$ SELECT clock_timestamp() + random() * interval '1 day' $$"
        )

    def act(db: Verbs, n: int) -> None:
        names = queues if n % 2 else list(reversed(queues))
        worker = db.register(f"w{n}", lost_after=10**6)
        for turn in range(15):
            jobs = [names[k % 30] for k in range(60)]
            db.rows("SELECT skiplock.enqueue_many(%s, %s::json[], %s)", ["t"] * 60, ["{}"] * 60, jobs)
            claimed = db.claim(worker, dict.fromkeys(names, 4))
            half = len(claimed) // 2
            released = [{"id": c.id, "lease": c.lease, "verdict": "release"} for c in claimed[half:]]
            db.settle(completed=sorted(claimed[:half]), others=sorted(released, key=lambda o: o["id"]))
            db.rows("SELECT skiplock.arm(%s)", names)
            db.rows("SELECT skiplock.disarm(%s)", names)
            db.rows("SELECT skiplock.beat(%s, queues => %s)", worker, names)
            db.rows("SELECT skiplock.leave(%s, %s, %s::smallint[], %s)", worker, names, [0] * 30, [turn] * 30)
            worker = db.register(f"w{n}", lost_after=10**6)

    at_once(fresh_dsn, 6, act)  # raises the DeadlockDetected, if there is one
