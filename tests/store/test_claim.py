"""Claiming: each job once, in order, no more than there is room for, and nobody waits for anybody."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import psycopg
import pytest

from tests.support.verbs import Claimed, Verbs, at_once, open_verbs

Lanes = Sequence[tuple[str, int, int]]
EVERYWHERE: dict[str, Lanes | None] = {"full": None, "cursor": [("default", 0, 0)]}
both_modes = pytest.mark.parametrize("lanes", EVERYWHERE.values(), ids=EVERYWHERE)


@pytest.fixture
def db(dsn: str) -> Iterator[Verbs]:
    with open_verbs(dsn) as verbs:
        verbs.empty()
        yield verbs


@pytest.fixture
def other(dsn: str) -> Iterator[Verbs]:
    with open_verbs(dsn) as verbs:
        yield verbs


def ids(claimed: Sequence[Claimed]) -> list[int]:
    return [job.id for job in claimed]


# --- one claim --------------------------------------------------------------------------------------------------------


def test_what_a_claim_does_to_a_job(db: Verbs) -> None:
    worker, job = db.register(), db.enqueue(args='{"a": 1}', meta='{"m": 1}', tags=["x"], options='{"timeout": 1}')
    before = db.job(job)
    [claimed] = db.claim(worker, lease=77)
    row = db.job(job)
    assert (claimed.id, claimed.lease, claimed.attempt) == (job, 77, 1)
    assert (row.state, row.stage, row.lease, row.worker, row.attempt) == (
        "running",
        "skiplock.jobs_running",
        77,
        worker,
        1,
    )
    kept = ("args", "meta", "tags", "options", "enqueued_at", "position", "priority", "max_attempts", "queue", "task")
    assert [getattr(row, name) for name in kept] == [getattr(before, name) for name in kept]
    assert row.started_at >= before.enqueued_at


@pytest.mark.parametrize("queue", ["default", "other"])
def test_nothing_there(db: Verbs, queue: str) -> None:
    worker = db.register()
    assert db.claim(worker, {queue: 5}) == []
    assert db.claim(worker, {queue: 5}, lanes=[(queue, 0, 0)]) == []


@both_modes
def test_in_the_order_they_became_ready(db: Verbs, lanes: Lanes | None) -> None:
    jobs = db.enqueue_some(20)
    assert ids(db.claim(db.register(), 8, lanes=lanes)) == jobs[:8]


LANES = [("default", priority, 0) for priority in (9, 0, -3)]


@pytest.mark.parametrize("lanes", [None, LANES], ids=EVERYWHERE)
def test_best_priority_first_then_position(db: Verbs, lanes: Lanes | None) -> None:
    worker = db.register()
    low, normal, high = (db.enqueue_some(2, priority=priority) for priority in (-3, 0, 9))
    more = db.enqueue_some(1, priority=9)
    assert ids(db.claim(worker, 4, lanes=lanes)) == [*high, *more, normal[0]]
    assert ids(db.claim(worker, 4, lanes=lanes)) == [normal[1], *low]


@pytest.mark.parametrize("lanes", [None, [("a", 0, 0), ("b", 0, 0), ("c", 0, 0)]], ids=EVERYWHERE)
def test_the_room_of_each_queue_is_respected(db: Verbs, lanes: Lanes | None) -> None:
    jobs = {queue: db.enqueue_some(5, queue=queue) for queue in "abc"}
    claimed = db.claim(db.register(), {"a": 2, "b": 4, "c": 0}, lanes=lanes)
    assert sorted(ids(claimed)) == jobs["a"][:2] + jobs["b"][:4]


@both_modes
def test_a_room_for_another_queue_helps_nobody(db: Verbs, lanes: Lanes | None) -> None:
    db.enqueue(queue="default")
    assert db.claim(db.register(), {"other": 5}, lanes=lanes) == []


@both_modes
def test_unknown_tasks_stay_and_let_others_pass(db: Verbs, lanes: Lanes | None) -> None:
    worker = db.register()
    unknown = db.enqueue_some(3, task="unknown")
    known = db.enqueue_some(2)
    assert ids(db.claim(worker, 2, lanes=lanes)) == known
    assert [db.state(job) for job in unknown] == ["ready"] * 3
    assert ids(db.claim(worker, tasks=("unknown", "t"), lanes=lanes)) == unknown


@both_modes
def test_a_paused_queue_gives_nothing_until_it_is_resumed(db: Verbs, lanes: Lanes | None) -> None:
    worker, job = db.register(), db.enqueue()
    db.rows("SELECT skiplock.pause('default')")
    assert db.claim(worker, lanes=lanes) == []
    db.rows("SELECT skiplock.resume('default')")
    assert ids(db.claim(worker, lanes=lanes)) == [job]


@both_modes
def test_pausing_one_queue_stops_only_that_one(db: Verbs, lanes: Lanes | None) -> None:
    worker = db.register()
    db.enqueue(queue="a")
    job = db.enqueue()
    db.rows("SELECT skiplock.pause('a')")
    assert ids(db.claim(worker, {"a": 5, "default": 5}, lanes=[*lanes, ("a", 0, 0)] if lanes else None)) == [job]


@both_modes
def test_a_job_for_later_is_not_there(db: Verbs, lanes: Lanes | None) -> None:
    db.enqueue(delay="1 hour")
    assert db.claim(db.register(), lanes=lanes) == []


# --- the cursor -------------------------------------------------------------------------------------------------------


def test_a_cursor_seeks_past_what_lies_before_it(db: Verbs) -> None:
    jobs, worker = db.enqueue_some(6), db.register()
    assert ids(db.claim(worker, lanes=[("default", 0, jobs[3])])) == jobs[3:]
    assert ids(db.claim(worker)) == jobs[:3]


def test_a_cursor_sees_only_its_lanes(db: Verbs) -> None:
    worker = db.register()
    db.enqueue(priority=5)
    job = db.enqueue()
    assert ids(db.claim(worker, lanes=[("default", 0, 0)])) == [job]
    assert len(db.claim(worker)) == 1


def test_lanes_without_any_are_no_full_claim(db: Verbs) -> None:
    db.enqueue()
    assert db.claim(db.register(), lanes=[]) == []


# --- many claimers ----------------------------------------------------------------------------------------------------


@both_modes
def test_every_job_goes_to_exactly_one_of_many_claimers(db: Verbs, dsn: str, lanes: Lanes | None) -> None:
    jobs = [row[0] for row in db.rows("SELECT skiplock.enqueue('t') FROM generate_series(1, 300)")]

    def take_all(mine: Verbs, n: int) -> list[int]:
        worker, found = mine.register(f"w{n}"), []
        while claimed := mine.claim(worker, 7, lanes=lanes):
            found += ids(claimed)
        return found

    shares = at_once(dsn, 8, take_all)
    assert sorted(job for share in shares for job in share) == jobs
    assert db.count("jobs_running") == 300
    assert db.count("jobs_ready") == 0


def test_one_job_and_many_claimers(db: Verbs, dsn: str) -> None:
    for _ in range(5):
        job = db.enqueue()
        shares = at_once(dsn, 6, lambda mine, n: ids(mine.claim(n + 1, 1)))
        assert sorted(shares) == [[]] * 5 + [[job]]


@both_modes
def test_what_another_has_locked_is_skipped_and_not_waited_for(db: Verbs, other: Verbs, lanes: Lanes | None) -> None:
    jobs = db.enqueue_some(4)
    with other.transaction():
        other.rows("SELECT FROM skiplock.jobs_ready WHERE id = ANY (%s) FOR UPDATE", jobs[:2])
        db.rows("SET lock_timeout = '10s'")
        assert ids(db.claim(db.register(), lanes=lanes)) == jobs[2:]


def test_a_claim_rolled_back_is_as_if_it_had_not_been(db: Verbs, other: Verbs) -> None:
    job, worker = db.enqueue(), db.register()
    before = db.job(job)
    with other.transaction(force_rollback=True):
        assert ids(other.claim(worker)) == [job]
        assert db.claim(worker) == []
    assert db.job(job) == before
    assert ids(db.claim(worker)) == [job]


# --- no more is locked than is taken ----------------------------------------------------------------------------------


def unlocked(db: Verbs) -> int:
    """How many ready jobs nobody has locked."""
    with db.transaction(force_rollback=True):
        return len(db.rows("SELECT id FROM skiplock.jobs_ready FOR UPDATE SKIP LOCKED"))


def fill(db: Verbs) -> None:
    """30 jobs in each of three queues: 10 of each priority."""
    db.rows(
        "SELECT skiplock.enqueue('t', queue => q, priority => p) "
        "FROM unnest(ARRAY['default', 'a', 'b']) q, generate_series(0, 2) p, generate_series(1, 10)"
    )


ALL = [(queue, priority, 0) for queue in ("a", "b", "default") for priority in (2, 1, 0)]
ROOMS: dict[str, tuple[dict[str, int], Lanes | None, int]] = {
    "one of one queue": ({"default": 1}, None, 1),
    "some": ({"default": 7}, None, 7),
    "more than a lane": ({"default": 15}, None, 15),
    "several queues": ({"default": 3, "a": 5, "b": 0}, None, 8),
    "cursor: one": ({"default": 1}, ALL, 1),
    "cursor: more than a lane": ({"default": 15}, ALL, 15),
    "cursor: several queues": ({"default": 3, "a": 12, "b": 1}, ALL, 16),
    "cursor: lanes that are empty": ({"default": 4}, [("default", 9, 0), *ALL], 4),
}
PLANS: dict[str, Callable[[Verbs], object]] = {
    "never analysed": lambda db: None,
    "analysed": lambda db: db.rows("ANALYZE skiplock.jobs_ready"),
    "analysed while empty": lambda db: db.rows("ANALYZE skiplock.jobs_ready"),
}


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_claim_locks_exactly_what_it_takes(
    db: Verbs, other: Verbs, plan: Callable[[Verbs], object], request: pytest.FixtureRequest
) -> None:
    if "empty" in request.node.name:
        plan(db)
    fill(db)
    if "empty" not in request.node.name:
        plan(db)
    for what, (rooms, lanes, expected) in ROOMS.items():
        with db.transaction(force_rollback=True):
            assert len(db.claim(1, rooms, lanes=lanes)) == expected, what
            assert unlocked(other) == 90 - expected, what


@both_modes
def test_jobs_of_a_paused_queue_are_not_locked_either(db: Verbs, other: Verbs, lanes: Lanes | None) -> None:
    fill(db)
    db.rows("SELECT skiplock.pause('a')")
    with db.transaction(force_rollback=True):
        assert len(db.claim(1, {"a": 5, "b": 5}, lanes=lanes and ALL)) == 5
        assert unlocked(other) == 85


# --- suspects ---------------------------------------------------------------------------------------------------------


def with_losses(db: Verbs, losses: int, task: str = "t") -> int:
    """A ready job whose worker was lost so often."""
    job = db.enqueue(task)
    for n in range(losses):
        worker = db.register()
        taken = db.claim_suspects(worker, alone=n > 1, tasks=(task,)) if n else db.claim(worker, tasks=(task,))
        assert ids(taken) == [job]
        db.rows("SELECT skiplock.report_lost(%s, %s, 'killed')", worker, [job])
    assert db.job(job).losses == losses
    return job


def test_a_job_that_lost_its_worker_is_claimed_with_care_only(db: Verbs) -> None:
    worker, job = db.register(), with_losses(db, 1)
    assert db.claim(worker) == []
    assert db.claim(worker, lanes=[("default", 0, 0)]) == []
    assert db.claim_suspects(worker, alone=True) == []
    [claimed] = db.claim_suspects(worker)
    assert (claimed.id, claimed.losses, claimed.attempt) == (job, 1, 2)


def test_a_job_that_lost_two_is_claimed_alone(db: Verbs) -> None:
    worker = db.register()
    jobs = [with_losses(db, 2), with_losses(db, 2)]
    assert db.claim_suspects(worker) == []
    assert [ids(db.claim_suspects(worker, alone=True)) for _ in range(3)] == [[jobs[0]], [jobs[1]], []]


def test_suspects_respect_room_tasks_and_pause(db: Verbs) -> None:
    worker = db.register()
    jobs = [with_losses(db, 1) for _ in range(3)]
    assert db.claim_suspects(worker, 0) == []
    assert db.claim_suspects(worker, tasks=("else",)) == []
    db.rows("SELECT skiplock.pause('default')")
    assert db.claim_suspects(worker) == []
    db.rows("SELECT skiplock.resume('default')")
    assert ids(db.claim_suspects(worker, 2)) == jobs[:2]


def test_a_beat_tells_of_suspects(db: Verbs) -> None:
    worker = db.register()
    sql = "SELECT suspects FROM skiplock.beat(%s, queues => ARRAY['default'])"
    assert db.value(sql, worker) == 0
    with_losses(db, 1)
    assert db.value(sql, worker) == 1
    with_losses(db, 2, task="worse")
    assert db.value(sql, worker) == 2


def test_success_clears_a_job_of_suspicion_and_so_does_a_failure_of_its_own(db: Verbs) -> None:
    worker, job = db.register(), with_losses(db, 1)
    [claimed] = db.claim_suspects(worker)
    db.rows(
        "SELECT skiplock.settle('{}', '{}', others => %s)",
        f'[{{"id": {job}, "lease": {claimed.lease}, "verdict": "retry"}}]',
    )
    db.rows("SELECT skiplock.promote()")
    assert [(found.id, found.losses) for found in db.claim(worker)] == [(job, 0)]


# --- giving a claim back ----------------------------------------------------------------------------------------------


def test_a_claim_whose_answer_was_lost_is_given_back_by_its_lease(db: Verbs) -> None:
    worker, jobs = db.register(), db.enqueue_some(3)
    before = [db.job(job) for job in jobs]
    db.claim(worker, 2, lease=5)
    [kept] = db.claim(worker, 1, lease=6)
    assert db.value("SELECT skiplock.release_claim(%s, 5)", worker) == 2
    for job, old in zip(jobs[:2], before, strict=False):
        row = db.job(job)
        assert (row.state, row.attempt, row.position, row.worker) == ("ready", 0, old.position, None)
    assert db.state(kept.id) == "running"
    assert db.value("SELECT skiplock.release_claim(%s, 5)", worker) == 0
    assert ids(db.claim(worker)) == jobs[:2]


@pytest.mark.parametrize(("worker", "lease"), [(1, 6), (2, 5)], ids=["another lease", "another worker"])
def test_only_the_very_claim_is_given_back(db: Verbs, worker: int, lease: int) -> None:
    job = db.enqueue()
    db.claim(1, lease=5)
    assert db.value("SELECT skiplock.release_claim(%s, %s)", worker, lease) == 0
    assert db.state(job) == "running"


def test_two_claims_under_one_lease_are_two_claims_of_one_worker(db: Verbs) -> None:
    """A lease is drawn at random; should a caller repeat it, nothing breaks."""
    jobs = db.enqueue_some(2)
    assert ids(db.claim(1, 1, lease=5) + db.claim(1, 1, lease=5)) == jobs


def test_a_claim_leaves_no_lock_behind(db: Verbs) -> None:
    db.enqueue()
    db.claim(1)
    assert db.value("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'") == 0


def test_a_claim_in_a_read_only_transaction_fails_and_takes_nothing(db: Verbs) -> None:
    job = db.enqueue()
    db.rows("SET default_transaction_read_only = on")
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        db.claim(1)
    db.rows("SET default_transaction_read_only = off")
    assert db.state(job) == "ready"
