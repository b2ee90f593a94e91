"""`skiplock jobs`: lists, one job, acts."""

from __future__ import annotations

import pytest

from skiplock import Concurrency, Skiplock, Unique
from tests.support import connect


@pytest.fixture
def app(dsn):
    with Skiplock(dsn) as app, connect(dsn) as connection:
        connection.execute("TRUNCATE skiplock.jobs, skiplock.attempts")
        app.task(name="mail", queue="mail", tags=["post"])(lambda to: None)
        app.task(name="report")(lambda: None)
        yield app


def _kill(dsn, job_id, error="RuntimeError: no luck", trace="Traceback\n  boom"):
    """Make the job dead, as a worker would."""
    with connect(dsn) as connection:
        connection.execute("SELECT skiplock.register('w', 'h', 1, '{}', '0', 9)")
        connection.execute(
            "INSERT INTO skiplock.attempts (job_id, attempt, verdict, error_class, message, traceback, worker_name, started_at, ended_at)"
            " VALUES (%s, 1, 'dead', 'RuntimeError', 'no luck', %s, 'w', now(), now())",
            (job_id, trace),
        )
        connection.execute(
            "UPDATE skiplock.jobs SET state = 'dead', error = %s, attempt = 1 WHERE id = %s", (error, job_id)
        )


def test_list_as_json_and_its_filters(invoke, app):
    first = app.tasks["mail"].enqueue(to="ann")
    second = app.tasks["report"].enqueue()
    third = app.tasks["report"].using(delay="1h", priority=2).enqueue()

    def ids(*options):
        return [job["id"] for job in invoke("jobs", "list", "--json", *options).json["jobs"]]

    assert ids() == [third.id, second.id, first.id]
    assert ids("--state", "scheduled") == [third.id]
    assert ids("--state", "scheduled", "--state", "ready", "--queue", "default") == [third.id, second.id]
    assert ids("--task", "mail") == ids("--tag", "post") == ids("--before", second.id) == [first.id]
    page = invoke("jobs", "list", "--json", "--limit", 2).json
    assert page["before"] == second.id and len(page["jobs"]) == 2
    job = invoke("jobs", "list", "--json", "--task", "mail").json["jobs"][0]
    assert job["args"] == {"to": "ann"} and job["tags"] == ["post"] and job["state"] == "ready"


def test_list_for_people(invoke, app):
    assert invoke("jobs", "list").out == "no jobs\n"
    ids = [app.tasks["report"].using(delay="1h", queue="q" * 60).enqueue().id for _ in range(3)]
    for width in (80, 120):
        lines = invoke("jobs", "list", "--limit", 3, COLUMNS=str(width)).out.splitlines()
        assert all(len(line) <= width for line in lines)
        assert [line.split()[0] for line in lines[2:5]] == [str(i) for i in reversed(ids)]
        assert "scheduled" in lines[2] and "0/10" in lines[2]
        assert lines[5] == f"there may be more: --before {ids[0]}"
    assert "due in 59 min" in invoke("jobs", "list").out
    assert invoke("jobs", "list", "--tag", "x").out == "no jobs match\n"


def test_show(invoke, app, dsn):
    job = app.tasks["mail"].using(meta={"trace": "a"}).enqueue(to="änn \x1b[31m")
    _kill(dsn, job.id)
    shown = invoke("jobs", "show", job.id)
    for text in (
        f"job {job.id} · dead",
        "mail",
        "RuntimeError: no luck",
        "attempt 1 dead",
        "  boom",
        '"trace": "a"',
        "änn",
    ):
        assert text in shown.out
    assert "\x1b" not in shown.out
    found = invoke("jobs", "show", job.id, "--json").json
    assert found["id"] == job.id and found["args"] == {"to": "änn \x1b[31m"} and found["meta"] == {"trace": "a"}
    assert found["attempts"][0]["traceback"] == "Traceback\n  boom"
    missing = invoke("jobs", "show", 999_999_999)
    assert missing.code == 1 and missing.err.startswith("error: job 999999999: ") and missing.out == ""
    assert invoke("jobs", "show", 999_999_999, "--json").error["code"] == "job_not_found"


def test_retry_cancel_delete(invoke, app, dsn):
    dead, ready = app.tasks["report"].enqueue(), app.tasks["report"].enqueue()
    _kill(dsn, dead.id)
    answer = invoke("jobs", "retry", dead.id, ready.id, dead.id, 999_999_999, "--json")
    assert answer.code == 1 and answer.err == ""
    done, wrong, gone = answer.json["results"]
    assert done == {"id": dead.id, "done": True, "was": "dead"}
    assert wrong["error"]["code"] == "job_state" and gone["error"]["code"] == "job_not_found"
    assert dead.get().state == "ready"

    answer = invoke("jobs", "cancel", dead.id, ready.id)
    assert answer.code == 0 and answer.out.count("cancelled (was ready)") == 2
    assert invoke("jobs", "retry", ready.id).out == f"job {ready.id}: retried (was cancelled)\n"

    refused = invoke("jobs", "delete", ready.id)
    assert refused.code == 2 and "--yes" in refused.err and ready.get()
    answer = invoke("jobs", "delete", ready.id, 999_999_999, "--yes")
    assert answer.code == 1 and "deleted (was ready)" in answer.out and "999999999" in answer.err
    assert invoke("jobs", "show", ready.id).code == 1


def test_what_holds_a_job_up_and_which_key_it_has(invoke, app, dsn):
    """For people with names and values, for programs as it is stored."""
    with connect(dsn) as connection:
        connection.execute("TRUNCATE skiplock.uniques, skiplock.slots, skiplock.nudges")
    limits = [Concurrency("to:{to}", 1)]
    mail = app.tasks["mail"].using(unique=True, limits=limits, fair_key="{to}", weight=2, expires="1h")
    first, second = mail.enqueue(to="ann"), mail.using(unique=Unique(by="the second", period="1h")).enqueue(to="ann")
    shown = " ".join(invoke("jobs", "show", second.id).out.split())
    listed = invoke("jobs", "list", COLUMNS="200").out
    for text in (
        "unique the second, one in",
        "waits for to:{to} = to:ann",
        "fair key ann (weight 2)",
        "expires 2",
    ):
        assert text in shown
    assert "waits for to:{to} = to:ann · expires in 59 min" in listed
    assert "unique mail, arguments " in " ".join(invoke("jobs", "show", first.id).out.split())
    job = invoke("jobs", "show", second.id, "--json").json
    assert (job["state"], job["blocked_on"], job["flow"]["fair"]) == ("blocked", "to:{to}\x1fto:ann", "ann")
    assert job["flow"]["unique"].startswith("the second\x1f3600\x1f") and job["expires_at"] > job["enqueued_at"]
    [other, _] = invoke("jobs", "list", "--json").json["jobs"]
    assert (other["blocked_on"], other["flow"]) == (job["blocked_on"], job["flow"])


def test_one_whose_key_another_has_does_not_stop_the_others(invoke, app):
    """To see it fail: do not look for UniqueConflictError in `_act_on_all`."""
    mail = app.tasks["mail"].using(unique=Unique(by="one at a time"))
    first = mail.enqueue(to="ann")
    first.cancel()
    second = mail.enqueue(to="ann")
    plain = app.tasks["report"].enqueue()
    plain.cancel()
    found = invoke("jobs", "retry", first.id, plain.id, "--json").json["results"]
    assert found[0]["error"]["code"] == "unique_conflict" and f"held by job {second.id}" in found[0]["error"]["message"]
    assert found[1] == {"id": plain.id, "done": True, "was": "cancelled"}
