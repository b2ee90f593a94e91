"""Limits: who may start, and that nobody is forgotten, through every way in and out of a job's life.

Kinds: a limit exceeded by claims that count at once (CONC-57, case 18), a slot that stays held after its job is gone, cancelled,
dead or lost (CONC-03, CONC-08, CONC-43, CONC-53), a job that stays blocked although its limit has room (CONC-21, CONC-25,
CONC-26), two jobs of one key that come back in one batch (CONC-28, case 19), limits that block each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support import connect
from tests.support.verbs import Claimed, Verbs, at_once, failure, open_verbs, verdict

ONE = {"limits": [{"key": "k", "slots": 1}]}
TWO = {"limits": [{"key": "k", "slots": 2}]}
HOLD = ONE | {"order": "hold"}
SKIP = ONE | {"order": "skip"}
TIMES = {"slots": "1", "rate": "2"}


@pytest.fixture
def db(fresh_dsn: str) -> Iterator[Verbs]:
    """A database of its own, whose clock a test may move."""
    with open_verbs(fresh_dsn) as verbs:
        yield verbs


def both(*keys: str) -> dict[str, Any]:
    return {"limits": [{"key": key, "slots": 1} for key in keys]}


def rate(number: float, burst: int = 1, key: str = "r") -> dict[str, Any]:
    return {"key": key, "rate": number, "per": 1, "burst": burst}


def promote(db: Verbs) -> Any:
    return db.rows("SELECT * FROM skiplock.promote(1000, true)")[0]


def claimed(db: Verbs, worker: int = 1, room: int = 100) -> list[int]:
    return [job.id for job in db.claim(worker, room)]


def ready(db: Verbs) -> list[int]:
    return [row.id for row in db.rows("SELECT id FROM skiplock.jobs_ready ORDER BY position")]


def held(db: Verbs) -> list[tuple[str, int]]:
    return [tuple(row) for row in db.rows("SELECT key, job_id FROM skiplock.slots ORDER BY 1, 2")]


def lines(db: Verbs) -> dict[int, str]:
    return {
        row.id: row.blocked_on
        for row in db.rows("SELECT id, blocked_on FROM skiplock.jobs_waiting WHERE state = 'blocked'")
    }


def retry(db: Verbs, job: Claimed, delay: float = 60.0) -> None:
    assert not db.settle(others=[verdict(job, "retry", delay=delay, failure=failure())])


# --- every way out frees the slot and lets the next one in -------------------------------------------------------------


@pytest.mark.parametrize("word", ["completed", "dead", "cancelled", "snooze", "retry"])
def test_each_verdict_lets_the_next_one_in_by_the_same_statement(db: Verbs, word: str) -> None:
    """To see it fail: leave _let_go out of _finish or _retry_later (sql/work/settle.sql)."""
    first, second = db.enqueue_ruled(ONE, 2)
    assert ready(db) == [first] and lines(db) == {second: "k"}
    [job] = db.claim(1)
    if word == "completed":
        db.settle(completed=[job])
    else:
        db.settle(others=[verdict(job, word, delay=60, failure=failure())])
    assert ready(db) == [second] and held(db) == [("k", second)]


def test_a_released_job_keeps_its_slot(db: Verbs) -> None:
    first, second = db.enqueue_ruled(ONE, 2)
    [job] = db.claim(1)
    db.settle(others=[verdict(job, "release")])
    assert ready(db) == [first] and held(db) == [("k", first)] and lines(db) == {second: "k"}


def test_a_lost_job_keeps_its_slot_and_a_dead_one_frees_it(db: Verbs) -> None:
    """The holder vanishes three times: nobody passes it while it is ready again, and none is stuck behind it when it is dead."""
    first, second = db.enqueue_ruled(ONE, 2)
    for loss in range(3):
        worker = db.register(lost_after=-1)
        job = db.claim_suspects(worker, alone=loss > 1) if loss else db.claim(worker)
        assert [j.id for j in job] == [first]
        db.rows("SELECT * FROM skiplock.rescue()")
        assert held(db) == ([("k", first)] if loss < 2 else [("k", second)])
    assert db.state(first) == "dead" and ready(db) == [second]


@pytest.mark.parametrize("verb", ["cancel", "delete"])
@pytest.mark.parametrize("stage", ["ready", "blocked", "retryable"])
def test_cancelled_and_deleted_jobs_leave_nothing_behind(db: Verbs, verb: str, stage: str) -> None:
    """To see it fail: leave _let_go out of _cancelled or delete (sql/desk/act.sql)."""
    rules = HOLD if stage == "retryable" else ONE
    first, second, third = db.enqueue_ruled(rules, 3)
    gone = second if stage == "blocked" else first
    if stage == "retryable":
        retry(db, db.claim(1)[0])
    assert db.value(f"SELECT done FROM skiplock.{verb}(%s)", gone)
    promote(db)
    expected = {first: second, second: first}[gone]
    assert ready(db) == [expected] and held(db) == [("k", expected)] and lines(db) == {third: "k"}


def test_a_job_retried_by_hand_stands_in_line_again(db: Verbs) -> None:
    first, second = db.enqueue_ruled(ONE, 2)
    db.settle(others=[verdict(db.claim(1)[0], "dead", failure=failure())])
    db.rows("SELECT * FROM skiplock.retry(%s)", first)
    promote(db)
    assert ready(db) == [second] and lines(db) == {first: "k"}


def test_completing_in_a_transaction_holds_nobody_up_and_frees_at_its_end(db: Verbs, fresh_dsn: str) -> None:
    """Others are let in while it is open; its own slot comes free with the commit, and with a rollback it does not."""
    first, second, third = db.enqueue_ruled(TWO, 3)
    one, two = db.claim(1)
    with connect(fresh_dsn) as other:
        other.execute("BEGIN")
        other.execute("SELECT skiplock.complete(%s, %s)", [one.id, one.lease])
        db.settle(completed=[two])
        assert ready(db) == [third]
        other.execute("ROLLBACK")
        assert promote(db).moved == 0 and held(db) == [("k", first), ("k", third)]
        other.execute("BEGIN")
        other.execute("SELECT skiplock.complete(%s, %s)", [one.id, one.lease])
        other.execute("COMMIT")
    [fourth] = db.enqueue_ruled(TWO)
    assert ready(db) == [third, fourth] and second == two.id


def test_a_job_that_expires_in_line_or_ready_is_passed(db: Verbs) -> None:
    first, second = db.enqueue_ruled(ONE | {"expires": 5}, 2)
    [third] = db.enqueue_ruled(ONE)
    db.move_time(6)
    promote(db)
    assert (db.state(first), db.state(second)) == ("cancelled", "cancelled") and ready(db) == [third]


# --- never above -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("told", ["as usual", "nested loops off", "hash and merge off"])
def test_twenty_at_a_barrier_never_exceed_a_limit_of_five(fresh_dsn: str, told: str) -> None:
    """Enqueue, admit, claim and settle at once from twenty connections (case 18).

    To see it fail: let admit (sql/upkeep/admit.sql) go on without the row of duties.
    """
    rules = {"limits": [{"key": "k", "slots": 5}]}
    settings = {"as usual": (), "nested loops off": ("nestloop",), "hash and merge off": ("hashjoin", "mergejoin")}[
        told
    ]

    def act(db: Verbs, nth: int) -> int:
        for name in settings:
            db.rows(f"SET enable_{name} = off")
        most = 0
        for _ in range(8):
            db.enqueue_ruled(rules, 2)
            jobs = db.claim(1, 3)
            most = max(most, db.value("SELECT count(*) FROM skiplock.jobs WHERE state IN ('ready', 'running')"))
            db.settle(completed=sorted(jobs))
        return most

    assert max(at_once(fresh_dsn, 20, act)) <= 5
    with open_verbs(fresh_dsn) as db:
        while db.count("jobs_finished") < 320:
            promote(db)
            done = sorted(db.claim(1))
            assert done, "jobs wait although nothing is held"
            db.settle(completed=done)
        assert held(db) == [] and db.count("nudges") == 0


def test_an_old_snapshot_lets_nobody_in(db: Verbs, fresh_dsn: str) -> None:
    """A transaction of REPEATABLE READ does not see the slots given since it began.

    To see it fail: take the look at transaction_isolation from admit (sql/upkeep/admit.sql).
    """
    first, second = db.enqueue_ruled(ONE, 2, admits=False)
    with open_verbs(fresh_dsn) as other, other.transaction():
        other.rows("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.rows("SELECT count(*) FROM skiplock.slots")
        promote(db)
        db.rows("INSERT INTO skiplock.nudges (key) VALUES ('other')")
        assert other.rows("SELECT * FROM skiplock.admit()") == [(0, 0.0)]
    assert ready(db) == [first] and lines(db) == {second: "k"}


# --- nobody forgotten --------------------------------------------------------------------------------------------------


def test_a_job_that_somebody_held_when_its_turn_came_is_let_in_later(db: Verbs, fresh_dsn: str) -> None:
    """A replacement takes it out of its line, and is rolled back: nobody tells of that.

    To see it fail: leave out the nudges for `v_again` in admit (sql/upkeep/admit.sql).
    """
    _, second = db.enqueue_ruled(ONE, 2)
    with connect(fresh_dsn) as other:
        other.execute("BEGIN")
        other.execute("SELECT FROM skiplock.jobs_waiting WHERE id = %s FOR UPDATE", [second])
        db.settle(completed=db.claim(1))
        assert ready(db) == [] and promote(db).due_in <= 0
        other.execute("ROLLBACK")
    promote(db)
    assert ready(db) == [second] and db.count("nudges") == 0


def test_an_ordered_job_that_somebody_holds_is_not_passed(db: Verbs, fresh_dsn: str) -> None:
    """To see it fail: leave `k.head` out of _admit_round (sql/upkeep/admit.sql)."""
    _, second, third = db.enqueue_ruled(SKIP, 3)
    with connect(fresh_dsn) as other:
        other.execute("BEGIN")
        other.execute("SELECT FROM skiplock.jobs_waiting WHERE id = %s FOR UPDATE", [second])
        db.settle(completed=db.claim(1))
        promote(db)
        assert ready(db) == []
        other.execute("ROLLBACK")
    promote(db)
    assert ready(db) == [second] and lines(db) == {third: "k"}


def test_who_finds_another_admitting_leaves_word(db: Verbs, fresh_dsn: str) -> None:
    """Nobody waits for a transaction that happens to admit, and what it could not see is let in afterwards; the leader is told,
    whatever its bell says."""
    _, second = db.enqueue_ruled(ONE, 2)
    with connect(fresh_dsn) as other, connect(fresh_dsn) as ear:
        ear.execute('LISTEN "skiplock.bell"')
        other.execute("BEGIN")
        other.execute("SELECT FROM skiplock.duties WHERE name = 'admit' FOR UPDATE")
        db.settle(completed=db.claim(1))
        assert ready(db) == []
        heard = [note.payload for note in ear.notifies(timeout=5, stop_after=1)]
        other.execute("ROLLBACK")
    assert heard == [""]
    promote(db)
    assert ready(db) == [second]


def test_jobs_deleted_by_hand_do_not_hold_their_slots_for_ever(db: Verbs) -> None:
    """To see it fail: leave the DELETE of slots out of sweep_limits (sql/upkeep/sweep.sql)."""
    first, second, _ = db.enqueue_ruled(ONE, 3)
    running, _ = db.enqueue_ruled(both("a"), 2)
    waiting = db.enqueue_ruled({"limits": [{"key": "h", "slots": 1}], "order": "hold"}, 2)
    jobs = {job.id: job for job in db.claim(1)}
    retry(db, jobs[waiting[0]])
    db.rows("DELETE FROM skiplock.jobs WHERE id = %s", first)
    db.rows("DELETE FROM skiplock.nudges")
    swept = db.rows("SELECT * FROM skiplock.sweep_limits()")[0]
    assert (swept.upto, swept.freed) == ("", 1)
    promote(db)
    assert held(db) == [("a", running), ("h", waiting[0]), ("k", second)]


def test_the_sweep_finds_lines_with_room_key_by_key(db: Verbs) -> None:
    """To see it fail: leave the nudges out of sweep_limits (sql/upkeep/sweep.sql)."""
    for n in range(10):
        db.enqueue_ruled(both(f"k{n}"), 1, admits=False)
    db.rows("DELETE FROM skiplock.nudges")
    assert promote(db).moved == 0
    after, nudged = "", []
    for _ in range(4):
        step = db.rows("SELECT * FROM skiplock.sweep_limits(%s, 4)", after)[0]
        after = step.upto
        nudged.append(step.nudged)
    assert nudged[:3] == [4, 4, 2] and len(set(nudged)) > 1
    promote(db)
    assert len(ready(db)) == 10


def test_the_sweep_forgets_meters_that_have_run_out(db: Verbs) -> None:
    db.enqueue_ruled({"limits": [rate(1)]}, 1)
    db.enqueue_ruled({"limits": [rate(1, key="busy")]}, 2)
    db.move_time(1.5)
    db.rows("SELECT * FROM skiplock.sweep_limits()")
    assert [row.key for row in db.rows("SELECT key FROM skiplock.meters")] == ["busy"]


def test_a_replaced_job_frees_the_slot_of_its_old_arguments(db: Verbs) -> None:
    unique = {"unique": {"key": "u", "on_conflict": "replace"}}
    [job] = db.enqueue_ruled(both("old") | unique)
    [other] = db.enqueue_ruled(both("old"))
    assert db.enqueue_ruled(both("new") | unique) == [job]
    promote(db)
    assert held(db) == [("new", job), ("old", other)] and set(ready(db)) == {job, other}


# --- several limits ----------------------------------------------------------------------------------------------------


def test_jobs_that_share_limits_in_any_order_all_end(db: Verbs) -> None:
    for n in range(30):
        db.enqueue_ruled(both(*(("a", "b", "c"), ("c", "a"), ("b", "c", "a"), ("a",))[n % 4]))
    done = 0
    while jobs := sorted(db.claim(1)):
        assert max(db.value("SELECT max(n) FROM (SELECT count(*) AS n FROM skiplock.slots GROUP BY key) c"), 1) == 1
        db.settle(completed=jobs)
        promote(db)
        done += len(jobs)
    assert done == 30 and held(db) == []


def test_two_keys_that_are_never_free_at_once_do_not_starve_who_needs_both(db: Verbs) -> None:
    """One job of a, one of b, ending in turn, and always more of both in line.

    To see it fail: give _full_limit (sql/upkeep/admit.sql) `false` for `takes`.
    """
    running = {key: db.enqueue_ruled(both(key))[0] for key in "ab"}
    jobs = {job.id: job for job in db.claim(1)}
    [wanting] = db.enqueue_ruled(both("a", "b"))
    for turn in range(20):
        key = "ab"[turn % 2]
        more = {k: db.enqueue_ruled(both(k)) for k in "ab"}
        db.settle(completed=[jobs[running[key]]])
        jobs |= {job.id: job for job in db.claim(1)}
        if wanting in jobs:
            break
        running = {
            k: next((j for k2, j in held(db) if k2 == k and j in jobs and j != wanting), running[k]) for k in more
        }
    assert wanting in jobs and turn < 12


def test_a_rate_behind_a_slot_wakes_who_waits_for_it(db: Verbs) -> None:
    """Sent on from one line to the other, and neither forgotten nor let in too early."""
    rules = {"limits": [{"key": "k", "slots": 5}, rate(1)]}
    first, second, third = db.enqueue_ruled(rules, 3)
    assert ready(db) == [first] and lines(db) == {second: "r", third: "r"}
    for n, job in enumerate((second, third), 1):
        found = promote(db)
        assert found.moved == 0 and 0 < found.due_in <= 1
        db.move_time(n + 0.01)
        assert promote(db).moved == 1 and ready(db)[-1] == job
    assert held(db) == [("k", first), ("k", second), ("k", third)]


# --- order -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["hold", "skip"])
def test_order_is_kept_whatever_the_priority(db: Verbs, order: str) -> None:
    jobs = [db.enqueue_ruled(ONE | {"order": order}, priorities=p)[0] for p in (0, 5, -5, 9)]
    seen = []
    while found := db.claim(1):
        seen += [job.id for job in found]
        db.settle(completed=found)
    assert seen == jobs


def test_hold_lets_nobody_pass_until_the_head_has_ended(db: Verbs) -> None:
    first, second = db.enqueue_ruled(HOLD, 2)
    retry(db, db.claim(1)[0])
    promote(db)
    assert ready(db) == [] and held(db) == [("k", first)]
    db.move_time(61)
    promote(db)
    [again] = db.claim(1)
    assert again.id == first
    db.settle(others=[verdict(again, "dead", failure=failure())])
    assert ready(db) == [second]


def test_skip_lets_the_next_one_pass_and_then_goes_on_in_order(db: Verbs) -> None:
    first, second, third = db.enqueue_ruled(SKIP, 3)
    retry(db, db.claim(1)[0])
    assert ready(db) == [second]
    db.move_time(61)
    promote(db)
    db.settle(completed=db.claim(1))
    assert ready(db) == [first] and lines(db) == {third: "k"}


def test_two_of_a_key_that_come_back_in_one_batch_enter_one_by_one(db: Verbs) -> None:
    """One in retry, one scheduled, due at the same moment (case 19)."""
    [first] = db.enqueue_ruled(ONE)
    retry(db, db.claim(1)[0], delay=10)
    [second] = db.enqueue_ruled(ONE, delays=10.0)
    db.move_time(11)
    promote(db)
    assert len(ready(db)) == 1 and len(lines(db)) == 1 and {*ready(db), *lines(db)} == {first, second}


@pytest.mark.parametrize("limits", [[rate(1), {"key": "k", "slots": 1}], [{"key": "k", "slots": 1}, rate(1)]])
def test_a_head_that_keeps_its_slot_waits_for_its_rate_only(db: Verbs, limits: list[dict[str, Any]]) -> None:
    """An attempt is a start, so its retry needs the rate again; its own slot must not stand in its way.

    To see it fail: take the look at its own slots from _full_limit (sql/upkeep/admit.sql).
    """
    first_slot = sorted(limits, key=lambda limit: "rate" in limit)
    first, second = db.enqueue_ruled({"limits": first_slot, "order": "hold"}, 2)
    retry(db, db.claim(1)[0], delay=0.1)
    db.move_time(0.5)
    assert promote(db).moved <= 1 and ready(db) == []
    db.move_time(1.2)
    promote(db)
    assert ready(db) == [first] and held(db) == [("k", first)]
    assert lines(db) == {second: "k"}


def test_an_ordered_head_that_waits_for_another_limit_is_not_passed(db: Verbs) -> None:
    """To see it fail: leave the INSERT of its slot out of _admit_strictly (sql/upkeep/admit.sql)."""
    blocker = db.enqueue_ruled({"limits": [{"key": "x", "slots": 1}]})[0]
    head = db.enqueue_ruled({"limits": [{"key": "k", "slots": 1}, {"key": "x", "slots": 1}], "order": "skip"})[0]
    after = db.enqueue_ruled({"limits": [{"key": "k", "slots": 1}, {"key": "y", "slots": 1}], "order": "skip"})[0]
    assert ready(db) == [blocker] and lines(db) == {head: "x", after: "k"}
    db.settle(completed=db.claim(1))
    assert ready(db) == [head]
    db.rows("SELECT * FROM skiplock.sweep_limits()")
    assert ("k", head) in held(db)


# --- rates -------------------------------------------------------------------------------------------------------------


def test_a_rate_lets_a_burst_in_and_then_one_by_one(db: Verbs) -> None:
    jobs = db.enqueue_ruled({"limits": [rate(10, burst=3)]}, 8)
    assert ready(db) == jobs[:3]
    for n in range(1, 6):
        db.move_time(n * 0.1 + 0.025)
        promote(db)
        assert len(ready(db)) == 3 + n


def test_a_rate_that_is_raised_does_not_wait_for_what_the_old_one_counted(db: Verbs) -> None:
    """To see it fail: take the cap from _room and _wake_meters (sql/upkeep/admit.sql)."""
    slow = {"limits": [{"key": "r", "rate": 1, "per": 86_400, "burst": 1}]}
    first, second = db.enqueue_ruled(slow, 2)
    assert ready(db) == [first]
    db.rows("SELECT skiplock.set_limit('r', rate => 10, per => 1)")
    assert promote(db).due_in < 0.11
    db.move_time(0.12)
    promote(db)
    assert ready(db) == [first, second]


def test_a_retry_counts_as_a_start(db: Verbs) -> None:
    db.enqueue_ruled({"limits": [rate(1)]})
    retry(db, db.claim(1)[0], delay=0.2)
    db.move_time(0.3)
    promote(db)
    assert ready(db) == []
    db.move_time(1.1)
    promote(db)
    assert len(ready(db)) == 1


def test_the_leader_is_told_when_the_next_start_is_due(db: Verbs, fresh_dsn: str) -> None:
    """It sleeps until something is due; whoever enqueues or settles has set another time.

    To see it fail: leave _ring_timer out of admit (sql/upkeep/admit.sql).
    """
    promote(db)
    with connect(fresh_dsn) as ear:
        ear.execute('LISTEN "skiplock.bell"')
        db.enqueue_ruled({"limits": [rate(1)]}, 2)
        assert "" in [note.payload for note in ear.notifies(timeout=5, stop_after=1)]


# --- changed at run time -----------------------------------------------------------------------------------------------


def test_a_changed_limit_counts_for_all_its_keys_at_once(db: Verbs) -> None:
    """By name, over more keys than one step looks through; one key may be set apart; unset goes back to what the jobs say.

    To see it fail: leave out _nudge_names (sql/upkeep/admit.sql).
    """
    for n in range(25):
        db.enqueue_ruled({"limits": [{"key": f"c\x1f{n}", "slots": 1}]}, 3)
    db.enqueue_ruled({"limits": [{"key": "d\x1f1", "slots": 1}]}, 3)
    db.rows("SELECT skiplock.set_limit(E'c\\x1f7', 3)")
    db.rows("SELECT skiplock.set_limit('c', 2)")
    while db.rows("SELECT * FROM skiplock.promote(10, true)")[0].due_in is not None:
        pass
    count = dict(db.rows("SELECT key, count(*) FROM skiplock.slots GROUP BY key"))
    assert count == {f"c\x1f{n}": 2 for n in range(25)} | {"c\x1f7": 3, "d\x1f1": 1}
    assert db.value("SELECT skiplock.unset_limit('c')") and not db.value("SELECT skiplock.unset_limit('c')")
    jobs = sorted(db.claim(1))
    db.settle(completed=jobs)
    count = dict(db.rows("SELECT key, count(*) FROM skiplock.slots GROUP BY key"))
    assert count == {f"c\x1f{n}": 1 for n in range(25) if n != 7} | {"d\x1f1": 1}


def test_a_lowered_limit_takes_nothing_away_and_lets_nobody_in(db: Verbs) -> None:
    rules = {"limits": [{"key": "k", "slots": 3}]}
    db.enqueue_ruled(rules, 6)
    jobs = db.claim(1)
    db.rows("SELECT skiplock.set_limit('k', 1)")
    db.settle(completed=jobs[:2])
    assert ready(db) == []
    db.settle(completed=jobs[2:])
    assert len(ready(db)) == 1
    db.rows("SELECT skiplock.set_limit('k', 0)")
    db.settle(completed=db.claim(1))
    promote(db)
    assert ready(db) == [] and len(lines(db)) == 2


def test_what_the_code_says_counts_for_queued_jobs_but_not_over_what_was_set_by_hand(db: Verbs) -> None:
    declare = "SELECT skiplock.declare_limits(%s::jsonb)"
    db.enqueue_ruled(ONE, 9)
    db.rows(declare, '[{"name": "k", "slots": 3}]')
    promote(db)
    assert len(ready(db)) == 3
    before = db.value("SELECT xmin::text FROM skiplock.limits")
    db.rows(declare, '[{"name": "k", "slots": 3}]')
    assert db.value("SELECT xmin::text FROM skiplock.limits") == before and db.count("nudges") == 0
    db.rows("SELECT skiplock.set_limit('k', 5)")
    db.rows(declare, '[{"name": "k", "slots": 7}]')
    promote(db)
    assert len(ready(db)) == 5
    assert db.value("SELECT skiplock.unset_limit('k')")
    promote(db)
    assert len(ready(db)) == 7


def test_a_row_of_the_other_kind_does_not_lift_a_limit(db: Verbs) -> None:
    db.rows("SELECT skiplock.set_limit('k', rate => 100)")
    db.enqueue_ruled(ONE, 3)
    assert len(ready(db)) == 1


@pytest.mark.parametrize(
    "arguments",
    ["'k'", "'', 1", "'k', -1", "'k', 1000001", "'k', rate => -1", "'k', rate => 'NaN'", "'k', rate => 1, per => 0", "'k', rate => 1, burst => 0"],
)  # fmt: skip
def test_nonsense_is_refused_by_name(db: Verbs, arguments: str) -> None:
    with pytest.raises(psycopg.DatabaseError) as caught:
        db.rows(f"SELECT skiplock.set_limit({arguments})")
    assert caught.value.sqlstate == "SK001" and "limit" in str(caught.value)


@pytest.mark.parametrize(
    "rules",
    [
        {"limits": [{"key": "k", "slots": 1}, {"key": "k", "slots": 2}]},
        {"limits": [{"key": "k", "slots": 2}], "order": "hold"},
        {"limits": [rate(1), {"key": "k", "slots": 1}], "order": "hold"},
    ],
)
def test_rules_that_could_hold_a_job_up_for_ever_are_refused(db: Verbs, rules: dict[str, Any]) -> None:
    with pytest.raises(psycopg.DatabaseError) as caught:
        db.enqueue_ruled(rules)
    assert caught.value.sqlstate == "SK001"


# --- queues ------------------------------------------------------------------------------------------------------------


def test_a_queue_with_slots_of_its_own_is_never_above_them(db: Verbs, fresh_dsn: str) -> None:
    """To see it fail: let _queue_room (sql/work/claim.sql) go on without the row's lock."""
    db.enqueue_some(200)
    db.rows("SELECT skiplock.limit_queue('default', 5)")

    def act(other: Verbs, nth: int) -> list[Claimed]:
        found = []
        for _ in range(5):
            found += other.claim(nth + 1, 3)
        return found

    jobs = [job for found in at_once(fresh_dsn, 10, act) for job in found]
    assert len(jobs) == 5
    db.settle(completed=sorted(jobs)[:2])
    assert len(db.claim(1)) == 2
    db.rows("SELECT skiplock.limit_queue('default', NULL)")
    assert len(db.claim(1, 50)) == 50


@pytest.mark.parametrize("word", ["completed", "dead", "snooze", "retry", "release"])
def test_each_way_out_of_a_limited_queue_makes_room_and_rings(db: Verbs, fresh_dsn: str, word: str) -> None:
    """To see it fail: leave `in_queue` out of _let_go (sql/upkeep/admit.sql)."""
    db.enqueue_some(3)
    db.rows("SELECT skiplock.limit_queue('default', 1)")
    db.rows("SELECT skiplock.arm('{default}')")
    [job] = db.claim(1)
    assert db.claim(1) == []
    with connect(fresh_dsn) as ear:
        ear.execute('LISTEN "skiplock.bell"')
        if word == "completed":
            db.settle(completed=[job])
        else:
            db.settle(others=[verdict(job, word, delay=60, failure=failure())])
        assert "default" in [note.payload for note in ear.notifies(timeout=5, stop_after=1)]
    assert len(db.claim(1)) == 1


def test_other_queues_of_the_same_claim_are_served_as_ever(db: Verbs) -> None:
    db.enqueue_some(5)
    db.enqueue_some(5, queue="free")
    db.enqueue_some(5, queue="shut")
    db.rows("SELECT skiplock.limit_queue('default', 2)")
    db.rows("SELECT skiplock.pause('shut')")
    rooms = {"shut": 10, "default": 10, "free": 10}
    assert sorted(job.queue for job in db.claim(1, rooms)) == ["default"] * 2 + ["free"] * 5
    lanes = [(queue, 0, 0) for queue in rooms]
    db.enqueue_some(5, queue="free")
    assert [job.queue for job in db.claim(1, rooms, lanes=lanes)] == ["free"] * 5
    assert db.value("SELECT bool_and(flow IS NULL) FROM skiplock.jobs_running WHERE queue = 'free'")
