"""Unique keys in the database: who has one, what an enqueue that meets it does, when it comes free.

Kinds: replaced data dropped without a word (CONC-30), windows on one key (CONC-31), a job in conflict with itself or one conflict that
stops a whole batch (CONC-28, CONC-29, CONC-32), keys held for ever by what has ended (CONC-23, CONC-43, CONC-53). Stale results and
rescue are those of all jobs; CONC-41, a log of enqueues, is not kept here. Two at once: test_unique_races.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.support.uniques import add, check, holders, run
from tests.support.verbs import Verbs, failure, open_verbs, verdict


@pytest.fixture
def db(fresh_dsn: str) -> Iterator[Verbs]:
    with open_verbs(fresh_dsn) as verbs:
        yield verbs


# -- policies ---------------------------------------------------------------------------------------------------------


def test_keep_answers_the_job_that_is_there(db: Verbs) -> None:
    [(job, new)] = add(db, "a", args=['{"n": 1}'])
    assert new
    assert add(db, "a", args=['{"n": 2}']) == [(job, False)]
    assert db.job(job).args == {"n": 1}
    check(db)


def test_in_one_batch_the_first_row_of_a_key_is_the_job(db: Verbs) -> None:
    [first, again, other, plain] = add(db, "a", "a", "b", None)
    assert first[1] and again == (first[0], False) and other[1] and plain[1]
    assert db.count() == 3
    check(db)


def test_replace_gives_the_waiting_job_what_the_new_one_has(db: Verbs) -> None:
    [(job, _)] = add(db, "a", args=['{"n": 1}'], tags=["{old}"], metas=['{"m": 1}'], delays=[60.0])
    before = db.job(job)
    found = add(db, "a", on_conflict="replace", args=['{"n": 2}'], tags=["{new}"], priorities=[7], max_attempts=[3], delays=[5.0])  # fmt: skip
    assert found == [(job, False)]
    row = db.job(job)
    assert (row.args, row.tags, row.meta, row.priority, row.max_attempts) == ({"n": 2}, ["new"], None, 7, 3)
    assert row.enqueued_at == before.enqueued_at and row.run_at < before.run_at and row.state == "scheduled"
    assert add(db, "a", on_conflict="replace", args=['{"n": 3}']) == [(job, False)]
    assert (db.state(job), db.job(job).args) == ("ready", {"n": 3})
    check(db)


def test_in_one_batch_the_last_that_replaces_is_written(db: Verbs) -> None:
    """The answer is for the first row: that is the job."""
    found = add(db, "a", "a", "a", on_conflict="replace", args=['{"n": 1}', '{"n": 2}', '{"n": 3}'])
    assert found == [(found[0][0], True), (found[0][0], False), (found[0][0], False)]
    assert db.job(found[0][0]).args == {"n": 3}
    assert add(db, "a", "b", "a", on_conflict="replace", args=['{"n": 4}', '{"n": 5}', '{"n": 6}'])[0] == found[1]
    assert db.job(found[0][0]).args == {"n": 6}
    assert db.count() == 2
    check(db)


def test_a_running_job_is_not_replaced(db: Verbs) -> None:
    [(job, _)] = add(db, "a", args=['{"n": 1}'])
    run(db)
    assert add(db, "a", on_conflict="replace", args=['{"n": 2}']) == [(job, False)]
    assert (db.state(job), db.job(job).args, db.count()) == ("running", {"n": 1}, 1)
    check(db)


def test_who_is_replaced_keeps_its_place_in_line(db: Verbs) -> None:
    """Else whoever is replaced more often than the line moves would never run.

    To see it fail: in enqueue_flow.sql, let `place` be NULL.
    """
    [(first, _)] = add(db, "a")
    db.enqueue()
    add(db, "a", on_conflict="replace", args=['{"n": 2}'])
    assert [job.id for job in run(db, 1)] == [first]


def test_large_arguments_come_and_go(db: Verbs) -> None:
    large = [json.dumps({"n": number, "pad": "x" * 9000}) for number in range(3)]
    [(job, _), _] = add(db, "a", "a", on_conflict="replace", args=large[:2])
    assert db.value("SELECT args -> 'n' FROM skiplock.payloads") == 1
    add(db, "a", on_conflict="replace", args=large[2:])
    assert db.rows("SELECT job_id, (args ->> 'n')::integer FROM skiplock.payloads") == [(job, 2)]
    add(db, "a", on_conflict="replace")
    assert db.count("payloads") == 0 and db.job(job).args == {}


def test_what_was_tried_with_other_arguments_counts_for_nothing(db: Verbs) -> None:
    """Its attempts stay on record and their numbers go on; steps done for other arguments are not taken for done.

    To see it fail: leave the steps in `_take_out` (unique.sql), or take max_attempts as given in enqueue_flow.sql.
    """
    [(job, _)] = add(db, "a", max_attempts=[2])
    [claimed] = run(db)
    db.rows("INSERT INTO skiplock.steps VALUES (%s, 'charge', '1', 1, now())", job)
    db.settle(others=[verdict(claimed, "retry", delay=60, failure=failure())])
    assert add(db, "a", on_conflict="replace", max_attempts=[2]) == [(job, False)]
    row = db.job(job)
    assert (row.state, row.attempt, row.max_attempts, row.losses) == ("ready", 1, 3, 0)
    assert db.count("steps") == 0 and len(db.attempts(job)) == 1
    for attempt in (2, 3):
        [claimed] = run(db)
        assert claimed.attempt == attempt
        db.settle(others=[verdict(claimed, "retry", delay=0, failure=failure())])
        db.rows("SELECT * FROM skiplock.promote()")
    assert db.state(job) == "dead"
    check(db)


def test_reschedule_draws_out_but_not_for_ever(db: Verbs) -> None:
    """To see it fail: take `longest` out of `due` in enqueue_flow.sql."""
    [(job, _)] = add(db, "a", on_conflict="reschedule", longest=30, delays=[20.0])
    since = db.job(job).enqueued_at
    db.move_time(15)
    add(db, "a", on_conflict="reschedule", longest=30, delays=[10.0])
    assert 24 < (db.job(job).run_at - since).total_seconds() < 26
    add(db, "a", on_conflict="reschedule", longest=30, delays=[20.0])
    assert (db.job(job).run_at - since).total_seconds() == 30
    db.move_time(40)
    add(db, "a", on_conflict="reschedule", longest=30, delays=[20.0])
    assert db.state(job) == "ready"
    [(other, _)] = add(db, "b", on_conflict="reschedule", longest=30, delays=[100.0])
    assert (db.job(other).run_at - db.job(other).enqueued_at).total_seconds() == 30, "the first one, too"


def test_reschedule_without_a_delay_is_due_at_once(db: Verbs) -> None:
    """To see it fail: least(NULL, since + longest) in enqueue_flow.sql."""
    [(job, _)] = add(db, "a", on_conflict="reschedule", longest=300, delays=[20.0])
    add(db, "a", on_conflict="reschedule", longest=300)
    assert db.state(job) == "ready"
    assert db.state(add(db, "b", on_conflict="reschedule", longest=300)[0][0]) == "ready"


def test_raise_names_the_row_and_the_job_and_stores_nothing(db: Verbs) -> None:
    [(job, _)] = add(db, "a")
    with pytest.raises(psycopg.Error, match=rf"job 2: its unique key is that of job {job}, ") as found:
        add(db, "b", "a", on_conflict="raise")
    assert found.value.sqlstate == "SK005"
    with pytest.raises(psycopg.Error, match=r"job 3: its unique key is that of number 1 of the same list"):
        add(db, "c", None, "c", on_conflict="raise")
    assert db.count() == 1 and holders(db) == {"a": job}


BAD = [
    ({"key": ""}, "a key has 1 to 400 characters"),
    ({"key": "x" * 401}, "a key has 1 to 400 characters"),
    ({}, "a key has 1 to 400 characters"),
    ("a", "a key has 1 to 400 characters"),
    (None, "a key has 1 to 400 characters"),
    ({"key": "a", "on_conflict": "ignore"}, "on_conflict 'ignore': must be keep, replace, reschedule or raise"),
    ({"key": "a", "period": 0.5}, "period must be at least 1 second"),
    ({"key": "a", "hold": -1}, "hold and longest not negative"),
    ({"key": "a", "hold": "infinity"}, "more than 100 years"),
    ({"key": "a", "period": "nan"}, "more than 100 years"),
    ({"key": "a", "longest": 1e300}, "more than 100 years"),
]


@pytest.mark.parametrize(("unique", "reason"), BAD)
def test_rules_that_make_no_sense_are_refused_by_place(db: Verbs, unique: Any, reason: str) -> None:
    """A `hold` that no clock can be moved by would be found only when the job ends, and stop all that end with it."""
    flows = [None, json.dumps({"unique": unique})]
    with pytest.raises(psycopg.Error, match="job 2: ") as found:
        db.rows("SELECT * FROM skiplock.enqueue_flow('{t,t}', '{null,null}'::json[], '{q,q}', %s::jsonb[])", flows)
    assert found.value.sqlstate == "SK001" and reason in str(found.value)
    assert db.count() == 0 and db.count("uniques") == 0


@pytest.mark.parametrize(
    "key", ["'; DROP TABLE skiplock.jobs; --", "%s {} \\", "ключ 🔑", " ", "x" * 400, "🔑" * 400, "\n\t", 'a"b']
)
def test_a_key_is_only_text(db: Verbs, key: str) -> None:
    [(job, _)] = add(db, key)
    assert add(db, key) == [(job, False)] and add(db, key + "?" if len(key) < 400 else "y" * 400)[0][1]
    assert holders(db)[key] == job


# -- how long it is held ----------------------------------------------------------------------------------------------

ENDS = ["completed", "dead", "cancelled by its handler", "cancelled waiting", "cancelled ready", "deleted", "expired", "lost", "complete()", "cancelled running"]  # fmt: skip


def end(db: Verbs, how: str, key: str = "a", **rules: Any) -> int:
    """Make a job end in that way."""
    more: dict[str, Any] = {"delays": [60.0]} if how == "cancelled waiting" else {}
    others = {"expires": 0} if how == "expired" else {}
    [(job, new)] = add(db, key, others=others, max_attempts=[1], **more, **rules)
    assert new
    if how in ("cancelled waiting", "cancelled ready"):
        db.rows("SELECT skiplock.cancel(%s)", job)
    elif how == "deleted":
        db.rows("SELECT skiplock.delete(%s)", job)
    elif how == "expired":
        db.rows("SELECT * FROM skiplock.promote()")
    elif how == "lost":
        worker = db.register(lost_after=0)
        for _ in range(3):
            claimed = db.claim(worker) or db.claim_suspects(worker) or db.claim_suspects(worker, alone=True)
            assert claimed
            db.rows("SELECT skiplock.report_lost(%s, NULL, 'killed')", worker)
            worker = db.register()
    else:
        [claimed] = run(db)
        if how == "complete()":
            db.rows("SELECT skiplock.complete(%s, %s)", job, claimed.lease)
        elif how == "completed":
            db.settle(completed=[claimed])
        elif how == "cancelled running":
            db.rows("SELECT skiplock.cancel(%s)", job)
            db.settle(others=[verdict(claimed, "retry", delay=5, failure=failure())])
        else:
            db.settle(others=[verdict(claimed, "dead" if how == "dead" else "cancelled", failure=failure())])
    return job


@pytest.mark.parametrize("how", ENDS)
def test_the_key_comes_free_with_the_end_of_its_job(db: Verbs, how: str) -> None:
    """To see it fail: leave out `_let_go` in `_finish`, `_cancelled` or `delete`."""
    job = end(db, how)
    assert db.state(job) in ("completed", "dead", "cancelled", None), how
    assert db.count("uniques") == 0
    assert add(db, "a")[0][1]
    check(db)


@pytest.mark.parametrize("how", ENDS)
def test_hold_keeps_it_for_a_while_after_the_end(db: Verbs, how: str) -> None:
    job = end(db, how, hold=30)
    if how == "deleted":
        assert db.count("uniques") == 0, "for nothing that is not there any more"
        return
    for on_conflict in ("keep", "replace", "reschedule"):
        assert add(db, "a", on_conflict=on_conflict) == [(job, False)]
    db.move_time(31)
    [(other, new)] = add(db, "a", hold=30)
    assert new and other != job
    check(db)


@pytest.mark.parametrize("what", ["snooze", "retry", "release", "lost once"])
def test_who_is_to_run_again_keeps_its_key(db: Verbs, what: str) -> None:
    [(job, _)] = add(db, "a")
    worker = db.register()
    [claimed] = db.claim(worker)
    if what == "lost once":
        db.rows("SELECT skiplock.report_lost(%s, %s, 'killed')", worker, [job])
    else:
        db.settle(others=[verdict(claimed, what, delay=60, failure=failure())])
    assert add(db, "a") == [(job, False)]
    check(db)


def test_a_period_is_held_until_it_is_over(db: Verbs) -> None:
    db.rows("CREATE OR REPLACE FUNCTION skiplock.now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT timestamptz '2030-01-01 10:59:00Z' $$")  # fmt: skip
    first = end(db, "completed", period=3600)
    assert add(db, "a", period=3600) == add(db, "a", period=3600.0) == [(first, False)]
    [(short, new)] = add(db, "a", period=60)
    assert new and add(db, "a")[0][1], "another window is another key"
    db.rows("CREATE OR REPLACE FUNCTION skiplock.now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT timestamptz '2030-01-01 11:00:00Z' $$")  # fmt: skip
    [(second, new)] = add(db, "a", period=3600)
    assert new, "though the short one still waits"
    assert db.state(short) == "ready" and db.state(second) == "ready"
    check(db)


def test_windows_of_two_lengths_do_not_block_each_other(db: Verbs) -> None:
    """Nor one of them a key without. To see it fail: leave the length out of the key, in `_unique_keys`."""
    db.rows("CREATE OR REPLACE FUNCTION skiplock.now() RETURNS timestamptz LANGUAGE sql AS $$ SELECT timestamptz '1970-01-01 00:00:30Z' $$")  # fmt: skip
    assert [add(db, "a", period=60)[0][1], add(db, "a", period=3600)[0][1], add(db, "a")[0][1]] == [True] * 3
    assert not add(db, "a", period=3600)[0][1]
    check(db)


def test_keys_that_came_free_are_forgotten(db: Verbs) -> None:
    end(db, "completed", hold=30)
    assert db.value("SELECT skiplock.sweep_uniques()") == 0
    db.move_time(31)
    assert db.value("SELECT skiplock.sweep_uniques()") == 1


# -- retried by hand --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hold", [0, 30])
@pytest.mark.parametrize("how", ["dead", "cancelled ready"])
def test_a_retried_job_takes_its_key_again(db: Verbs, how: str, hold: int) -> None:
    """Also one whose key is still held for it: from now on for as long as it lives.

    To see it fail: `u.free_at <= v_now` without `OR u.job_id = n.job_id` in `_take_unique`; or no `hold` kept in `flow`.
    """
    job = end(db, how, hold=hold)
    db.rows("SELECT * FROM skiplock.retry(%s)", job)
    check(db)
    db.move_time(31)
    db.rows("SELECT skiplock.sweep_uniques()")
    assert add(db, "a") == [(job, False)]
    [claimed] = run(db)
    db.settle(completed=[claimed])
    assert db.count("uniques") == (1 if hold else 0)


def test_a_hold_is_kept_over_a_retry_long_after(db: Verbs) -> None:
    job = end(db, "dead", hold=30)
    db.move_time(31)
    db.rows("SELECT skiplock.sweep_uniques()")
    db.rows("SELECT * FROM skiplock.retry(%s)", job)
    [claimed] = run(db)
    db.settle(completed=[claimed])
    assert add(db, "a") == [(job, False)]


def test_a_retry_is_refused_while_another_has_the_key(db: Verbs) -> None:
    dead = end(db, "dead")
    [(job, _)] = add(db, "a")
    with pytest.raises(
        psycopg.Error, match=f"job {dead}: its unique key is held by job {job}; cancel or wait"
    ) as found:
        db.rows("SELECT * FROM skiplock.retry(%s)", dead)
    assert found.value.sqlstate == "SK005"
    assert (db.state(dead), db.state(job)) == ("dead", "ready")
    check(db)
    db.rows("SELECT skiplock.delete(%s)", dead)
    check(db)  # which took nothing from the other


def test_deleting_what_has_ended_frees_what_was_held_for_it(db: Verbs) -> None:
    job = end(db, "completed", hold=30)
    db.rows("SELECT skiplock.delete(%s)", job)
    assert add(db, "a")[0][1]


# -- with the other rules ---------------------------------------------------------------------------------------------


def test_a_replaced_job_lets_its_slots_go(db: Verbs) -> None:
    """Ready under one limit, replaced by one under another, then by one for later."""

    def limit(key: str) -> dict[str, Any]:
        return {"limits": [{"key": key, "slots": 1}]}

    def slots() -> list[Any]:
        return [tuple(row) for row in db.rows("SELECT key, job_id FROM skiplock.slots")]

    [(job, _)] = add(db, "a", others=limit("x"))
    [(next_one, _)] = add(db, "b", others=limit("x"))
    db.rows("SELECT * FROM skiplock.promote()")
    assert slots() == [("x", job)] and db.state(next_one) == "blocked"
    add(db, "a", on_conflict="replace", others=limit("y"))
    db.rows("SELECT * FROM skiplock.promote()")
    assert sorted(slots()) == [("x", next_one), ("y", job)]
    add(db, "a", on_conflict="replace", others=limit("y"), delays=[60.0])
    db.rows("SELECT * FROM skiplock.promote()")
    assert slots() == [("x", next_one)] and db.state(job) == "scheduled"
    db.move_time(61)
    db.rows("SELECT * FROM skiplock.promote()")
    assert sorted(slots()) == [("x", next_one), ("y", job)]
    db.settle(completed=sorted(run(db)))
    assert slots() == [] and db.count("uniques") == 0


def test_two_of_one_key_due_at_once_do_not_stop_a_batch(db: Verbs) -> None:
    """One is to be tried again; the other is enqueued: never two live ones, so no promotion and no rescue can meet a conflict."""
    [(job, _)] = add(db, "a")
    [claimed] = run(db)
    db.settle(others=[verdict(claimed, "retry", delay=5, failure=failure())])
    others = db.enqueue_some(3, delay="5 seconds")
    assert add(db, "a", delays=[5.0]) == [(job, False)]
    db.move_time(6)
    assert db.value("SELECT moved FROM skiplock.promote()") == 4
    assert {found.id for found in run(db)} == {job, *others}


def test_one_job_through_sql(db: Verbs) -> None:
    sql = "SELECT id, is_new FROM skiplock.enqueue_unique('t', 'document 5', '{{\"n\": {}}}', on_conflict => 'reschedule', delay => '10 seconds', hold => '1 min')"  # fmt: skip
    [(job, new)] = db.rows(sql.format(1))
    assert new and db.rows(sql.format(2)) == [(job, False)]
    assert db.job(job).args == {"n": 2} and db.job(job).flow == {"unique": "document 5", "hold": 60}
    with pytest.raises(psycopg.Error, match="unique: a key has 1 to 400"):
        db.rows("SELECT * FROM skiplock.enqueue_unique('t', '')")
