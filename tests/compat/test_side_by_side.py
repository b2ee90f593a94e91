"""Workers, producers and the command line of the previous release beside those of this one, on this one's schema.

Kinds: N-1 on schema N under load (UPG-14, case 24), mixed versions in a rolling deploy (UPG-03, UPG-13), a task that only
some workers know (UPG-10, UPG-11).

The old worker serves the queues `old` and `both`, the new one `new` and `both`; what one side makes the other runs.
To see them fail: see test_contract.py; or drop a column that `claim` answers.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from tests.compat.jobs import RUNS
from tests.compat.releases import NEW, Client, Release
from tests.support.catalog import run
from tests.support.fleets import Fleet
from tests.support.waiting import eventually

BEATS = ("--beat-every", "0.5", "--lost-after", "3")
SIDES = ["old", "new"]
crossed = pytest.mark.parametrize(("maker", "runner"), [("old", "new"), ("new", "old")])


class Both(NamedTuple):
    """The two sides on one database."""

    dsn: str
    workers: dict[str, Fleet]
    clients: dict[str, Client]

    def until(self, job: int, state: str = "completed", by: str = "new") -> dict[str, Any]:
        """The job as that side sees it, once it is there."""
        found: dict[str, Any] = {}

        def reached() -> bool:
            found.update(self.clients[by].get(job))
            return bool(found["state"] == state)

        eventually(reached)
        return found

    def notes(self, jobs: list[int]) -> list[tuple[int, str, str]]:
        """(job, which code ran it, what it says), a row a run."""
        return run(self.dsn, "SELECT job, code, note FROM runs WHERE job = ANY (%s) ORDER BY job, attempt", jobs)


@pytest.fixture(scope="module")
def both(previous: Release, dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    folder: Path = tmp_path_factory.mktemp("logs")
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(RUNS)
    with (
        previous.worker(dsn, folder, options=BEATS, old=10, both=10) as old,
        NEW.worker(dsn, folder, options=BEATS, new=10, both=10) as new,
        previous.client(dsn) as old_client,
        NEW.client(dsn) as new_client,
    ):
        old.ready()
        new.ready()
        yield Both(dsn, {"old": old, "new": new}, {"old": old_client, "new": new_client})
        for fleet in (old, new):
            failures = [e for name in ("claim_failed", "settle_failed", "beat_failed") for e in fleet.events(name)]
            assert failures == []
            assert not fleet.events("settle_refused") and not fleet.events("worker_rescued")


@pytest.mark.parametrize("maker", SIDES)
@pytest.mark.parametrize("runner", SIDES)
def test_every_way_to_enqueue(both: Both, maker: str, runner: str) -> None:
    client, options = both.clients[maker], {"queue": runner, "priority": 3, "tags": ["t"], "meta": {"m": 1}}
    jobs = [
        *client.enqueue("record", options),
        *client.aenqueue("record", options),
        *client.in_transaction("record", options),
    ]
    jobs += client.many("record", 20, options)
    jobs += client.enqueue("record", {**options, "delay": 0.2})
    for job in jobs:
        both.until(job)
    assert both.notes(jobs) == [(job, runner, "") for job in sorted(jobs)]


@crossed
def test_what_a_job_says_comes_back(both: Both, maker: str, runner: str) -> None:
    client, options = both.clients[maker], {"queue": runner}
    [small], [large] = (
        client.enqueue("answer", options, text="äé"),
        client.enqueue("answer", options, text="x" * 50_000),
    )
    [again], [steps] = client.enqueue("fails_once", options), client.enqueue("steps", options)
    [whole] = client.enqueue("in_transaction", options)
    assert both.until(small, by=maker)["result"] == 2
    assert both.until(large, by=maker)["result"] == 50_000
    retried = both.until(again, by=maker)
    assert (retried["result"], retried["attempt"], retried["errors"]) == ("the second time", 2, ["the first time"])
    assert both.until(steps, by=maker)["result"] == 1
    assert both.until(whole, by=maker)["result"] == {"done": True}
    assert both.notes([steps, whole]) == [(steps, runner, "effect"), (whole, runner, "in the job's transaction")]


def test_a_shared_queue_under_load(both: Both) -> None:
    """Each job is claimed by one of the two, with and without cursors, and both have their share."""
    jobs = [
        job for _ in range(6) for side in SIDES for job in both.clients[side].many("record", 100, {"queue": "both"})
    ]
    eventually(lambda: len(both.notes(jobs)) >= len(jobs))
    for job in jobs[-20:]:
        both.until(job)
    notes = both.notes(jobs)
    assert [job for job, _, _ in notes] == sorted(jobs), "each once"
    assert {code for _, code, _ in notes} == {"old", "new"}


@crossed
def test_acts_on_jobs_of_the_other_side(both: Both, maker: str, runner: str) -> None:
    client, options = both.clients[maker], {"queue": runner}
    [running], [waiting] = (
        client.enqueue("slow", options, seconds=60),
        client.enqueue("record", {**options, "delay": 3600}),
    )
    eventually(lambda: both.notes([running]))
    assert client.cancel(running) == "running"
    assert client.cancel(waiting) == "scheduled"
    both.until(running, "cancelled", by=runner)
    both.until(waiting, "cancelled", by=runner)
    assert client.delete(waiting) == "cancelled"
    [dead] = client.enqueue("fails_once", {**options, "max_attempts": 1})
    both.until(dead, "dead", by=runner)
    assert client.retry(dead) == "dead"
    assert both.until(dead, by=runner)["result"] == "the second time"


@crossed
def test_a_queue_paused_by_the_other_side(both: Both, maker: str, runner: str) -> None:
    client = both.clients[maker]
    assert client.cli(["queues", "pause", runner])["code"] == 0
    [job] = both.clients[runner].enqueue("record", {"queue": runner})
    [(worker, _)] = both.workers[runner].workers()
    beat = "SELECT beat_at FROM skiplock.workers WHERE id = %s"
    for _ in range(2):  # each beat looks for jobs
        last = run(both.dsn, beat, worker)
        eventually(lambda last=last: run(both.dsn, beat, worker) != last)
    assert client.get(job)["state"] == "ready"
    assert client.cli(["queues", "resume", runner])["code"] == 0
    both.until(job)


def test_the_old_command_line(both: Both) -> None:
    def old(*argv: str) -> Any:
        found = both.clients["old"].cli([*argv, "--json"])
        assert found["code"] == 0, found
        return json.loads(found["out"])

    [job] = both.clients["new"].enqueue("answer", {"queue": "new"}, text="abc")
    both.until(job)
    assert {worker["state"] for worker in old("workers", "list")["workers"]} == {"running"}
    assert old("jobs", "show", str(job))["result"] == 3
    assert job in [found["id"] for found in old("jobs", "list", "--task", "answer")["jobs"]]
    assert old("queues", "list")["queues"] is not None
    enqueued = old("enqueue", "answer", "text=abcd", "--app", "tests.compat.jobs", "--queue", "new")
    assert both.until(enqueued["id"])["result"] == 4
    # Refused where anything is new, which is why a worker's start command must not migrate: see docs/upgrading.md.
    refused = both.clients["old"].cli(["db", "migrate"])
    assert refused["code"] == (5 if old("db", "status")["unknown"] else 0)


def test_a_task_that_one_side_does_not_know_waits_for_the_other(both: Both) -> None:
    """No attempt is spent by those who do not know it."""
    sql = "SELECT skiplock.enqueue('unheard of', queue => %s)"
    jobs = [run(both.dsn, sql, side)[0][0] for side in SIDES]
    [(after,), (last,)] = [both.clients["new"].enqueue("record", {"queue": side}) for side in SIDES]
    both.until(after), both.until(last)
    assert run(both.dsn, "SELECT state, attempt FROM skiplock.jobs WHERE id = ANY (%s)", jobs) == [("ready", 0)] * 2
    run(both.dsn, "SELECT skiplock.cancel(id) FROM unnest(%s::bigint[]) id", jobs)
