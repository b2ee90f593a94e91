"""Tasks with executor="process": what they may do, and how they are stopped.

Kinds: a timeout ends what nothing else can end, and the retry does not overlap with it (LIFE-25, LIFE-64); no connection is
inherited or shared (LIFE-28, LIFE-41 to LIFE-45); an outcome that was told is never turned into a failure (LIFE-31).
How they end, their memory and their replacement: tests/walk/test_process_ends.py. Broken applications:
tests/walk/test_process_imports.py. What happens to children when whole workers die or stop: tests/chaos/test_children.py.
"""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from skiplock import ChildStartError, Skiplock
from skiplock.child import children_for
from skiplock.core.decide import LOST
from skiplock.core.events import Event
from skiplock.core.job import Job
from skiplock.core.settings import WorkerSettings
from skiplock.desk.find import queues_call
from skiplock.work import children
from skiplock.work.talk import Work
from tests.support import process_jobs as jobs
from tests.support.child_processes import app_on, is_alive, pids, started
from tests.support.verbs import Verbs
from tests.support.workers import running_worker, settled


@pytest.fixture
def app(db: Verbs, dsn: str) -> Iterator[Skiplock]:
    with app_on(dsn) as found:
        yield found


# --- what they may do -------------------------------------------------------------------------------------------------


async def test_a_def_and_an_async_def_run_in_a_child_that_stays(app: Skiplock) -> None:
    async with running_worker(app, children=1) as worker:
        first = await settled(await jobs.add.aenqueue(2, 3))
        second = await settled(await jobs.aadd.aenqueue(4, 5))
        assert (first.state, second.state) == ("completed", "completed")
        assert (first.result[0], second.result[0]) == (5, 9)
        [pid] = pids(worker)
        assert first.result[1:] == second.result[1:] == [pid, os.getpid()]
        assert pid != os.getpid()
    assert not is_alive(pid)
    assert [event["reason"] for event in worker.heard("task_process_ended")] == ["the worker stops"]


async def test_a_worker_whose_app_has_no_such_task_has_no_children(dsn: str) -> None:
    app = Skiplock(dsn)
    async with running_worker(app) as worker:
        assert worker.worker._children is None


def test_a_plain_call_runs_here(app: Skiplock) -> None:
    assert jobs.add(1, 2)[1] == os.getpid()
    assert asyncio.run(jobs.aadd(1, 2))[1] == os.getpid()


async def test_a_child_shares_no_connection_with_its_worker(app: Skiplock) -> None:
    """Fails if `_spawn` forks instead of starting a program: the worker's sockets are the child's too then. Its connections
    to the database are open at that moment, and a transaction here and one there do not disturb each other."""
    await app.arun(queues_call(app.schema))
    async with running_worker(app, children=1) as worker:
        found = (await settled(await jobs.whoami.using(meta={"k": 1}).aenqueue())).result
        ours = {os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()}
        ours = {link for link in ours if link.startswith("socket:")}
        assert len(ours) > 4, "the worker's connections"
        assert len(found["sockets"]) == 3, "its end of the talk, and its loop's pair"
        assert not ours & set(found["sockets"])
        assert found["pid"] == found["group"] == pids(worker)[0]
        assert (found["meta"], found["attempt"], found["stdin"], found["oom"]) == ({"k": 1}, 1, "", "500")
        assert found["threads"] == ["MainThread", "skiplock-job_0", "skiplock-worker"]
        for _ in range(3):
            job = await jobs.in_transaction.aenqueue()
            assert (await settled(job)).state == "completed"
            assert await app.arun(queues_call(app.schema)) is not None


async def test_resources_and_middleware_are_around_the_handler_in_the_child(app: Skiplock) -> None:
    async with running_worker(app, children=1) as worker:
        first = await settled(await jobs.around.aenqueue(1))
        second = await settled(await jobs.around.aenqueue(2))
        [pid] = pids(worker)
    assert first.result == [[1, "each", "aeach", ["shared", "aeach", "each"], False], pid]
    # scope="worker" means the child: opened once. What belongs to the attempt was closed.
    assert second.result == [[2, "each", "aeach", [*first.result[0][3], "closed", "aeach", "each"], False], pid]


async def test_transactions_in_the_child(app: Skiplock, db: Verbs) -> None:
    async with running_worker(app) as worker:
        kept = await settled(await jobs.in_transaction.aenqueue())
        undone = await settled(await jobs.in_transaction.using(max_attempts=1).aenqueue(fail=True))
        later = await settled(await jobs.ain_transaction.aenqueue())
        assert (kept.state, undone.state, later.state) == ("completed", "dead", "completed")
        assert db.rows("SELECT job FROM made WHERE job >= %s", kept.id) == [(kept.id,)]
        assert undone.error == "RuntimeError: rolled back"
        assert later.result in pids(worker)
        assert worker.heard("settle_refused") == []


async def test_reconciling_leaves_a_child_alone_whose_job_is_completed_by_itself(app: Skiplock) -> None:
    """Remove `Completing` from `_Context.complete`: the worker takes the job for lost, and kills what comes after the commit."""
    async with running_worker(app, children=1) as worker:
        job = await jobs.in_transaction.aenqueue(then=1.0)
        assert (await settled(job)).state == "completed"
        [pid] = pids(worker)
        await worker.worker._reconcile()
        await worker.until(lambda: worker.heard("attempt_ended"))
        assert pids(worker) == [pid] and worker.heard("attempt_failed") == []


async def test_a_handler_may_enqueue_and_run_a_loop(app: Skiplock) -> None:
    async with running_worker(app):
        made = (await settled(await jobs.enqueues.aenqueue())).result
        assert (await settled(app.job(made))).result == "cba"
        assert (await settled(await jobs.runs_a_loop.aenqueue())).result == 5


async def test_what_a_handler_writes_does_not_disturb_the_talk(
    app: Skiplock, capfd: pytest.CaptureFixture[str]
) -> None:
    async with running_worker(app, children=1):
        assert (await settled(await jobs.noisy.aenqueue())).result == 7
        assert (await settled(await jobs.add.aenqueue(1, 1))).result[0] == 2
    out, err = capfd.readouterr()
    assert "noise noise" in out and "raw noise" in out and "noise of a program" in out
    assert "noise on stderr" in err and "noise in the log" in err


async def test_a_megabyte_there_and_back(app: Skiplock) -> None:
    text = "ab☃" * 200_000
    async with running_worker(app):
        found = await asyncio.gather(*[settled(await jobs.echo.aenqueue(text[n:])) for n in range(3)])
    assert [record.result for record in found] == [text[n:][::-1] for n in range(3)]


async def test_two_hundred_jobs_over_two_children_run_once_each(app: Skiplock, tmp_path: Path) -> None:
    path = str(tmp_path / "ids")
    handles = await app.aenqueue_many([jobs.once.job(path) for _ in range(200)])
    async with running_worker(app, queues={"once": 50}, children=2) as worker:
        await worker.until(lambda: len(worker.heard("attempt_ended")) == 200)
        assert len(worker.heard("task_process_started")) <= 2
        assert worker.worker._lines.by_name["once"].concurrency == 2, "a queue of such tasks only: more would just wait"
    ran = Counter(int(line) for line in Path(path).read_text().split())
    assert ran == Counter(handle.id for handle in handles)
    assert {event["verdict"] for event in worker.heard("attempt_ended")} == {"completed"}


async def test_forks_of_a_handler_s_own(app: Skiplock) -> None:
    """A fork that comes back from the handler does not speak for the child; a pool that ends its processes by SIGTERM can.
    Fails without `_end_if_forked`, and without `register_at_fork`."""
    async with running_worker(app, children=1) as worker:
        for returns in (True, False, True):
            record = await settled(await jobs.forks.aenqueue(returns))
            assert record.result == pids(worker)[0]
        assert (await settled(await jobs.pools.aenqueue())).result == [1, 2, 3, -signal.SIGTERM]
        assert (await settled(await jobs.add.aenqueue(1, 1))).result[1] == pids(worker)[0]


# --- how they are stopped ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "how", ["python", "a regular expression", "a call in C", "a call that blocks", "ignores signals"]
)
async def test_a_timeout_kills_what_nothing_else_could_end(app: Skiplock, tmp_path: Path, how: str) -> None:
    """And it is dead before its job may run again. Fails if `Child.run` does not wait for the end of what it has killed."""
    path = tmp_path / "pid"
    async with running_worker(app, children=1) as worker:
        job = await jobs.hangs.using(timeout=0.3).aenqueue(how, str(path))
        began = time.monotonic()
        record = await settled(job, limit=10)
        assert not is_alive(int(path.read_text()))
        assert time.monotonic() - began < 8
        assert (record.state, record.error) == ("dead", "TimeoutError: ran longer than its timeout of 0.3 s")
        assert worker.heard("handler_stuck") == []
        assert (await settled(await jobs.add.aenqueue(1, 1))).state == "completed"


async def test_a_coroutine_in_a_child_has_no_say_in_its_timeout(app: Skiplock) -> None:
    async with running_worker(app, children=1):
        record = await settled(await jobs.ahangs.using(timeout=0.2).aenqueue(swallow=True), limit=10)
    assert record.error == "TimeoutError: ran longer than its timeout of 0.2 s"


async def test_the_time_of_a_job_runs_from_the_start_of_its_handler(app: Skiplock, tmp_path: Path) -> None:
    """Neither the start of a child nor the wait for a free one counts. Fails if the timer is set in `_attempt_in_child`."""
    async with running_worker(app, children=1) as worker:
        first = await jobs.note.using(timeout=5).aenqueue(str(tmp_path / "first"), 1.0)
        await started(worker, first)
        second = await jobs.add.using(timeout=0.15).aenqueue(1, 1)
        record = await settled(second)
        assert (record.state, record.attempt, record.attempts) == ("completed", 1, ())
        os.kill(pids(worker)[0], signal.SIGKILL)
        third = await settled(await jobs.add.using(timeout=0.15).aenqueue(1, 1))
        assert (third.state, third.attempts) == ("completed", ())


async def test_a_cancel_ends_the_child_or_the_wait_for_one(app: Skiplock, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    async with running_worker(app, children=1, beat_every=0.2, lost_after=2.0) as worker:
        running = await jobs.hangs.aenqueue("python", str(path))
        await started(worker, running)
        waiting = await jobs.add.aenqueue(1, 1)
        await worker.until(lambda: worker.worker._lines.running == 2)
        await waiting.acancel()
        assert (await settled(waiting)).state == "cancelled"
        await worker.until(lambda: path.exists() and path.read_text())
        await running.acancel()
        record = await settled(running)
        assert (record.state, record.error) == ("cancelled", "Cancel: cancelled while running")
        assert not is_alive(int(path.read_text()))
        assert [event["job"].id for event in worker.heard("attempt_started")] == [running.id]


async def test_a_stop_lets_a_job_finish_and_gives_back_those_that_wait(
    app: Skiplock, db: Verbs, tmp_path: Path
) -> None:
    """Within the grace period; the waiting one, with its only attempt unspent, long before."""
    async with running_worker(app, children=1, grace=20.0) as worker:
        running = await jobs.note.using(max_attempts=1).aenqueue(str(tmp_path / "note"), 1.5)
        await started(worker, running)
        waiting = await jobs.add.using(max_attempts=1).aenqueue(1, 1)
        await worker.until(lambda: worker.worker._lines.running == 2)
        worker.worker.stop("test")
        await settled(waiting, state="ready")
        assert (await running.aget()).state == "running"
        assert (await settled(running)).state == "completed"
    assert (db.job(waiting.id).state, db.job(waiting.id).attempt) == ("ready", 0)


async def test_a_stop_without_grace_gives_the_job_back(app: Skiplock, db: Verbs, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    async with running_worker(app, children=1, grace=0.1) as worker:
        job = await jobs.hangs.aenqueue("a call in C", str(path))
        await started(worker, job)
        await worker.until(lambda: path.exists() and path.read_text())
    row = db.job(job.id)
    assert (row.state, row.attempt) == ("ready", 0)
    assert not is_alive(int(path.read_text()))
    assert worker.heard("handler_stuck") == []


async def test_a_child_that_is_told_to_stop_while_it_starts(app: Skiplock) -> None:
    """With its worker, by whoever signals all processes; what it does about that is the worker's decision. Fails if `_spawn`
    does not block the signals until the child knows."""

    def tell(event: Event) -> None:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(event.fields["pid"], number)

    app.events.subscribe(tell, "task_process_started")
    async with running_worker(app, children=1):
        record = await settled(await jobs.add.aenqueue(1, 1))
    assert (record.state, record.attempt, record.attempts) == ("completed", 1, ())


async def test_a_lost_lease_ends_the_child_and_nothing_is_said(app: Skiplock, db: Verbs, tmp_path: Path) -> None:
    path = tmp_path / "pid"
    async with running_worker(app, children=1) as worker:
        job = await jobs.hangs.aenqueue("python", str(path))
        await worker.until(lambda: path.exists() and path.read_text())
        worker.worker._runner.interrupt_all(LOST)
        await worker.until(lambda: not worker.worker._lines.running)
        assert not is_alive(int(path.read_text()))
        assert (db.job(job.id).state, worker.heard("attempt_ended")) == ("running", [])


async def test_an_outcome_that_was_told_stands(app: Skiplock, monkeypatch: pytest.MonkeyPatch) -> None:
    """LIFE-31: the end of the handler and its interruption in the same moment: it has succeeded, and is no failure.
    Fails if `Child.run` raises CancelledError whatever it has heard."""
    async with running_worker(app, children=1) as worker:
        await settled(await jobs.add.aenqueue(1, 1))
        runner, answered = worker.worker._runner, children.Child._answered

        def interrupting(child: children.Child, job: int, settle: Any) -> None:
            answered(child, job, settle)
            runner.interrupt_all("timeout")

        monkeypatch.setattr(children.Child, "_answered", interrupting)
        record = await settled(await jobs.add.aenqueue(2, 2))
        monkeypatch.undo()
        assert (record.state, record.result[0]) == ("completed", 4)


async def test_interrupted_before_its_first_step_an_attempt_still_ends(app: Skiplock) -> None:
    """Of any executor: cancelled before its first step, a coroutine never runs, and neither its outcome nor its slot comes
    back. Remove the postponement in `Runner.interrupt`: the slots stay taken."""
    here = Skiplock(app.dsn)
    ran: list[int] = []

    @here.task(name="on the loop")
    async def on_loop() -> None:
        ran.append(1)
        await asyncio.sleep(60)

    @here.task(name="in a thread")
    def in_thread() -> None: ...

    async with running_worker(here) as worker:
        runner = worker.worker._runner
        accept = runner.accept

        def accept_and_interrupt(claimed: Any) -> None:
            accept(claimed)
            runner.interrupt_all(LOST)

        runner.accept = accept_and_interrupt  # type: ignore[method-assign]
        await here.aenqueue_many([on_loop.job(), in_thread.job()])
        await worker.until(lambda: worker.worker._lines.by_name["default"].starts == 2)
        await worker.until(lambda: worker.worker._lines.running == 0, limit=4.0)


@pytest.mark.parametrize("loop", [asyncio.SelectorEventLoop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_child_that_dies_at_once_takes_nobody_s_file_with_it(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """The number of its closed socket may be that of a connection to the database a moment later: it is closed once only, by
    whoever opened it. Fails if the socket is given to a transport of uvloop, which closes it behind Python's back."""

    def kill_and_wait(event: Event) -> None:
        os.kill(event.fields["pid"], signal.SIGKILL)
        os.waitid(
            os.P_PID, event.fields["pid"], os.WEXITED | os.WNOWAIT
        )  # its end of the socket is closed before we use ours

    async def start_and_kill() -> None:
        async with asyncio.timeout(30):
            for _ in range(5):
                with app_on("postgresql://nobody@127.0.0.1:1/none") as app:
                    app.events.subscribe(kill_and_wait, "task_process_started")
                    family = children_for(app, WorkerSettings(children=1))
                    assert family is not None
                    job = Job(1, 1, "q", 0, 0, "add", "{}", 1, 1, 0, "2026-01-01 00:00:00+00", None, None)
                    with pytest.raises(ChildStartError, match="was killed by SIGKILL"):
                        await family.run(Work(job), lambda _: None)
                    opened = [fd for _ in range(10) for fd in os.pipe()]
                    await family.close()
                    del family
                    gc.collect()
                    for fd in opened:
                        os.close(fd)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(start_and_kill())
