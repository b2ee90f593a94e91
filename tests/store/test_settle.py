"""Settling: what each verdict does to a job, once, and only for the attempt that owns it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from tests.support.verbs import Claimed, Verbs, failure, open_verbs, verdict


@pytest.fixture(scope="module")
def db(dsn: str) -> Iterator[Verbs]:
    with open_verbs(dsn) as verbs:
        yield verbs


@pytest.fixture
def worker(db: Verbs) -> Iterator[int]:
    """A registered one, in an empty database."""
    db.empty()
    yield db.register("Ann's")


def running(db: Verbs, worker: int, number: int = 1, **options: Any) -> list[Claimed]:
    db.enqueue_some(number, **options)
    claimed = db.claim(worker)
    assert len(claimed) == number
    return claimed


def all_rows(db: Verbs) -> list[Any]:
    return [db.rows(f"SELECT * FROM skiplock.{table} ORDER BY 1") for table in ("jobs", "attempts", "cancellations")]


# --- each verdict -----------------------------------------------------------------------------------------------------

# verdict and what comes with it → (state, attempt afterwards, verdict of the kept attempt, error)
VERDICTS: dict[str, tuple[str, dict[str, Any], tuple[str, int, str | None, str | None]]] = {
    "retry": ("retry", {"failure": failure(), "delay": 60}, ("retryable", 1, "retry", "ValueError: boom")),
    "retry at once": ("retry", {"failure": failure(), "delay": 0}, ("retryable", 1, "retry", "ValueError: boom")),
    "retry without a delay": ("retry", {"failure": failure()}, ("retryable", 1, "retry", "ValueError: boom")),
    "snooze": ("snooze", {"delay": 60}, ("retryable", 0, None, None)),
    "release": ("release", {}, ("ready", 0, None, None)),
    "cancelled": ("cancelled", {"failure": failure("stop", "Cancel")}, ("cancelled", 1, "cancelled", "Cancel: stop")),
    "cancelled without a word": ("cancelled", {}, ("cancelled", 1, "cancelled", None)),
    "dead": ("dead", {"failure": failure()}, ("dead", 1, "dead", "ValueError: boom")),
    "dead without a message": ("dead", {"failure": failure("")}, ("dead", 1, "dead", "ValueError")),
    "only the first line is the job's error": (
        "dead",
        {"failure": failure("a\nb")},
        ("dead", 1, "dead", "ValueError: a"),
    ),
    "and only so much of it": (
        "dead",
        {"failure": failure("x" * 999)},
        ("dead", 1, "dead", "ValueError: " + "x" * 188),
    ),
}


@pytest.mark.parametrize(("word", "more", "expected"), VERDICTS.values(), ids=VERDICTS)
def test_every_verdict(db: Verbs, worker: int, word: str, more: dict[str, Any], expected: tuple[Any, ...]) -> None:
    [job] = running(db, worker, args='{"a": 1}', meta='{"m": 1}', tags=["x"], options='{"timeout": 9}', priority=3)
    before = db.job(job.id)
    assert db.settle(others=[verdict(job, word, **more)]) == []
    row, kept = db.job(job.id), db.attempts(job.id)
    assert (row.state, row.attempt, kept[0].verdict if kept else None, row.error) == expected
    same = ("args", "meta", "tags", "options", "priority", "queue", "task", "max_attempts", "enqueued_at", "lease")
    assert [getattr(row, name) for name in same] == [getattr(before, name) for name in same]
    assert db.count() == 1


def test_completed(db: Verbs, worker: int) -> None:
    [job] = running(db, worker)
    assert db.settle(completed=[job]) == []
    row = db.job(job.id)
    assert (row.state, row.worker, row.attempt, row.result, row.error) == ("completed", worker, 1, None, None)
    assert (row.finished_at - row.started_at).total_seconds() == 0.5  # what the worker measured
    assert db.attempts(job.id) == []


RESULTS = {
    "a number": "3", "null": "null", "a text": '"x"', "an object": '{"a": [1, 2.50, 1e22]}', "none": None,
    "quotes and backslashes": json.dumps('"\\{},'), "a long one": json.dumps("x" * 100_000),
}  # fmt: skip


def test_the_results_are_stored_as_they_are(db: Verbs, worker: int) -> None:
    jobs = running(db, worker, len(RESULTS))
    db.settle(completed=jobs, results=list(RESULTS.values()))
    stored = db.rows("SELECT result::text FROM skiplock.jobs ORDER BY id")
    assert [row[0] for row in stored] == list(RESULTS.values())


def test_an_earlier_error_is_forgotten_by_success(db: Verbs, worker: int) -> None:
    [job] = running(db, worker)
    db.settle(others=[verdict(job, "retry", failure=failure())])
    db.rows("SELECT skiplock.promote()")
    [again] = db.claim(worker)
    assert db.job(job.id).error == "ValueError: boom"
    db.settle(completed=[again])
    assert db.job(job.id).error is None
    assert [a.verdict for a in db.attempts(job.id)] == ["retry"]


def test_what_is_kept_of_a_failed_attempt(db: Verbs, worker: int) -> None:
    [job] = running(db, worker)
    db.settle(others=[verdict(job, "retry", failure=failure("a\nb"), took=2.5)])
    [kept] = db.attempts(job.id)
    said = failure("a\nb")
    assert (kept.error_class, kept.message, kept.traceback) == (said["error_class"], said["message"], said["traceback"])
    assert (kept.attempt, kept.worker, kept.worker_name) == (1, worker, "Ann's")
    assert (kept.ended_at - kept.started_at).total_seconds() == 2.5


@pytest.mark.parametrize("delay", [0, 0.25, 60, 366 * 86400])
def test_a_delay_counts_from_the_settle(db: Verbs, worker: int, delay: float) -> None:
    [job] = running(db, worker)
    before = db.value("SELECT clock_timestamp()")
    db.settle(others=[verdict(job, "retry", delay=delay)])
    run_at, after = db.job(job.id).run_at, db.value("SELECT clock_timestamp()")
    assert before.timestamp() <= run_at.timestamp() - delay <= after.timestamp()


def test_a_snooze_leaves_all_attempts_whatever_their_number(db: Verbs, worker: int) -> None:
    [job] = running(db, worker, max_attempts=1)
    for _ in range(3):
        db.settle(others=[verdict(job, "snooze", delay=0)])
        assert (db.state(job.id), db.job(job.id).attempt) == ("retryable", 0)
        db.rows("SELECT skiplock.promote()")
        [job] = db.claim(worker)
    assert job.attempt == 1


def test_a_release_keeps_the_place_in_line(db: Verbs, worker: int) -> None:
    jobs = running(db, worker, 3)
    later = db.enqueue()
    db.settle(others=[verdict(job, "release") for job in jobs])
    assert [job.id for job in db.claim(worker)] == [*[job.id for job in jobs], later]


@pytest.mark.parametrize("max_attempts", [1, 2, 3])
def test_a_retry_without_attempts_left_is_death(db: Verbs, worker: int, max_attempts: int) -> None:
    [job] = running(db, worker, max_attempts=max_attempts)
    for n in range(1, max_attempts + 1):
        assert job.attempt == n
        db.settle(others=[verdict(job, "retry", failure=failure(f"number {n}"), delay=0)])
        db.rows("SELECT skiplock.promote()")
        if n < max_attempts:
            [job] = db.claim(worker)
    row = db.job(job.id)
    assert (row.state, row.attempt, row.error) == ("dead", max_attempts, f"ValueError: number {max_attempts}")
    assert [a.message for a in db.attempts(job.id)] == [f"number {n}" for n in range(1, max_attempts + 1)]
    assert row.finished_at is not None


# --- a cancel request -------------------------------------------------------------------------------------------------

CANCELLED = {
    "retry": "cancelled", "snooze": "cancelled", "release": "cancelled", "cancelled": "cancelled", "dead": "dead",
}  # fmt: skip


@pytest.mark.parametrize(("word", "state"), CANCELLED.items(), ids=CANCELLED)
def test_a_cancel_request_wins_over_another_attempt(db: Verbs, worker: int, word: str, state: str) -> None:
    [job] = running(db, worker)
    assert db.rows("SELECT * FROM skiplock.cancel(%s)", job.id) == [(True, "running")]
    assert db.settle(others=[verdict(job, word, delay=0, failure=failure())]) == []
    assert db.state(job.id) == state
    assert db.count("cancellations") == 0


def test_a_job_that_completes_all_the_same_is_completed(db: Verbs, worker: int) -> None:
    [job] = running(db, worker)
    db.rows("SELECT skiplock.cancel(%s)", job.id)
    assert db.settle(completed=[job]) == []
    assert db.state(job.id) == "completed"
    assert db.count("cancellations") == 0


def leave(db: Verbs, worker: int, job: Claimed) -> None:
    db.rows("SELECT skiplock.leave(%s)", worker)


def release_claim(db: Verbs, worker: int, job: Claimed) -> None:
    db.rows("SELECT skiplock.release_claim(%s, %s)", worker, job.lease)


def report_unstarted(db: Verbs, worker: int, job: Claimed) -> None:
    db.rows("SELECT skiplock.report_lost(%s, '{}', 'killed')", worker)


@pytest.mark.parametrize("give_back", [leave, release_claim, report_unstarted])
def test_a_job_asked_to_cancel_is_not_given_back_to_run_again(
    db: Verbs, worker: int, give_back: Callable[[Verbs, int, Claimed], None]
) -> None:
    [job, other] = running(db, worker, 2)
    db.rows("SELECT skiplock.cancel(%s)", job.id)
    give_back(db, worker, job)
    assert (db.state(job.id), db.state(other.id)) == ("cancelled", "ready")
    assert db.count("cancellations") == 0


# --- leases -----------------------------------------------------------------------------------------------------------


def settle_completed(db: Verbs, job: Claimed) -> list[tuple[int, int]]:
    return db.settle(completed=[job])


def settle_other(word: str) -> Callable[[Verbs, Claimed], list[tuple[int, int]]]:
    return lambda db, job: db.settle(others=[verdict(job, word, delay=5, failure=failure())])


SETTLES = {"completed": settle_completed} | {
    word: settle_other(word) for word in ("retry", "snooze", "release", "cancelled", "dead")
}
each_settle = pytest.mark.parametrize("settle", SETTLES.values(), ids=SETTLES)


@each_settle
@pytest.mark.parametrize("now", ["running", "ready", "waiting", "completed", "dead", "deleted"])
def test_a_stale_lease_changes_nothing_and_is_told(
    db: Verbs, worker: int, now: str, settle: Callable[..., Any]
) -> None:
    [stale] = running(db, worker)
    db.rows("SELECT skiplock.report_lost(%s, %s, 'thought dead')", worker, [stale.id])
    if now != "ready":
        [fresh] = db.claim_suspects(db.register("Bob's"))
        if now == "completed":
            db.settle(completed=[fresh])
        elif now != "running":
            db.settle(
                others=[verdict(fresh, "retry" if now == "waiting" else "dead", delay=99, failure=failure("Bob's"))]
            )
        if now == "deleted":
            db.rows("SELECT skiplock.delete(%s)", stale.id)
    before = all_rows(db)
    assert settle(db, stale) == [(stale.id, stale.lease)]
    assert all_rows(db) == before


@each_settle
def test_a_repeat_is_silent_and_changes_nothing(db: Verbs, worker: int, settle: Callable[..., Any]) -> None:
    [job] = running(db, worker)
    assert settle(db, job) == []
    before = all_rows(db)
    assert settle(db, job) == []
    assert all_rows(db) == before


def test_a_repeat_after_the_job_was_promoted_is_silent(db: Verbs, worker: int) -> None:
    [job] = running(db, worker)
    repeated = [verdict(job, "retry", delay=0)]
    db.settle(others=repeated)
    db.rows("SELECT skiplock.promote()")
    assert db.settle(others=repeated) == []


def test_a_mixed_batch_says_exactly_which_were_refused_and_can_be_repeated(db: Verbs, worker: int) -> None:
    jobs = running(db, worker, 8)
    stale = jobs[1]._replace(lease=1), jobs[6]._replace(lease=2), jobs[7]._replace(id=999_999, lease=3)
    completed = [jobs[0], stale[0], jobs[2]]
    others = [
        verdict(jobs[3], "retry", delay=9),
        verdict(jobs[4], "dead"),
        verdict(jobs[5], "cancelled"),
        verdict(stale[1], "dead"),
        verdict(stale[2], "retry"),
    ]
    refused = sorted([(job.id, job.lease) for job in stale])
    for _ in range(2):
        assert sorted(db.settle(completed=completed, others=others)) == refused
        states = [db.state(job.id) for job in jobs]
        assert states == ["completed", "running", "completed", "retryable", "dead", "cancelled", "running", "running"]
        assert len(db.attempts(jobs[3].id)) == len(db.attempts(jobs[4].id)) == 1


@pytest.mark.parametrize("stale_first", [True, False])
@pytest.mark.parametrize("word", ["completed", "retry", "snooze", "release", "cancelled", "dead"])
def test_a_job_twice_in_one_batch_is_settled_once(db: Verbs, worker: int, word: str, stale_first: bool) -> None:
    """An outcome that could not be settled in an outage, and the next attempt's, made by the same process."""
    [stale] = running(db, worker)
    db.rows("SELECT skiplock.report_lost(%s, %s, 'an outage')", worker, [stale.id])
    [fresh] = db.claim_suspects(db.register())
    both = [stale, fresh] if stale_first else [fresh, stale]
    if word == "completed":
        db.settle(completed=both, results=["1" if job is stale else "2" for job in both])
    else:
        db.settle(
            others=[verdict(job, word, delay=9, failure=failure("old" if job is stale else "new")) for job in both]
        )
    assert db.count() == 1
    row = db.job(fresh.id)
    assert row.state not in ("running", None)
    assert row.result == (2 if word == "completed" else None)
    assert "old" not in (row.error or "")


@pytest.mark.parametrize("word", ["completed", "retry", "release", "dead"])
def test_a_job_twice_in_one_batch_is_told_which_lease_was_refused(db: Verbs, worker: int, word: str) -> None:
    """To see it fail: in `settle`, leave the pairs of every job that was settled out of the second look."""
    [stale] = running(db, worker)
    db.rows("SELECT skiplock.report_lost(%s, %s, 'an outage')", worker, [stale.id])
    [fresh] = db.claim_suspects(db.register())
    others = [] if word == "completed" else [verdict(stale, word), verdict(fresh, word)]
    for _ in range(2):
        refused = db.settle(completed=[stale, fresh] if word == "completed" else [], others=others)
        assert refused == [(stale.id, stale.lease)]


@pytest.mark.parametrize("word", ["completed", "retry", "dead"])
def test_the_very_same_pair_twice_is_refused_as_a_whole(db: Verbs, worker: int, word: str) -> None:
    [job] = running(db, worker)
    with pytest.raises(psycopg.Error, match="listed twice"):
        if word == "completed":
            db.settle(completed=[job, job])
        else:
            db.settle(others=[verdict(job, word, delay=9), verdict(job, word, delay=9)])
    assert (db.count(), db.state(job.id)) == (1, "running")


def test_nothing_to_settle(db: Verbs, worker: int) -> None:
    assert db.settle() == []
    assert db.rows("SELECT * FROM skiplock.settle('{}', '{}', NULL, NULL, '[]')") == []
