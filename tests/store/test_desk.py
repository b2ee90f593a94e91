"""The desk: finding a job in whatever state, and what may be done to it there."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from skiplock import JobNotFoundError, JobState, JobStateError, OptionError, Skiplock
from skiplock.desk.act import cancel_call, delete_call, retry_call
from skiplock.desk.find import get_call, list_call, queues_call, workers_call
from skiplock.desk.queues import pause_call, resume_call
from tests.support.verbs import Claimed, Verbs, at_once, failure, open_verbs, verdict

S = "skiplock"


@pytest.fixture
def db(dsn: str) -> Iterator[Verbs]:
    with open_verbs(dsn) as verbs:
        verbs.empty()
        yield verbs


@pytest.fixture(scope="module")
def app(dsn: str) -> Iterator[Skiplock]:
    with Skiplock(dsn) as found:
        yield found


numbers = itertools.count(1)


def taken(db: Verbs, **options: Any) -> Claimed:
    """A running job, of a task of its own so that the claim takes no other."""
    task = f"task {next(numbers)}"
    db.enqueue(task, **options)
    [claimed] = db.claim(db.register(), tasks=(task,))
    return claimed


# --- a job in each state ----------------------------------------------------------------------------------------------


def ready(db: Verbs) -> int:
    return db.enqueue()


def ready_moved(db: Verbs) -> int:
    """Promoted: its place in line is not its id."""
    job = db.enqueue(delay="1 hour")
    db.rows("UPDATE skiplock.jobs_waiting SET run_at = run_at - interval '2 hours' WHERE id = %s", job)
    db.rows("SELECT skiplock.promote()")
    row = db.job(job)
    assert row.state == "ready" and row.position != job
    return job


def ready_lossy(db: Verbs) -> int:
    job = taken(db, priority=3)
    db.rows("SELECT skiplock.report_lost(worker, ARRAY[id], 'killed') FROM skiplock.jobs_running WHERE id = %s", job.id)
    assert db.job(job.id).losses == 1
    return job.id


def ready_released(db: Verbs) -> int:
    job = taken(db)
    db.settle(others=[verdict(job, "release")])
    return job.id


def scheduled(db: Verbs) -> int:
    return db.enqueue(delay="1 hour")


def retryable(db: Verbs) -> int:
    job = taken(db)
    db.settle(others=[verdict(job, "retry", delay=3600, failure=failure())])
    return job.id


def blocked(db: Verbs) -> int:
    job = db.enqueue(delay="1 hour")
    db.rows("UPDATE skiplock.jobs_waiting SET state = 'blocked', run_at = NULL WHERE id = %s", job)
    return job


def running(db: Verbs) -> int:
    return taken(db).id


def dead(db: Verbs) -> int:
    job = taken(db, max_attempts=1)
    db.settle(others=[verdict(job, "retry", failure=failure())])
    return job.id


def completed(db: Verbs) -> int:
    job = taken(db)
    db.settle(completed=[job], results=['{"rows": 3}'])
    return job.id


def cancelled(db: Verbs) -> int:
    job = db.enqueue()
    db.rows("SELECT skiplock.cancel(%s)", job)
    return job


def never_was(db: Verbs) -> int:
    return 2**62


Make = Callable[[Verbs], int]
STATES: dict[Make, str] = {
    ready: "ready", ready_moved: "ready", ready_lossy: "ready", ready_released: "ready", scheduled: "scheduled",
    retryable: "retryable", blocked: "blocked", running: "running", dead: "dead", completed: "completed",
    cancelled: "cancelled",
}  # fmt: skip


# --- finding ----------------------------------------------------------------------------------------------------------


def test_every_job_is_found_where_it_is_and_once(db: Verbs, app: Skiplock) -> None:
    for queue, priority in [("default", 7), ("default", -7), ("a", 0), ("z", 1)]:
        db.enqueue(queue=queue, priority=priority)  # other lanes, which finding a ready job has to step over
    jobs = {job: state for make, state in STATES.items() for job in [make(db)]}
    found = db.rows("SELECT * FROM skiplock.find(%s)", [*jobs, 2**62])
    assert {row.id: row.state for row in found} == jobs
    assert len(found) == len(jobs)
    for job, state in jobs.items():
        assert app.get(job).state == state, state


def test_what_is_shown_of_a_job(db: Verbs, app: Skiplock) -> None:
    options = {"args": '{"a": [1.5]}', "meta": '{"m": 1}', "tags": ["x", "y,z"], "options": '{"timeout": 3}'}
    job = taken(db, queue="default", priority=2, **options)
    db.settle(others=[verdict(job, "retry", failure=failure("first"), delay=0)])
    db.rows("SELECT skiplock.promote()")
    [again] = db.claim(db.register("Bob's"), tasks=(job.task,))
    db.settle(others=[verdict(again, "dead", failure=failure("second"))])
    found = app.job(job.id).get()
    assert (found.id, found.state, found.task, found.queue, found.priority) == (
        job.id,
        JobState.DEAD,
        job.task,
        "default",
        2,
    )
    assert (found.args, found.meta, found.tags, found.options) == ({"a": [1.5]}, {"m": 1}, ("x", "y,z"), {"timeout": 3})
    assert (found.attempt, found.max_attempts, found.losses, found.error) == (2, 10, 0, "ValueError: second")
    assert [(kept.attempt, kept.verdict, kept.message) for kept in found.attempts] == [
        (1, "retry", "first"),
        (2, "dead", "second"),
    ]
    assert found.attempts[1].worker == "Bob's"
    times = (found.enqueued_at, found.started_at, found.finished_at, found.attempts[0].ended_at)
    assert all(time is not None and time.utcoffset() is not None for time in times)


def test_a_result_is_shown(db: Verbs, app: Skiplock) -> None:
    assert app.get(completed(db)).result == {"rows": 3}


@pytest.mark.parametrize("job", [0, 2**63 - 1])
def test_a_job_that_is_not_there(app: Skiplock, job: int) -> None:
    with pytest.raises(JobNotFoundError, match=str(job)):
        app.get(job)


@pytest.mark.parametrize("job", [-1, 2**63, True, "7", None, 1.0], ids=repr)
def test_what_can_be_no_id(app: Skiplock, job: Any) -> None:
    with pytest.raises(OptionError, match="job id"):
        app.get(job)


async def test_the_async_face(db: Verbs, dsn: str) -> None:
    async with Skiplock(dsn) as app:
        job = app.job(db.enqueue())
        assert (await job.aget()).state == (await app.aget(job.id)).state == "ready"
        assert await job.acancel() == "ready"
        assert await job.aretry() == "cancelled"
        assert await job.adelete() == "ready"
        with pytest.raises(JobNotFoundError):
            await job.aget()


# --- lists ------------------------------------------------------------------------------------------------------------


def listed(app: Skiplock, **filters: Any) -> list[int]:
    return [found.id for found in app.run(list_call(S, **filters))]


def test_filters(db: Verbs, app: Skiplock) -> None:
    by_state = {state: make(db) for make, state in STATES.items()}
    mail = db.enqueue("send", queue="mail", tags=["urgent", "x"])
    for state, job in by_state.items():
        assert job in listed(app, states=[state])
        assert all(found.state == state for found in app.run(list_call(S, states=[state])))
    assert listed(app, queue="mail") == listed(app, task="send") == listed(app, tag="urgent") == [mail]
    assert listed(app, queue="mail", states=["dead"]) == listed(app, task="nope") == listed(app, tag="urg") == []
    assert set(listed(app, states=[JobState.DEAD, JobState.RUNNING])) == {by_state["dead"], by_state["running"]}
    assert len(listed(app)) == db.count()


def test_page_by_page_newest_first(db: Verbs, app: Skiplock) -> None:
    for make in [*STATES, *STATES]:
        make(db)
    everything = [row.id for row in db.rows("SELECT id FROM skiplock.jobs ORDER BY id DESC")]
    pages, before = [], None
    while page := listed(app, before=before, limit=4):
        pages.append(page)
        before = page[-1]
    assert [job for page in pages for job in page] == everything
    assert max(map(len, pages)) == 4


WRONG: dict[str, dict[str, Any]] = {
    "a state that is none": {"states": ["done"]}, "limit 0": {"limit": 0}, "limit 1001": {"limit": 1001},
    "before a text": {"before": "x"}, "before -1": {"before": -1},
}  # fmt: skip


@pytest.mark.parametrize("filters", WRONG.values(), ids=WRONG)
def test_filters_that_make_no_sense(filters: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        list_call(S, **filters)


def test_text_in_filters_is_only_text(db: Verbs, app: Skiplock) -> None:
    odd = """a"b'c\\d,{e}%;--"""
    job = db.enqueue(odd, queue=odd, tags=[odd])
    assert listed(app, queue=odd) == listed(app, task=odd) == listed(app, tag=odd) == [job]


@pytest.mark.parametrize("column", ["args", "meta", "options"])
@pytest.mark.parametrize("value", [r'"\ud800"', "[" * 2000 + "]" * 2000], ids=["a lone surrogate", "too deep"])
def test_json_that_python_cannot_read_breaks_no_list(db: Verbs, app: Skiplock, column: str, value: str) -> None:
    """Enqueued by SQL: PostgreSQL takes it as json."""
    good, bad = db.enqueue(), db.enqueue(**{column: f'{{"a": {value}}}'})
    assert listed(app) == [bad, good]
    assert app.get(bad).state == "ready"


# --- acts -------------------------------------------------------------------------------------------------------------

ACTS = {"retry": retry_call, "cancel": cancel_call, "delete": delete_call}
# What becomes of a job in each state; an error class: refused.
BECOMES: dict[str, dict[Make, Any]] = {
    "retry": {
        ready: JobStateError, ready_moved: JobStateError, ready_lossy: JobStateError, ready_released: JobStateError,
        scheduled: "ready", retryable: "ready", blocked: JobStateError, running: JobStateError, dead: "ready",
        completed: JobStateError, cancelled: "ready", never_was: JobNotFoundError,
    },
    "cancel": {
        ready: "cancelled", ready_moved: "cancelled", ready_lossy: "cancelled", ready_released: "cancelled",
        scheduled: "cancelled", retryable: "cancelled", blocked: "cancelled", running: "running", dead: JobStateError,
        completed: JobStateError, cancelled: "cancelled", never_was: JobNotFoundError,
    },
    "delete": {
        ready: None, ready_moved: None, ready_lossy: None, ready_released: None, scheduled: None, retryable: None,
        blocked: None, running: JobStateError, dead: None, completed: None, cancelled: None, never_was: JobNotFoundError,
    },
}  # fmt: skip
CASES = [
    pytest.param(verb, make, after, id=f"{verb} {make.__name__}")
    for verb, table in BECOMES.items()
    for make, after in table.items()
]


@pytest.mark.parametrize(("verb", "make", "after"), CASES)
def test_every_act_in_every_state(db: Verbs, app: Skiplock, verb: str, make: Make, after: Any) -> None:
    job = make(db)
    before = db.job(job)
    if isinstance(after, type):
        with pytest.raises(after, match=f"job {job}"):
            app.run(ACTS[verb](job, S))
        assert db.job(job) == before
    else:
        assert app.run(ACTS[verb](job, S)) == before.state
        assert db.state(job) == after
    others = db.rows("SELECT id FROM skiplock.jobs WHERE id <> %s", job)
    assert others == []


def test_a_retried_job_runs_now_and_keeps_its_history(db: Verbs, app: Skiplock) -> None:
    job = dead(db)
    app.job(job).retry()
    row = db.job(job)
    assert (row.attempt, row.losses, row.position != job) == (1, 0, True)
    assert row.max_attempts > row.attempt
    assert row.finished_at is row.worker is row.started_at is None
    [claimed] = db.claim(db.register(), tasks=(row.task,))
    assert (claimed.id, claimed.attempt) == (job, 2)
    assert [kept.attempt for kept in db.attempts(job)] == [1]


def test_a_job_dead_of_losses_is_retried_without_suspicion(db: Verbs, app: Skiplock) -> None:
    job = db.enqueue()
    for _ in range(3):
        worker = db.register()
        db.claim(worker), db.claim_suspects(worker), db.claim_suspects(worker, alone=True)
        db.rows("SELECT skiplock.report_lost(%s, %s, 'killed')", worker, [job])
    assert db.state(job) == "dead"
    app.job(job).retry()
    assert [claimed.id for claimed in db.claim(db.register())] == [job]


def test_a_retried_job_goes_to_the_end_of_the_line(db: Verbs, app: Skiplock) -> None:
    first, job, last = db.enqueue(), dead(db), db.enqueue()
    app.job(job).retry()
    in_line = db.rows("SELECT id FROM skiplock.jobs_ready ORDER BY position")
    assert in_line == [(first,), (last,), (job,)]


def test_cancelling_a_running_job_tells_its_worker_at_its_next_beat_and_until_it_is_settled(
    db: Verbs, app: Skiplock
) -> None:
    job = taken(db)
    worker, bystander = db.job(job.id).worker, db.register()
    app.job(job.id).cancel()
    app.job(job.id).cancel()  # asking twice is no error
    told = [db.value("SELECT cancelled FROM skiplock.beat(%s)", who) for who in (worker, worker, bystander)]
    assert told == [[job.id], [job.id], []]
    db.settle(others=[verdict(job, "cancelled")])
    assert db.value("SELECT cancelled FROM skiplock.beat(%s)", worker) == []


def test_deleting_takes_attempts_and_steps_along(db: Verbs, app: Skiplock) -> None:
    kept, gone = dead(db), dead(db)
    for job in (kept, gone):
        db.rows("INSERT INTO skiplock.steps VALUES (%s, 'charge', '1', 1, now())", job)
    app.job(gone).delete()
    for table in ("attempts", "steps"):
        assert [row.job_id for row in db.rows(f"SELECT job_id FROM skiplock.{table}")] == [kept]


# --- acts against the worker ------------------------------------------------------------------------------------------


def test_cancel_against_claim(db: Verbs, dsn: str) -> None:
    """Either the cancel was first and the job never runs, or the claim was and its worker is asked to stop."""
    worker = db.register()
    for _ in range(25):
        job = db.enqueue()

        def act(mine: Verbs, n: int, job: int = job, worker: int = worker) -> Any:
            if n == 0:
                return [claimed.id for claimed in mine.claim(worker)]
            return tuple(mine.rows("SELECT * FROM skiplock.cancel(%s)", job)[0])

        claimed, said = at_once(dsn, 2, act)
        asked = db.rows("SELECT job_id FROM skiplock.cancellations WHERE worker = %s", worker)
        if claimed:
            assert (said, asked, db.state(job)) == ((True, "running"), [(job,)], "running")
        else:
            assert (said, asked, db.state(job)) == ((True, "ready"), [], "cancelled")
        db.empty()
        worker = db.register()


@pytest.mark.parametrize("word", ["completed", "retry", "release", "dead"])
def test_cancel_against_settle(db: Verbs, dsn: str, word: str) -> None:
    """Whoever is first, what the cancel answered is true, and no request is left behind that nobody will see."""
    for _ in range(15):
        job = taken(db)

        def act(mine: Verbs, n: int, job: Claimed = job) -> Any:
            if n == 0:
                return (
                    mine.settle(completed=[job])
                    if word == "completed"
                    else mine.settle(others=[verdict(job, word, delay=9)])
                )
            return tuple(mine.rows("SELECT * FROM skiplock.cancel(%s)", job.id)[0])

        refused, (done, was) = at_once(dsn, 2, act)
        state = db.state(job.id)
        assert refused == []
        assert db.count("cancellations") == 0
        if word in ("completed", "dead"):
            assert state == word and (done, was) in [(True, "running"), (False, word)]
        else:
            assert state == "cancelled" and done
        db.empty()


@pytest.mark.parametrize("verb", ["retry", "delete"])
def test_two_people_at_once(db: Verbs, dsn: str, verb: str) -> None:
    for _ in range(10):
        job = dead(db)
        answers = at_once(dsn, 3, lambda mine, n, job=job: mine.rows(f"SELECT * FROM skiplock.{verb}(%s)", job)[0].done)
        assert sorted(answers) == [False, False, True]
        assert db.count() == (1 if verb == "retry" else 0)
        db.empty()


def test_delete_while_the_job_moves(db: Verbs, dsn: str) -> None:
    """It is deleted or refused, but never said not to exist while it does."""
    worker = db.register()

    def act(mine: Verbs, n: int) -> Any:
        if n == 1:
            return tuple(mine.rows("SELECT * FROM skiplock.delete(%s)", job)[0])
        for claimed in mine.claim(worker):
            mine.settle(others=[verdict(claimed, "retry", delay=0)])
            mine.rows("SELECT skiplock.promote()")
        return None

    for _ in range(40):
        job = db.enqueue()
        _, (done, was) = at_once(dsn, 2, act)
        assert (done, was) == (False, "running") or (done and db.job(job) is None), (done, was, db.state(job))
        db.rows("DELETE FROM skiplock.jobs")


# --- queues and workers -----------------------------------------------------------------------------------------------


def test_queues(db: Verbs, app: Skiplock) -> None:
    for make in STATES:
        make(db)
    db.enqueue(queue="mail")
    app.run(pause_call("mail", S))
    app.run(pause_call("empty", S))
    app.run(resume_call("resumed", S))
    found = {queue.name: queue for queue in app.run(queues_call(S))}
    assert set(found) == {"default", "empty", "mail"}
    default = found["default"]
    assert (default.waiting, default.ready, default.running, default.dead, default.paused) == (3, 4, 1, 1, False)
    assert default.oldest_ready is not None and default.oldest_ready > 0
    assert (found["mail"].ready, found["mail"].paused) == (1, True)
    assert (found["empty"].ready, found["empty"].paused, found["empty"].oldest_ready) == (0, True, None)


def test_pausing_twice_keeps_the_first_time(db: Verbs, app: Skiplock) -> None:
    app.run(pause_call("q", S))
    first = db.rows("SELECT * FROM skiplock.queues")
    app.run(pause_call("q", S))
    assert db.rows("SELECT * FROM skiplock.queues") == first
    app.run(resume_call("q", S))
    assert db.value("SELECT paused_at FROM skiplock.queues") is None


def test_workers(db: Verbs, app: Skiplock) -> None:
    assert app.run(workers_call(S)) == []
    quiet, lost = db.register("quiet", lost_after=1000), db.register("lost", lost_after=1)
    db.rows("SELECT skiplock.beat(%s, 3, 'stopping')", quiet)
    db.rows("UPDATE skiplock.workers SET beat_at = beat_at - interval '1 minute'")
    first, second = app.run(workers_call(S))
    assert (first.id, first.name, first.state, first.running, first.lost, first.host, first.pid) == (
        quiet,
        "quiet",
        "stopping",
        3,
        False,
        "host",
        1,
    )
    assert (second.id, second.name, second.lost, second.queues) == (lost, "lost", True, {})
    assert 60 <= second.silent_for < 120


def test_getting_needs_no_more_than_the_id(app: Skiplock) -> None:
    assert get_call(7, S).params == ("7",)
