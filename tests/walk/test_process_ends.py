"""Tasks with executor="process": how they end, what they may have, and when a child makes way for another.

Kinds: a child that dies fails its own job only, and what is said of it is plain text (LIFE-19, LIFE-20, LIFE-24, RETRY-08 to
RETRY-11, case 10).
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from skiplock import JobRecord, Skiplock
from tests.support import clone, drop
from tests.support import process_jobs as jobs
from tests.support.child_processes import app_on, is_alive, pids, started
from tests.support.verbs import Verbs
from tests.support.workers import running_worker, settled


@pytest.fixture
def app(db: Verbs, dsn: str) -> Iterator[Skiplock]:
    with app_on(dsn) as found:
        yield found


# --- how they end: two tables, run once by one worker -----------------------------------------------------------------

DEATHS = {
    "SIGKILL": "was killed by SIGKILL, not by skiplock: by a person, or by the system because memory ran out",
    "exit 0": "exited with code 0; a handler has to return, not to exit",
    "exit 3": "exited with code 3",
    "segfault": "was killed by SIGSEGV; where, it has told on the worker's stderr",
    "abort": "was killed by SIGABRT",
    "closes everything": "exited with code 1",
    "talks nonsense": "wrote nonsense into its connection to the worker and was killed by SIGKILL",
}
Records = dict[str, JobRecord]


@pytest.fixture(scope="module")
def records(template_server: str) -> Iterator[Records]:
    """Every handler of the tables, run by one worker with two children, and one job after all of them."""
    dsn = clone(template_server)

    async def run_all(app: Skiplock) -> Records:
        async with running_worker(app, children=2):
            handles = {f"dies {how}": await jobs.dies.aenqueue(how) for how in DEATHS}
            handles["dies async"] = await jobs.adies.aenqueue()
            handles |= {f"raises {name} def": await jobs.raises.aenqueue(name) for name in jobs.RAISED}
            handles |= {f"raises {name} async": await jobs.araises.aenqueue(name) for name in jobs.RAISED}
            handles |= {f"returns {name}": await jobs.returns.aenqueue(name) for name in jobs.UNSTORABLE}
            handles |= {f"says {word}": await jobs.says.aenqueue(word) for word in ("cancel", "dead")}
            handles["ruled"] = await jobs.ruled.aenqueue()
            found = {name: await settled(job, limit=60) for name, job in handles.items()}
            for word in ("retry", "snooze"):
                found[f"says {word}"] = await settled(await jobs.says.aenqueue(word), state="retryable")
            found["the last"] = await settled(await jobs.add.aenqueue(1, 1))
        return found

    with app_on(dsn) as app:
        yield asyncio.run(run_all(app))
    drop(template_server, dsn)


@pytest.mark.parametrize("how", [*DEATHS, "async"])
def test_a_child_that_dies_spends_the_attempt_of_its_job(records: Records, how: str) -> None:
    record = records[f"dies {how}"]
    assert (record.state, record.attempt) == ("dead", 2)
    assert [attempt.verdict for attempt in record.attempts] == ["retry", "dead"]
    for attempt in record.attempts:
        assert attempt.error_class == "skiplock.core.errors.ChildDiedError"
        assert (attempt.message or "").startswith("the child process ")
        assert (attempt.message or "").endswith(DEATHS.get(how, "exited with code 3"))


@pytest.mark.parametrize("kind", ["def", "async"])
@pytest.mark.parametrize("name", jobs.RAISED)
def test_whatever_a_handler_raises_only_its_job_fails(records: Records, name: str, kind: str) -> None:
    record = records[f"raises {name} {kind}"]
    assert (record.state, record.attempt) == ("dead", 1)
    assert record.error is not None and jobs.RAISED[name][1] in record.error
    assert "ChildDied" not in record.error
    [attempt] = record.attempts
    assert attempt.message is not None and len(attempt.message) < 10_000
    assert "raises(name" not in (attempt.traceback or "")


@pytest.mark.parametrize("name", jobs.UNSTORABLE)
def test_a_result_that_cannot_be_stored_ends_the_job_dead_with_the_reason(records: Records, name: str) -> None:
    record = records[f"returns {name}"]
    assert (record.state, record.result) == ("dead", None)
    assert (record.error or "").startswith("ResultNotStorable: the handler succeeded, but its result cannot be stored")


def test_what_a_handler_says_itself(records: Records) -> None:
    assert (records["says cancel"].state, records["says cancel"].error) == ("cancelled", "Cancel: no need")
    assert (records["says dead"].state, records["says dead"].error) == ("dead", "Dead: enough")
    assert (records["says retry"].attempt, records["says retry"].attempts[0].message) == (1, "later")
    assert (records["says snooze"].attempt, records["says retry"].attempts[0].verdict) == (0, "retry")
    assert (records["ruled"].state, records["ruled"].attempt) == ("dead", 1), "retry_on"


def test_the_worker_has_outlived_all_of_them(records: Records) -> None:
    assert records["the last"].result[0] == 2
    assert len({record.worker for record in records.values()} - {None}) == 1


async def test_a_death_hurts_no_other_job(app: Skiplock, tmp_path: Path) -> None:
    """LIFE-20: a child at work beside the one that dies, over and over, goes on; so do the event loop's jobs and threads."""
    path = tmp_path / "note"
    async with running_worker(app, children=2) as worker:
        long = await jobs.note.aenqueue(str(path), 2.0)
        await started(worker, long)
        dying = await jobs.dies.using(max_attempts=6).aenqueue("SIGKILL")
        assert (await settled(dying)).attempt == 6
        record = await settled(long)
    assert (record.state, record.attempt, len(record.attempts)) == ("completed", 1, 0)
    assert path.read_text() == f"began {record.result}\nended {record.result}\n"


async def test_what_a_child_had_started_ends_with_it(app: Skiplock, tmp_path: Path) -> None:
    """It holds the child's socket open, which must not keep the death from being noticed."""
    path = tmp_path / "pid"
    async with running_worker(app) as worker:
        record = await settled(await jobs.dies_with_company.aenqueue(str(path)), limit=10)
        assert "exited with code 5" in (record.error or "")
        await worker.until(lambda: not is_alive(int(path.read_text())))


# --- memory, and being replaced ---------------------------------------------------------------------------------------

TOO_MUCH = {
    "bytes": "MemoryError: out of memory: memory=256 MiB for the process, ",
    "pieces": "MemoryError: out of memory: memory=256 MiB for the process, ",
    "malloc": "MemoryError: malloc said no",
    "anonymous mmap": "OSError: [Errno 12] Cannot allocate memory",
}


async def test_the_memory_of_a_child_is_capped_while_it_runs_such_a_task(app: Skiplock) -> None:
    async with running_worker(app, children=1) as worker:
        for how, said in TOO_MUCH.items():
            record = await settled(await jobs.takes.aenqueue(400, how))
            assert (record.state, (record.error or "").startswith(said)) == ("dead", True), record.error
        enough = await settled(await jobs.takes.aenqueue(100))
        assert enough.state == "completed"
        # Shared memory and mapped files do not count; the cap is for that task only, not for the child.
        assert (await settled(await jobs.takes.aenqueue(400, "shared mmap"))).result == enough.result
        assert (await settled(await jobs.leaks.aenqueue(300))).result == enough.result
        reasons = {event["reason"] for event in worker.heard("task_process_ended")}
    assert reasons == {"has run out of memory"}, "a child that ran out of memory runs nothing else"


async def test_children_are_replaced_after_so_many_jobs(app: Skiplock) -> None:
    async with running_worker(app, children=1, child_max_jobs=2) as worker:
        found = [(await settled(await jobs.add.aenqueue(1, 1))).result[1] for _ in range(5)]
    assert [len(set(found[n : n + 2])) for n in (0, 2, 4)] == [1, 1, 1]
    assert len(set(found)) == 3
    assert [event["reason"] for event in worker.heard("task_process_ended")][:2] == ["has run 2 jobs"] * 2


async def test_children_are_replaced_when_they_hold_too_much(app: Skiplock) -> None:
    async with running_worker(app, children=1, child_max_memory="256MiB") as worker:
        first = await settled(await jobs.leaks.aenqueue(10))
        second = await settled(await jobs.leaks.aenqueue(300))
        third = await settled(await jobs.leaks.aenqueue(10))
    assert first.result == second.result != third.result
    assert "more than 256 MiB" in worker.heard("task_process_ended")[0]["reason"]


async def test_children_are_replaced_at_an_age_but_never_at_work(app: Skiplock, tmp_path: Path) -> None:
    async with running_worker(app, children=1, child_max_age=1.0) as worker:
        first = await settled(await jobs.note.aenqueue(str(tmp_path / "note"), 1.5))
        assert (first.state, len(worker.heard("task_process_started"))) == ("completed", 1)
        second = await settled(await jobs.add.aenqueue(1, 1))
        assert second.result[1] != first.result
    assert "has lived for" in worker.heard("task_process_ended")[0]["reason"]


async def test_an_idle_child_that_dies_costs_no_job(app: Skiplock) -> None:
    """Whether the worker has noticed it or not: here the child is stopped, given the job, and killed before it could begin.
    Fails without `_Gone`."""
    async with running_worker(app, children=1) as worker:
        first = await settled(await jobs.add.aenqueue(1, 1))
        os.kill(first.result[1], signal.SIGKILL)
        await worker.until(lambda: not pids(worker))
        second = await settled(await jobs.add.using(max_attempts=1).aenqueue(1, 1))
        os.kill(second.result[1], signal.SIGSTOP)
        third = await jobs.add.using(max_attempts=1).aenqueue(1, 1)
        await worker.until(lambda: worker.worker._lines.running)
        os.kill(second.result[1], signal.SIGKILL)
        records = [second, await settled(third)]
    assert [(record.state, record.attempt, record.attempts) for record in records] == [("completed", 1, ())] * 2
    assert len({first.result[1], *[record.result[1] for record in records]}) == 3
