"""What can be set for a queue or a task at run time: pauses until a time, bounds, ageing.

Kinds: a pause that a worker does not respect or that outlasts its time (OPS-), a producer that fills the disk (SCALE-), a
bound that costs those without one, a job at the end of a line that never comes (PRIO-).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from skiplock import OptionError, QueueFullError, Skiplock
from skiplock.desk.find import queues_call
from skiplock.desk.queues import age_call, bound_call, pause_call, pause_task_call, paused_tasks_call
from tests.support.verbs import Verbs, at_once, open_verbs, verdict

S = "skiplock"


@pytest.fixture
def db(fresh_dsn: str) -> Iterator[Verbs]:
    """A database of its own, whose clock a test may move."""
    with open_verbs(fresh_dsn) as verbs:
        yield verbs


@pytest.fixture
def app(fresh_dsn: str) -> Iterator[Skiplock]:
    with Skiplock(fresh_dsn) as found:
        yield found


def promote(db: Verbs) -> Any:
    return db.rows("SELECT * FROM skiplock.promote(1000, true)")[0]


def due_in(db: Verbs) -> float | None:
    found: float | None = db.rows("SELECT due_in FROM skiplock.beat(1)")[0].due_in
    return found


def claimed(db: Verbs, tasks: tuple[str, ...] = ("t",), **more: Any) -> list[int]:
    return [job.id for job in db.claim(1, tasks=tasks, **more)]


# --- pauses -----------------------------------------------------------------------------------------------------------


def test_a_queue_is_paused_for_a_while(db: Verbs) -> None:
    """By the claims' own clock, so that nobody has to be there to resume it."""
    until = db.value("SELECT skiplock.pause_queue('default', 60)")
    assert until == db.value("SELECT resume_at FROM skiplock.queues")
    job = db.enqueue()
    lanes = [("default", 0, 0)]
    assert claimed(db) == claimed(db, lanes=lanes) == []
    db.move_time(61)
    assert claimed(db, lanes=lanes) == [job]


@pytest.mark.parametrize("what", ["queue", "task"])
def test_the_leader_wakes_and_resumes(db: Verbs, what: str) -> None:
    """Whoever sleeps is woken, and so is the leader when the pause begins. Take `_next_tending` out of promote.sql, or the
    rings out of tend_queues or pause_queue, to see it fail."""
    name = {"queue": "default", "task": "t"}[what]
    db.rows("SELECT skiplock.arm('{default}')")
    promote(db)  # the leader means to sleep for ever
    with psycopg.connect(db.connection.info.dsn, password=db.connection.info.password, autocommit=True) as listener:
        listener.execute('LISTEN "skiplock.bell"')
        db.value(f"SELECT skiplock.pause_{what}(%s, 60)", name)
        assert [n.payload for n in listener.notifies(timeout=5, stop_after=1)] == [""]
        assert 58 < promote(db).due_in <= 60 and 58 < (due_in(db) or 0) <= 60
        db.enqueue()
        assert [n.payload for n in listener.notifies(timeout=5, stop_after=1)] == ["default"]
        db.move_time(61)
        found = promote(db)
        assert (found.moved, found.due_in) == (1, None)
        assert [n.payload for n in listener.notifies(timeout=5, stop_after=1)] == ["default"]
    assert (
        db.count("paused_tasks") == 0 and db.count("queues WHERE paused_at IS NOT NULL OR resume_at IS NOT NULL") == 0
    )


def test_a_task_is_paused_in_every_queue(db: Verbs) -> None:
    """Others pass its jobs by. Take `paused_tasks` out of claim.sql to see it fail, once for each of the three claims."""
    job, other = db.enqueue("t"), db.enqueue("other")
    suspect = db.enqueue("t")
    db.rows("UPDATE skiplock.jobs_ready SET losses = 1, position = 0 WHERE id = %s", suspect)
    db.rows("SELECT skiplock.pause_task('t')")
    assert claimed(db, ("t", "other"), lanes=[("default", 0, 0)]) == [other]
    assert claimed(db, ("t",)) == [] == db.claim_suspects(1)
    db.rows("SELECT skiplock.resume_task('t')")
    assert claimed(db) == [job]
    assert [found.id for found in db.claim_suspects(1)] == [suspect]


def test_a_task_is_paused_for_a_while(db: Verbs) -> None:
    db.rows("SELECT skiplock.pause_task('t', until => skiplock.now() + interval '1 min')")
    job = db.enqueue()
    assert claimed(db) == []
    db.move_time(61)
    assert claimed(db) == [job]


def test_the_latest_word_counts(db: Verbs) -> None:
    db.rows("SELECT skiplock.pause_queue('default', 60)")
    db.rows("SELECT skiplock.pause('default')")  # as the release before says it: until resumed
    db.rows("SELECT skiplock.pause_task('t', 60)")
    db.rows("SELECT skiplock.pause_task('t')")
    db.enqueue()
    db.move_time(61)
    promote(db)
    assert claimed(db) == []
    db.rows("SELECT skiplock.resume('default')")
    db.rows("SELECT skiplock.resume_task('t')")
    assert len(claimed(db)) == 1


def test_old_workers_respect_pauses(db: Verbs) -> None:
    """They call the same functions; what they know of a queue is not asked."""
    db.rows("SELECT skiplock.pause_task('t')")
    db.enqueue()
    assert db.rows("SELECT * FROM skiplock.claim(1, 1, '{default}', '{5}', '{t}')") == []


@pytest.mark.parametrize(
    "given",
    [{"length": -1}, {"length": "1y"}, {"length": 4e9}, {"until": "tomorrow"}, {"length": 1, "until": "tomorrow"}],
)
def test_pauses_that_make_no_sense(app: Skiplock, given: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        app.queues.pause("mail", **given)
    with pytest.raises(OptionError):
        app.queues.pause_task("t", **given)
    for call in (pause_call, pause_task_call):
        with pytest.raises(OptionError):
            app.run(call("\0", S))


def test_who_is_paused_is_listed(app: Skiplock, db: Verbs) -> None:
    at = app.queues.pause("mail", length="1h")
    app.queues.pause("post", length=1)
    app.queues.pause_task("a")
    app.queues.pause_task("b", until=at)
    app.queues.pause_task("c", length="1s")
    db.move_time(2)
    assert [(q.name, q.paused, q.resume_at) for q in app.run(queues_call(S))] == [("mail", True, at)]
    assert [(t.name, t.resume_at) for t in app.run(paused_tasks_call(S))] == [("a", None), ("b", at)]
    app.queues.resume_task("a")
    assert [t.name for t in app.queues.paused_tasks()] == ["b"]


# --- bounds -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def bounded(db: Verbs) -> Verbs:
    db.rows("SELECT skiplock.bound_queue('default', 3)")
    return db


def many(db: Verbs, queues: list[str], **more: Any) -> None:
    named = "".join(f", {name} => %s" for name in more)
    n = len(queues)
    db.rows(f"SELECT skiplock.enqueue_many(%s, %s::json[], %s{named})", ["t"] * n, ["{}"] * n, queues, *more.values())


def flow(db: Verbs, queues: list[str]) -> None:
    n = len(queues)
    sql = "SELECT * FROM skiplock.enqueue_flow(%s, %s::json[], %s, %s::jsonb[])"
    db.rows(sql, ["t"] * n, ["{}"] * n, queues, ['{"fair": "A"}'] * n)


WAYS = {
    "at once": many,
    "for later": lambda db, queues: many(db, queues, delays=[60.0] * len(queues)),
    "with rules": flow,
}


@pytest.mark.parametrize("way", WAYS)
def test_a_full_queue_refuses(bounded: Verbs, way: str) -> None:
    """As a whole, before anything is stored. Take `_check_depth` out of enqueue.sql and enqueue_flow.sql to see it fail."""
    enqueue = WAYS[way]
    enqueue(bounded, ["default", "default", "other"])
    dead = bounded.value("SELECT pg_relation_size('skiplock.jobs_ready') + pg_relation_size('skiplock.jobs_waiting')")
    for _ in range(200):
        with pytest.raises(psycopg.Error) as caught:
            enqueue(bounded, ["other", "default", "default"])
        assert caught.value.sqlstate == "SK006"
    assert "queue default is full: it holds 2 jobs, and 2 more would pass its bound of 3" in str(caught.value)
    assert dead == bounded.value(
        "SELECT pg_relation_size('skiplock.jobs_ready') + pg_relation_size('skiplock.jobs_waiting')"
    )
    assert bounded.count() == 3
    enqueue(bounded, ["default", "other", "other", "other"])
    bounded.rows("SELECT skiplock.bound_queue('default', NULL)")
    enqueue(bounded, ["default"] * 10)


def test_what_counts(bounded: Verbs) -> None:
    """Ready and waiting, in whatever lane; neither what runs nor what has ended."""
    bounded.enqueue(priority=-5)
    bounded.enqueue(delay="1 hour")
    bounded.enqueue(priority=7)
    with pytest.raises(psycopg.Error, match="holds 3 jobs"):
        bounded.enqueue()
    [first, second] = bounded.claim(1)
    bounded.enqueue()
    bounded.settle(completed=[first])
    bounded.enqueue()
    with pytest.raises(psycopg.Error, match="holds 3 jobs"):
        bounded.enqueue()
    # Whoever was accepted comes back whatever the bound says.
    bounded.settle(others=[verdict(second, "retry", delay=60.0)])
    with pytest.raises(psycopg.Error, match="holds 3 jobs"):
        bounded.enqueue()
    bounded.move_time(4000)
    promote(bounded)
    assert len(claimed(bounded)) == 4


def test_a_bound_is_kept_under_many_producers(db: Verbs, fresh_dsn: str) -> None:
    """But for as many as enqueue at the same moment."""
    db.rows("SELECT skiplock.bound_queue('default', 50)")

    def produce(mine: Verbs, _: int) -> int:
        stored = 0
        for _ in range(40):
            try:
                mine.enqueue()
                stored += 1
            except psycopg.Error as error:
                assert error.sqlstate == "SK006"
        return stored

    stored = sum(at_once(fresh_dsn, 4, produce))
    assert 50 <= stored == db.count("jobs_ready") <= 53


def test_the_error_is_typed(app: Skiplock, bounded: Verbs) -> None:
    @app.task(name="t")
    def work() -> None: ...

    app.enqueue_many([work.job() for _ in range(3)])
    with pytest.raises(QueueFullError) as caught:
        work.enqueue()
    error = caught.value
    assert (error.queue, error.depth, error.wanted, error.bound, error.can_pass) == ("default", 3, 1, 3, True)
    with pytest.raises(QueueFullError) as caught:
        app.enqueue_many([work.job() for _ in range(4)], wait="1h")  # would be in vain
    assert not caught.value.can_pass


@pytest.mark.parametrize("most", [0, -1, 1_000_001, True, 2.5, "3"])
def test_bounds_that_make_no_sense(app: Skiplock, most: Any) -> None:
    with pytest.raises(OptionError, match="bound"):
        app.run(bound_call("q", most, S))


def test_a_queue_far_from_its_bound_costs_little_under_an_old_snapshot(db: Verbs, fresh_dsn: str) -> None:
    """10,000 jobs came and went. Count from the left end in _depth to see it fail."""
    db.rows("SELECT skiplock.bound_queue('default', 100000)")
    worker = db.register()
    with open_verbs(fresh_dsn) as other, other.transaction():
        other.rows("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        other.rows("SELECT count(*) FROM skiplock.jobs")
        for _ in range(5):
            many(db, ["default"] * 2000)
            jobs = db.claim(worker, 2000)
            db.settle(completed=sorted(jobs))
        db.rows("SELECT skiplock._tell_lanes('{default}', '{0}', ARRAY[%s::bigint])", max(job.position for job in jobs))
        db.enqueue()
        [[[plan]]] = db.rows("EXPLAIN (ANALYZE, BUFFERS, FORMAT json) SELECT skiplock._depth('default', 100000)")
        assert plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"] < 150


def test_a_queue_is_not_counted_at_each_enqueue(db: Verbs) -> None:
    """Far from its bound, a look at what it held and at the numbers drawn since will do. Take the CONTINUE out of depth.sql to see
    it fail."""
    db.rows("SELECT skiplock.bound_queue('default', 20000)")
    many(db, ["default"] * 5000)
    db.enqueue()
    [[[plan]]] = db.rows("EXPLAIN (ANALYZE, BUFFERS, FORMAT json) SELECT skiplock.enqueue('t')")
    assert plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"] < 100
    many(db, ["other"] * 14_990)  # so many more might be there as well
    many(db, ["default"] * 14_998)
    with pytest.raises(psycopg.Error, match="holds 20000 jobs, and 1 more"):
        db.enqueue()


def test_what_was_counted_is_never_waited_for(db: Verbs, fresh_dsn: str) -> None:
    """A producer's transaction may stay open. Take SKIP LOCKED out of depth.sql to see it fail."""
    db.rows("SELECT skiplock.bound_queue('default', 1000)")
    with open_verbs(fresh_dsn) as other, other.transaction():
        other.enqueue()
        db.rows("SET lock_timeout = '1s'")
        db.enqueue()
        db.rows("SELECT skiplock.bound_queue('default', 2000)")


# --- ageing -----------------------------------------------------------------------------------------------------------


def priorities(db: Verbs) -> list[tuple[int, int]]:
    """(id, priority), in the order of the line."""
    return [tuple(r) for r in db.rows("SELECT id, priority FROM skiplock.jobs_ready ORDER BY priority DESC, position")]


def test_ready_jobs_rise(db: Verbs) -> None:
    db.rows("SELECT skiplock.age_queue('default', 60)")
    old, high = db.enqueue(), db.enqueue(priority=2)
    other = db.enqueue(queue="other")
    for seconds, found in ((30, 0), (61, 1), (91, 1), (121, 2), (301, 5)):
        db.move_time(seconds)
        promote(db)
        assert priorities(db) == [(high, 2 + found), *sorted([(old, found), (other, 0)], key=lambda e: (-e[1], e[0]))]
    fresh = db.enqueue(priority=5)
    # It has the priority of the old one, and came later.
    assert [job.id for job in db.claim(1, 3)] == [high, old, fresh]


def test_those_that_have_risen_are_found_and_settled(db: Verbs) -> None:
    db.rows("SELECT skiplock.age_queue('default', 1)")
    worker = db.register()
    job, other = db.enqueue(), db.enqueue()
    db.move_time(3)
    promote(db)
    assert db.rows("SELECT id, priority FROM skiplock.find(ARRAY[%s::bigint])", job) == [(job, 3)]
    assert db.rows("SELECT done FROM skiplock.cancel(%s)", other) == [(True,)]
    [claim] = db.claim(worker)
    assert db.settle(others=[verdict(claim, "retry", delay=1.0)]) == []
    db.move_time(5)
    promote(db)
    assert priorities(db) == [(job, 3)], "it keeps what it has gained"
    db.move_time(11)
    promote(db)
    assert priorities(db)[0][1] > 3, "and goes on from there"


def test_nobody_rises_beyond_the_highest_priority(db: Verbs) -> None:
    db.rows("SELECT skiplock.age_queue('default', 1)")
    job = db.enqueue(priority=32765)
    top = db.enqueue(priority=32767)
    db.move_time(3600)
    promote(db)
    assert priorities(db) == [(job, 32767), (top, 32767)]
    promote(db)
    assert [job.id for job in db.claim(1)] == [job, top]


def test_a_long_line_rises_in_bounded_steps(db: Verbs) -> None:
    """The oldest first, and the leader is told to come again at once."""
    db.rows("SELECT skiplock.age_queue('default', 3600)")
    many(db, ["default"] * 25)
    db.move_time(3601)
    for step in (10, 20):
        found = db.rows("SELECT * FROM skiplock.promote(10)")[0]
        assert found.moved == 10 and found.due_in <= 0
        assert [priority for _, priority in priorities(db)] == [1] * step + [0] * (25 - step)
    found = db.rows("SELECT * FROM skiplock.promote(10)")[0]
    assert found.moved == 5 and found.due_in > 0
    ids = [job_id for job_id, _ in priorities(db)]
    assert ids == sorted(ids)


def test_the_leader_wakes_for_it(db: Verbs) -> None:
    db.rows("SELECT skiplock.age_queue('default', 60)")
    promote(db)
    assert 5 < (due_in(db) or 0) <= 6
    db.rows("SELECT skiplock.age_queue('default', NULL)")
    assert promote(db).due_in is None


def test_whoever_is_claimed_just_now_is_left_alone(db: Verbs, fresh_dsn: str) -> None:
    """And nobody is locked but those that rise, for a claim passes by whoever is locked."""
    db.rows("SELECT skiplock.age_queue('default', 60)")
    db.enqueue()
    db.move_time(61)
    young = db.enqueue()
    with open_verbs(fresh_dsn) as other:
        with other.transaction():
            assert len(other.claim(1, 1)) == 1
            assert promote(db).moved == 0
        db.rows("SELECT skiplock.age_queue('default', 60)")
        with other.transaction():
            promote(other)
            assert claimed(db) == [young]


@pytest.mark.parametrize("every", [0.5, 0, 4e7, -1, "soon"])
def test_ageing_that_makes_no_sense(app: Skiplock, every: Any) -> None:
    with pytest.raises(OptionError):
        app.run(age_call("q", every, S))


# --- expiry -----------------------------------------------------------------------------------------------------------


def expiring(db: Verbs, seconds: float = 60, delay: float | None = None, **rules: Any) -> int:
    sql = "SELECT id FROM skiplock.enqueue_flow('{t}', '{\"{}\"}', '{default}', ARRAY[%s::jsonb], delays => %s, admits => true)"
    found: int = db.value(sql, json.dumps({"expires": seconds} | rules), None if delay is None else [delay])
    return found


SLOT = {"limits": [{"key": "k", "slots": 1}]}


def ready(db: Verbs) -> int:
    return expiring(db)


def waiting(db: Verbs) -> int:
    return expiring(db, delay=600.0)


def blocked(db: Verbs) -> int:
    expiring(db, 1e6, **SLOT)
    return expiring(db, **SLOT)


def released(db: Verbs) -> int:
    job_id = expiring(db)
    db.settle(others=[verdict(job, "release") for job in db.claim(db.register())])
    return job_id


@pytest.mark.parametrize("made", [ready, waiting, blocked, released], ids=lambda made: made.__name__)
def test_a_job_that_was_not_started_in_time_is_cancelled(db: Verbs, made: Any) -> None:
    job_id = made(db)
    before = db.state(job_id)
    promote(db)
    assert 58 < (due_in(db) or 0) <= 60
    db.move_time(59)
    promote(db)
    assert db.state(job_id) == before
    db.move_time(61)
    # Nobody has come by yet, and still it is not started. Take the time out of the claims to see it fail.
    assert job_id not in claimed(db) and job_id not in claimed(db, lanes=[("default", 0, 0)])
    assert promote(db).moved == 1
    job = db.job(job_id)
    assert (job.state, job.error) == ("cancelled", "expired: not started in time")


def test_once_started_it_does_not_expire(db: Verbs) -> None:
    job_id = expiring(db)
    [job] = db.claim(db.register())
    db.move_time(61)
    assert promote(db).moved == 0 and db.state(job_id) == "running"
    db.settle(others=[verdict(job, "retry", delay=1.0)])
    db.move_time(120)
    assert promote(db).moved == 1 and db.state(job_id) == "ready"


def test_the_leader_is_told_of_an_expiry_sooner_than_it_means_to_wake(db: Verbs) -> None:
    """By the enqueue, and by whoever gives a job back. Take `v_expiry` out of settle.sql to see it fail."""
    promote(db)
    with psycopg.connect(db.connection.info.dsn, password=db.connection.info.password, autocommit=True) as listener:
        listener.execute('LISTEN "skiplock.bell"')
        released(db)
        assert [n.payload for n in listener.notifies(timeout=5, stop_after=2)] == ["", ""]


def test_expired_jobs_let_go_of_what_they_held(db: Verbs) -> None:
    rules: dict[str, Any] = SLOT | {"unique": {"key": "u"}}
    first = expiring(db, **rules)
    second = expiring(db, 1e6, **SLOT)
    assert [row.job_id for row in db.rows("SELECT job_id FROM skiplock.slots")] == [first]
    db.move_time(61)
    promote(db)
    promote(db)
    assert db.count("uniques") == 0 and [row.job_id for row in db.rows("SELECT job_id FROM skiplock.slots")] == [second]
    assert claimed(db) == [second]


def test_many_expire_in_bounded_steps(db: Verbs) -> None:
    """The leader comes again at once. Leave what expired out of `moved` in promote.sql to see it fail: it would come less
    and less often."""
    for _ in range(25):
        expiring(db)
    db.move_time(61)
    steps = [db.rows("SELECT moved, due_in FROM skiplock.promote(10)")[0] for _ in range(3)]
    assert [step.moved for step in steps] == [10, 10, 5]
    assert steps[0].due_in <= 0 and steps[2].due_in is None


def test_retried_by_hand_it_has_all_the_time(db: Verbs) -> None:
    job_id = expiring(db)
    db.move_time(61)
    promote(db)
    db.rows("SELECT skiplock.retry(%s)", job_id)
    promote(db)
    assert claimed(db) == [job_id]
