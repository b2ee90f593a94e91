"""Jobs of lost workers come back, once, with a fair account; and waiting jobs become ready, in order and never early."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.verbs import Claimed, Verbs, at_once, failure, open_verbs, verdict


@pytest.fixture
def db(fresh_dsn: str) -> Iterator[Verbs]:
    """A database of its own, whose clock a test may move."""
    with open_verbs(fresh_dsn) as verbs:
        yield verbs


def rescue(db: Verbs) -> list[Any]:
    return db.rows("SELECT * FROM skiplock.rescue()")


def beat(db: Verbs, worker: int) -> Any:
    return db.rows("SELECT * FROM skiplock.beat(%s)", worker)[0]


def report(db: Verbs, worker: int, started: list[int]) -> int:
    found: int = db.value("SELECT skiplock.report_lost(%s, %s, 'killed by signal 9')", worker, started)
    return found


def holding(db: Verbs, worker: int, number: int = 1, **options: Any) -> list[Claimed]:
    db.enqueue_some(number, **options)
    return db.claim(worker)


# --- who is lost ------------------------------------------------------------------------------------------------------


def test_a_silent_worker_is_lost_and_its_jobs_come_back(db: Verbs) -> None:
    worker = db.register("Ann's", lost_after=9)
    jobs = holding(db, worker, 3)
    last = [db.enqueue()]
    db.move_time(9.5)
    [lost] = rescue(db)
    assert (lost.worker, lost.name, lost.jobs) == (worker, "Ann's", 3)
    assert 9.5 <= lost.silent_for < 60
    assert db.count("workers") == 0
    for job in jobs:
        row, [kept] = db.job(job.id), db.attempts(job.id)
        assert (row.state, row.losses, row.attempt, row.worker) == ("ready", 1, 0, None)
        assert row.position > last[0], "it goes to the end of the line"
        assert "Ann's" in row.error and "fell silent" in row.error
        assert (kept.verdict, kept.error_class, kept.worker, kept.worker_name) == (
            "lost",
            "JobLostError",
            worker,
            "Ann's",
        )
    assert rescue(db) == []


def test_a_namesake_that_beats_keeps_no_dead_worker_alive(db: Verbs) -> None:
    """Killed, and started again at once under its name. To see it fail: let beat (sql/work/beat.sql) look for the worker's name."""
    dead = db.register("shop-1", lost_after=9)
    [job] = holding(db, dead)
    db.move_time(5)
    heir = db.register("shop-1", lost_after=9)
    db.move_time(10)
    assert beat(db, heir).known, "which also makes it the leader, and a leader rescues"
    assert db.rows("SELECT id FROM skiplock.workers") == [(heir,)]
    assert db.job(job.id).state == "ready"
    assert rescue(db) == []


def test_a_worker_that_beats_is_not_lost_however_long_its_jobs_take(db: Verbs) -> None:
    worker = db.register(lost_after=9)
    [job] = holding(db, worker)
    for later in (8, 16, 24, 86400):
        db.move_time(later)
        if later == 86400:
            break
        assert beat(db, worker).known
        assert rescue(db) == []
        assert db.state(job.id) == "running"
    assert len(rescue(db)) == 1


def test_a_worker_is_judged_by_its_own_promise(db: Verbs) -> None:
    quick, patient = db.register("quick", lost_after=3), db.register("patient", lost_after=600)
    db.move_time(60)
    assert [lost.worker for lost in rescue(db)] == [quick]
    assert db.rows("SELECT id FROM skiplock.workers") == [(patient,)]


def test_a_lost_worker_learns_it_at_its_next_beat(db: Verbs) -> None:
    worker = db.register()
    assert beat(db, worker).known
    db.move_time(60)
    rescue(db)
    found = beat(db, worker)
    assert (found.known, found.leader) == (False, False)


def test_the_leader_rescues_by_its_beat(db: Verbs) -> None:
    lost = db.register("lost")
    [job] = holding(db, lost)
    assert beat(db, lost).leader
    db.move_time(60)
    leader = db.register("other")
    found = beat(db, leader)
    assert found.leader
    assert [(entry["worker"], entry["name"], entry["jobs"]) for entry in found.rescued] == [(lost, "lost", 1)]
    assert db.state(job.id) == "ready"


def test_who_was_away_itself_does_not_judge_the_others(db: Verbs) -> None:
    """After an outage everyone has been silent, and one is back first."""
    alive, first_back = db.register("alive"), db.register("first back")
    [job] = holding(db, alive)
    db.move_time(60)
    watched = "SELECT * FROM skiplock.beat(%s, watched => %s)"
    for seconds in (0.0, 3.0, 8.9):
        found = db.rows(watched, first_back, seconds)[0]
        assert (found.leader, found.rescued, db.state(job.id)) == (True, None, "running")
    [entry] = db.rows(watched, first_back, 9.1)[0].rescued
    assert (entry["worker"], db.state(job.id)) == (alive, "ready")


def test_only_one_is_leader_and_another_follows_when_it_is_gone(db: Verbs) -> None:
    one, two = db.register("one"), db.register("two")
    assert [beat(db, worker).leader for worker in (one, two, one, two)] == [True, False, True, False]
    db.rows("SELECT skiplock.leave(%s)", one)
    assert beat(db, two).leader
    assert db.value("SELECT term FROM skiplock.duties WHERE name = 'upkeep'") == 2


def test_a_leader_that_stops_beating_is_replaced(db: Verbs) -> None:
    one, two = db.register("one", lost_after=3600), db.register("two", lost_after=3600)
    assert beat(db, one).leader
    db.move_time(30)
    assert beat(db, two).leader
    assert not beat(db, one).leader


def test_who_is_stopping_takes_no_duty(db: Verbs) -> None:
    worker = db.register()
    assert not db.rows("SELECT leader FROM skiplock.beat(%s, state => 'stopping')", worker)[0].leader


def test_running_jobs_of_a_worker_that_is_not_registered(db: Verbs) -> None:
    """A claim that committed while its worker was being declared lost."""
    registered, orphan = db.register(), 10**9
    [mine] = holding(db, registered)
    [theirs] = holding(db, orphan)
    assert [(lost.worker, lost.name, lost.jobs) for lost in rescue(db)] == [(orphan, None, 1)]
    assert (db.state(mine.id), db.state(theirs.id), db.job(theirs.id).losses) == ("running", "ready", 1)
    assert rescue(db) == []


def test_a_worker_that_leaves_gives_back_what_it_holds(db: Verbs) -> None:
    worker = db.register()
    jobs = holding(db, worker, 2)
    assert db.value("SELECT skiplock.leave(%s)", worker) == 2
    assert db.value("SELECT skiplock.leave(%s)", worker) == 0
    assert db.count("workers") == 0
    for job in jobs:
        row = db.job(job.id)
        assert (row.state, row.attempt, row.losses, row.position) == ("ready", 0, 0, job.position)
    assert db.count("attempts") == 0


# --- the account ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("max_attempts", [1, 2])
def test_started_jobs_spent_their_attempt_and_the_others_did_not(db: Verbs, max_attempts: int) -> None:
    worker = db.register()
    started, ahead = holding(db, worker, 2, max_attempts=max_attempts)
    assert report(db, worker, [started.id]) == 2
    row = db.job(started.id)
    assert (row.state, row.attempt, row.losses) == (("dead", 1, 0) if max_attempts == 1 else ("ready", 1, 1))
    assert row.error == "JobLostError: killed by signal 9"
    assert [(kept.attempt, kept.verdict) for kept in db.attempts(started.id)] == [(1, "lost")]
    row = db.job(ahead.id)
    assert (row.state, row.attempt, row.losses, row.position) == ("ready", 0, 0, ahead.position)
    assert db.attempts(ahead.id) == []
    assert db.count("workers") == 0
    assert report(db, worker, [started.id]) == 0  # safe to repeat


def test_when_nobody_knows_what_had_started_no_attempt_is_spent(db: Verbs) -> None:
    worker = db.register()
    [job] = holding(db, worker, max_attempts=1)
    db.move_time(60)
    rescue(db)
    row = db.job(job.id)
    assert (row.state, row.attempt, row.losses) == ("ready", 0, 1)


@pytest.mark.parametrize("known", [True, False], ids=["reported", "silent"])
def test_three_losses_in_a_row_are_death(db: Verbs, known: bool) -> None:
    job = db.enqueue(max_attempts=100)
    for losses in range(3):
        worker = db.register()
        claimed = db.claim(worker) + db.claim_suspects(worker) + db.claim_suspects(worker, alone=True)
        assert [(found.id, found.losses) for found in claimed] == [(job, losses)]
        if known:
            report(db, worker, [job])
        else:
            db.move_time(60 * (losses + 1))
            rescue(db)
    row = db.job(job)
    assert (row.state, len(db.attempts(job))) == ("dead", 3)
    assert row.error.startswith("JobLostError: ")
    assert row.finished_at is not None


def test_losses_count_in_a_row_only(db: Verbs) -> None:
    worker = db.register()
    [job] = holding(db, worker)
    report(db, worker, [job.id])
    worker = db.register()
    [job] = db.claim_suspects(worker)
    db.settle(others=[verdict(job, "retry", failure=failure(), delay=0)])
    db.rows("SELECT skiplock.promote()")
    [job] = db.claim(worker)
    report(db, worker, [job.id])
    assert db.job(job.id).losses == 1


def test_a_cancel_request_wins(db: Verbs) -> None:
    worker = db.register()
    jobs = holding(db, worker, 3)
    for job in jobs[:2]:
        db.rows("SELECT skiplock.cancel(%s)", job.id)
    report(db, worker, [jobs[0].id, jobs[2].id])  # the second had not even started
    assert [db.state(job.id) for job in jobs] == ["cancelled", "cancelled", "ready"]
    assert db.count("cancellations") == 0


def test_a_cancel_request_wins_when_the_worker_fell_silent(db: Verbs) -> None:
    [job] = holding(db, db.register())
    db.rows("SELECT skiplock.cancel(%s)", job.id)
    db.move_time(60)
    rescue(db)
    assert db.state(job.id) == "cancelled"


def test_a_late_settle_of_a_rescued_job_is_refused(db: Verbs) -> None:
    [job] = holding(db, db.register())
    db.move_time(60)
    rescue(db)
    assert db.settle(completed=[job]) == [(job.id, job.lease)]
    assert db.state(job.id) == "ready"


def test_a_job_that_ends_while_its_worker_is_being_rescued_stays_ended(db: Verbs, fresh_dsn: str) -> None:
    worker = db.register()
    db.enqueue_some(100)
    jobs = db.claim(worker)
    db.move_time(60)

    def act(mine: Verbs, n: int) -> int:
        if n == 0:
            return sum(lost.jobs for lost in rescue(mine))
        share = jobs[n - 1 :: 3]
        return len(share) - sum(len(mine.settle(completed=[job])) for job in share)

    rescued, *settled = at_once(fresh_dsn, 4, act)
    assert rescued + sum(settled) == 100
    assert db.value("SELECT count(*) FROM skiplock.jobs WHERE state = 'completed'") == sum(settled)
    assert db.value("SELECT count(*) FROM skiplock.jobs WHERE state = 'ready'") == rescued


def test_concurrent_rescuers_rescue_each_worker_once(db: Verbs, fresh_dsn: str) -> None:
    for _ in range(5):
        holding(db, db.register(lost_after=1), 4)
    holding(db, 10**9, 4)  # an orphan's
    db.move_time(60)
    found = at_once(fresh_dsn, 6, lambda mine, n: [(lost.worker, lost.jobs) for lost in rescue(mine)])
    everything = [entry for share in found for entry in share]
    assert len(everything) == 6
    assert sorted(jobs for _, jobs in everything) == [4] * 6
    assert (db.count(), db.count("jobs_ready"), db.count("attempts")) == (24, 24, 24)
    assert db.rows("SELECT DISTINCT losses FROM skiplock.jobs") == [(1,)]


# --- promote ----------------------------------------------------------------------------------------------------------


def promote(db: Verbs, batch: int = 1000) -> tuple[int, float | None]:
    [(moved, due_in)] = db.rows("SELECT moved, due_in FROM skiplock.promote(%s)", batch)
    return moved, due_in


def test_due_jobs_become_ready_earliest_first(db: Verbs) -> None:
    delays = (30, 10, 20, 50, 10)
    jobs = dict(zip((db.enqueue(delay=f"{delay} s") for delay in delays), delays, strict=True))
    db.move_time(40)
    moved, due_in = promote(db)
    assert moved == 4
    assert due_in is not None and 0 < due_in <= 10
    in_line = [claimed.id for claimed in db.claim(db.register())]
    assert [jobs[job] for job in in_line] == [10, 10, 20, 30]
    assert in_line[0] < in_line[1], "of two due at the same time the older goes first"


def test_promoted_jobs_stand_behind_those_that_were_ready_before(db: Verbs) -> None:
    later, now = db.enqueue(delay="1 s"), db.enqueue()
    db.move_time(2)
    promote(db)
    assert [claimed.id for claimed in db.claim(db.register())] == [now, later]


def test_a_promotion_changes_nothing_else(db: Verbs) -> None:
    [job] = holding(db, db.register(), args='{"a": 1}', tags=["x"], meta="{}", options='{"timeout": 1}', priority=4)
    db.settle(others=[verdict(job, "retry", delay=1, failure=failure())])
    before = db.job(job.id)
    db.move_time(2)
    assert promote(db)[0] == 1
    row = db.job(job.id)
    assert (row.state, row.stage) == ("ready", "skiplock.jobs_ready")
    changed = {"state", "stage", "position"}
    assert {n: v for n, v in row._asdict().items() if n not in changed} == {
        n: v for n, v in before._asdict().items() if n not in changed
    }


def test_never_early(db: Verbs) -> None:
    job = db.enqueue(delay="10 s")
    due = db.job(job).run_at
    db.rows(  # the clock stands still, a microsecond before the job is due
        "CREATE OR REPLACE FUNCTION skiplock.now() RETURNS timestamptz LANGUAGE sql AS "
        f"$$ SELECT timestamptz '{due.isoformat()}' - interval '1 microsecond' $$"
    )
    moved, due_in = promote(db)
    assert moved == 0
    assert due_in == pytest.approx(1e-6)
    db.rows(
        "CREATE OR REPLACE FUNCTION skiplock.now() RETURNS timestamptz LANGUAGE sql AS "
        f"$$ SELECT timestamptz '{due.isoformat()}' $$"
    )
    assert promote(db) == (1, None)


def test_a_batch_is_a_batch_and_the_rest_is_overdue(db: Verbs) -> None:
    for _ in range(5):
        db.enqueue(delay="1 s")
    db.move_time(2)
    moved, due_in = promote(db, 3)
    assert moved == 3
    assert due_in is not None and due_in <= 0
    assert promote(db, 3) == (2, None)
    assert promote(db, 3) == (0, None)


def test_blocked_jobs_are_not_promoted(db: Verbs) -> None:
    job = db.enqueue(delay="1 s")
    db.rows("UPDATE skiplock.jobs_waiting SET state = 'blocked' WHERE id = %s", job)
    db.move_time(2)
    assert promote(db) == (0, None)


def test_concurrent_promoters_promote_each_job_once(db: Verbs, fresh_dsn: str) -> None:
    db.rows("SELECT skiplock.enqueue('t', delay => '1 s') FROM generate_series(1, 200)")
    db.move_time(2)

    def all_of_them(mine: Verbs, n: int) -> int:
        total = 0
        while (moved := promote(mine, 17)[0]) > 0:
            total += moved
        return total

    assert sum(at_once(fresh_dsn, 4, all_of_them)) == 200
    assert (db.count("jobs_ready"), db.count("jobs_waiting")) == (200, 0)
    assert db.value("SELECT count(DISTINCT position) FROM skiplock.jobs_ready") == 200


def test_a_locked_job_holds_up_no_other(db: Verbs, fresh_dsn: str) -> None:
    held, free = db.enqueue(delay="1 s"), db.enqueue(delay="1 s")
    db.move_time(2)
    with open_verbs(fresh_dsn) as other, other.transaction():
        other.rows("SELECT FROM skiplock.jobs_waiting WHERE id = %s FOR UPDATE", held)
        db.rows("SET lock_timeout = '10s'")
        assert promote(db)[0] == 1
        assert db.state(free) == "ready"
    assert promote(db) == (1, None)


def test_a_promotion_may_look_only_at_what_fell_due_lately(db: Verbs) -> None:
    early, late, future = (db.enqueue(delay=f"{n} s") for n in (10, 50, 100))
    db.move_time(60)
    sql = "SELECT moved, due_in, upto FROM skiplock.promote(%s, since => %s)"
    [(moved, due_in, upto)] = db.rows(sql, 1000, -20)
    assert (moved, upto, db.state(early), db.state(late)) == (1, 0, "scheduled", "ready")
    assert 39 < due_in <= 40, "what falls due next is told as ever"
    assert db.rows(sql, 1000, -20)[0].moved == 0
    assert db.rows(sql, 1000, None)[0].moved == 1
    assert (db.state(early), db.state(future)) == ("ready", "scheduled")


def test_a_promotion_tells_how_far_it_got(db: Verbs) -> None:
    for n in (10, 20, 30):
        db.enqueue(delay=f"{n} s")
    db.move_time(60)
    sql = "SELECT moved, upto FROM skiplock.promote(%s, since => %s)"
    assert db.rows(sql, 2, None) == [(2, pytest.approx(-40, abs=1))]
    assert db.rows(sql, 2, -45) == [(1, 0)]


def test_a_beat_can_leave_out_what_costs_more_the_older_someones_snapshot_is(db: Verbs) -> None:
    worker = db.register()
    db.enqueue(delay="100 s")
    db.enqueue()
    sql = "SELECT due_in, waiting, suspects FROM skiplock.beat(%s, queues => ARRAY['default'], look => %s)"
    assert db.rows(sql, worker, False) == [(None, [], 0)]
    assert db.rows(sql, worker, True)[0].waiting == ["default"]


def test_beats_keep_how_far_the_claims_have_got_and_never_go_back(db: Verbs) -> None:
    one, other = db.register(), db.register()
    tell = "SELECT known FROM skiplock.beat(%s, lane_queues => %s, lane_priorities => %s, lane_positions => %s)"
    db.rows(tell, one, ["b", "a"], [0, 2], [10, 20])
    db.rows(tell, other, ["a", "b"], [2, 0], [15, 30])
    db.rows(tell, other, ["a"], [-1], [1])
    assert db.rows("SELECT * FROM skiplock.lanes(ARRAY['a', 'b', 'c'])") == [("a", 2, 20), ("a", -1, 1), ("b", 0, 30)]
    assert db.rows("SELECT * FROM skiplock.lanes(ARRAY['b'])") == [("b", 0, 30)]


def test_lanes_that_nobody_told_of_are_found_between_those_that_are_known(db: Verbs) -> None:
    """A worker that starts goes on in these: one that is missing is a priority that waits for lower ones."""
    first = {p: min(db.enqueue(queue="a", priority=p) for _ in range(2)) for p in (9, 5, 3, 0, -1, -32768, 32767)}
    db.rows(
        "SELECT skiplock.beat(1, lane_queues => '{a,a}', lane_priorities => '{5,0}', lane_positions => '{500000,600000}')"
    )
    told = first | {5: 500_000, 0: 600_000}
    wanted = [("a", priority, told[priority]) for priority in sorted(told, reverse=True)]
    assert db.rows("SELECT * FROM skiplock.lanes(ARRAY['a', 'none'])") == wanted


def test_beats_of_many_workers_about_the_same_lanes_never_block_each_other_for_good(db: Verbs, fresh_dsn: str) -> None:
    queues = [f"q{n}" for n in range(20)]

    def beats(mine: Verbs, nth: int) -> int:
        worker, turned = mine.register(), queues if nth % 2 else queues[::-1]
        tell = "SELECT known FROM skiplock.beat(%s, lane_queues => %s, lane_priorities => %s, lane_positions => %s)"
        for n in range(30):
            mine.rows(tell, worker, turned, [0] * 20, [n * 10 + nth] * 20)
        return 1

    assert sum(at_once(fresh_dsn, 6, beats)) == 6
    assert {row.position for row in db.rows("SELECT position FROM skiplock.lanes")} == {295}


def test_the_beat_tells_when_the_next_job_is_due(db: Verbs) -> None:
    worker = db.register()
    assert beat(db, worker).due_in is None
    db.enqueue(delay="100 s")
    assert 99 < beat(db, worker).due_in <= 100
    db.move_time(110)
    assert -70 < beat(db, worker).due_in <= -10
