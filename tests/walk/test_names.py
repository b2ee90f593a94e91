"""Names of queues, tasks, tags and workers, of any text: they work everywhere, or are refused where they are given.

Kinds: quoting and injection by name (SEC-01, SEC-18), names that differ by case or blanks merged into one, NUL that ends a
name early and so means another one, names longer than an identifier or a notification (PAY-16 for names), a worker that never
gets registered because of its name. The bells of such queues: tests/walk/test_listening.py.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from skiplock import ConfigurationError, OptionError, Skiplock
from skiplock.core.settings import WorkerSettings
from skiplock.desk.find import list_call, queues_call, workers_call
from skiplock.desk.queues import pause_call, resume_call
from skiplock.store.call import Call, nothing
from tests.support.verbs import Verbs
from tests.support.workers import running_worker, settled

S = "skiplock"
NAMES = [
    "a'b", 'a"b', "a;drop table jobs", "a--b", "a\\b", "\\", "'; SELECT 1; --", "$1", "%s", "%", "{}", '{"a"}', "a,b", "NULL", "null",
    "Foo", "foo", "FOO", " foo", "foo ", "two words", "ünï", "日本語", "🦀" * 50, "مرحبا", "e\u0301", "\u00e9", "x" * 200, "ü" * 200,
    "/", "..", "*", "skiplock.bell", "-", "--help", "=", "a=1", "#", "\u3000", "\u202eabc", "a\u2028b", "true", "0",
]  # fmt: skip


async def test_names_of_any_printable_text_work_everywhere(app: Skiplock, db: Verbs) -> None:
    """One worker serves them all; each job is found under its own name and no other."""
    app.task(name="outside")(lambda: None)
    for name in NAMES:

        @app.task(name=name, queue=name, tags=[name])
        async def work(given: str) -> str:
            return given

    async with running_worker(app, queues=dict.fromkeys(NAMES, 1), name='Ann\'s "worker" %s {} \\ ☃') as worker:
        jobs = {name: await app.tasks[name].aenqueue(given=name) for name in NAMES}
        for name, job in jobs.items():
            record = await settled(job)
            assert (record.state, record.result, record.error) == ("completed", name, None)
            assert (record.task, record.queue, record.tags, record.args) == (name, name, (name,), {"given": name})
            for filters in ({"queue": name}, {"task": name}, {"tag": name}):
                listed = await app.arun(list_call(S, **filters))
                assert [found.id for found in listed] == [job.id], filters
        [found] = await app.arun(workers_call(S))
        assert (found.name, found.queues) == (worker.worker.name, dict.fromkeys(NAMES, 1))


async def test_pausing_one_pauses_no_other(app: Skiplock, db: Verbs) -> None:
    @app.task(name="t")
    async def work() -> None: ...

    jobs = {name: await work.using(queue=name).aenqueue() for name in NAMES}
    for name in NAMES[::2]:
        await app.arun(pause_call(name, S))
    paused = {found.name for found in await app.arun(queues_call(S)) if found.paused}
    assert paused == set(NAMES[::2])
    async with running_worker(app, queues=dict.fromkeys(NAMES, 1)):
        for name in NAMES[1::2]:
            await settled(jobs[name])
        assert {(await jobs[name].aget()).state for name in NAMES[::2]} == {"ready"}
        for name in NAMES[::2]:
            await app.arun(resume_call(name, S))
        for name in NAMES[::2]:
            await settled(jobs[name])


# --- refused ----------------------------------------------------------------------------------------------------------

BAD = {
    "NUL": "a\0b",
    "a line feed": "a\nb",
    "an escape": "\x1b[2J",
    "DEL": "a\x7f",
    "a C1 control": "a\x85b",
    "a lone surrogate": "a\ud800",
    "a byte that is no text": "\udcff",
    "too long": "x" * 201,
    "a megabyte": "x" * 1_000_000,
    "no text": 7,
    "bytes": b"a",
}
Door = Callable[[Skiplock, Any], Any]
DOORS: dict[str, Door] = {
    "task name": lambda app, name: app.task(name=name)(_work),
    "task queue": lambda app, name: app.task(name="t", queue=name)(_work),
    "task tag": lambda app, name: app.task(name="t", tags=[name])(_work),
    "using queue": lambda app, name: app.task(name="t")(_work).using(queue=name),
    "using tag": lambda app, name: app.task(name="t")(_work).using(tags=["fine", name]),
    "worker's queue": lambda _, name: WorkerSettings(queues={name: 1}),
    "worker's name": lambda _, name: WorkerSettings(name=name),
}


def _work() -> None: ...


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_a_name_that_cannot_be_is_refused_at_the_door(door: Door, bad: Any) -> None:
    app = Skiplock("postgresql://nowhere.invalid/x")
    with pytest.raises(ValueError if door not in _WORKER else ConfigurationError) as caught:
        door(app, bad)
    text = str(caught.value)
    assert len(text) < 400
    text.encode()  # and can be shown
    assert "\0" not in text


_WORKER = (DOORS["worker's queue"], DOORS["worker's name"])

LOOKS: dict[str, Door] = {
    "pause": lambda app, name: app.run(pause_call(name, S)),
    "resume": lambda app, name: app.run(resume_call(name, S)),
    "list by queue": lambda app, name: app.run(list_call(S, queue=name)),
    "list by task": lambda app, name: app.run(list_call(S, task=name)),
    "list by tag": lambda app, name: app.run(list_call(S, tag=name)),
}


@pytest.mark.parametrize("bad", ["a\0b", "a\ud800", 7, b"a"], ids=repr)
@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_what_no_name_can_be_is_not_looked_for(app: Skiplock, db: Verbs, look: Door, bad: Any) -> None:
    """A NUL used to end the text on its way to the server: pausing "a\\0b" paused the queue "a"."""
    with pytest.raises(OptionError):
        look(app, bad)
    assert db.count("queues") == 0


@pytest.mark.parametrize("bad", ["a\0b", "a\ud800"], ids=repr)
def test_and_nothing_of_the_kind_gets_past_the_connection(app: Skiplock, db: Verbs, bad: str) -> None:
    """By a way that checks no names. To see it fail: send what `str.encode()` makes of it: the queue "a" is paused."""
    with pytest.raises(psycopg.DataError):
        app.run(Call("SELECT skiplock.pause($1::text)", (bad,), nothing))
    assert db.count("queues") == 0


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "\x1b[2J", "\x7f"])
@pytest.mark.parametrize("what", ["task", "queue"])
def test_sql_refuses_names_that_no_worker_could_have(db: Verbs, what: str, name: str) -> None:
    """A queue or task of such a name can be given to no worker: its job would wait for ever."""
    given = {"task": "t"} | {what: name}
    with pytest.raises(psycopg.Error, match=f"job 1: {what} ") as caught:
        db.enqueue(given.pop("task"), **given)
    assert caught.value.sqlstate == "SK001"
    assert db.count() == 0


async def test_odd_names_that_were_stored_all_the_same_can_be_seen_and_acted_on(app: Skiplock, db: Verbs) -> None:
    """By an INSERT, or by another release."""
    odd = "a\nb\x1b[2J"
    sql = "INSERT INTO skiplock.jobs_ready (id, position, enqueued_at, max_attempts, state, queue, task, args, tags) SELECT n, n, now(), 1, 'ready', %s, %s, '{}', ARRAY[%s] FROM nextval('skiplock.job_numbers') n RETURNING id"
    [(job,)] = db.rows(sql, odd, odd, odd)
    for filters in ({"queue": odd}, {"task": odd}, {"tag": odd}):
        assert [found.id for found in await app.arun(list_call(S, **filters))] == [job]
    await app.arun(pause_call(odd, S))
    assert [(found.name, found.paused) for found in await app.arun(queues_call(S))] == [(odd, True)]
    assert await app.job(job).acancel() == "ready"
    assert await app.job(job).adelete() == "cancelled"


async def test_a_host_whose_name_is_no_text(app: Skiplock, db: Verbs, monkeypatch: pytest.MonkeyPatch) -> None:
    """To see it fail: use what gethostname() answers. The worker is never registered, and tries for ever."""
    monkeypatch.setattr(socket, "gethostname", lambda: "host\udcff")

    @app.task(name="t")
    async def work() -> int:
        return 1

    async with running_worker(app):
        assert (await settled(await work.aenqueue())).result == 1
        [found] = await app.arun(workers_call(S))
        assert found.host == "host\\udcff"
