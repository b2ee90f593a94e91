"""`skiplock worker` and `skiplock dev` as real processes."""

from __future__ import annotations

import json
import os
import re
import signal

import pytest

from tests.cli.conftest import running
from tests.support import eventually


def _log(folder):
    lines = (folder / "log").read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def _events(folder, name):
    return [line for line in _log(folder) if line["event"] == name]


def test_drain(invoke, spawn):
    boom = invoke("enqueue", "boom", "secret=HUSH", "--app", "shop", "--json").json["id"]
    flaky = invoke("enqueue", "flaky", "--app", "shop", "--json").json["id"]
    send = invoke("enqueue", "send", "to=HUSH", "--app", "shop", "--json").json["id"]
    answer = spawn(
        "worker",
        "shop:app",
        "--drain",
        "--log-format",
        "json",
        "--log-level",
        "debug",
        "--queue",
        "mail=2",
        "--queue",
        "default",
    )
    assert answer.code == 0 and answer.out == "" and "HUSH" not in answer.err
    lines = [json.loads(line) for line in answer.err.splitlines()]
    events = [line["event"] for line in lines]
    assert events[:2] == ["queue_not_served", "child_started"] and lines[0]["queue"] == "slow"
    assert next(line for line in lines if line["event"] == "worker_started")["queues"] == {"mail": 2, "default": 50}
    assert events.count("job_dead") == 1 and "worker_stopped" in events
    dead = next(line for line in lines if line["event"] == "job_dead")
    assert dead["job"] == boom and "RuntimeError: no luck" in dead["traceback"]
    states = {job_id: invoke("jobs", "show", job_id, "--json").json for job_id in (boom, flaky, send)}
    assert [states[i]["state"] for i in (boom, flaky, send)] == ["dead", "retryable", "completed"]
    shown = invoke("jobs", "show", flaky).out
    assert "ValueError: not yet" in shown and "attempt 1 ended: retry" in shown and "due" in shown


def test_supervised_from_start_to_stop(folder, dsn, invoke):
    with running(dsn, folder, "worker", "shop", "--processes", "2", "--log-format", "json", "--name", "web") as process:
        eventually(lambda: len(_events(folder, "worker_started")) == 2)
        workers = invoke("workers", "list", "--json").json["workers"]
        assert {worker["name"] for worker in workers} == {"web"}
        assert set(workers[0]["queues"]) == {"default", "mail", "slow"}
        slow = invoke("enqueue", "slow", "seconds=30", "--app", "shop", "--json").json["id"]
        eventually(lambda: invoke("jobs", "show", slow, "--json").json["state"] == "running")
        cancelled = invoke("jobs", "cancel", slow)
        assert cancelled.code == 0 and "asked to stop" in cancelled.out
        eventually(lambda: invoke("jobs", "show", slow, "--json").json["state"] == "cancelled")
        victim = _events(folder, "child_started")[0]["pid"]
        os.kill(victim, signal.SIGKILL)
        eventually(lambda: _events(folder, "child_restarted"))
        assert _events(folder, "child_died")[0]["pid"] == victim
        eventually(lambda: len(_events(folder, "worker_started")) == 3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert _events(folder, "worker_stopping")[0]["reason"] == "SIGTERM"


@pytest.mark.parametrize("supervised", [True, False])
def test_a_missing_schema_ends_it_at_once(folder, spawn, supervised):
    answer = spawn("worker", "shop:app", "--schema", "elsewhere", *([] if supervised else ["--no-supervisor"]))
    assert answer.code == 5 and "error: " in answer.err and "Traceback" not in answer.err


def test_dev(place, folder, dsn):
    """A server of its own, a job from a second terminal, a reload, a syntax error, the end."""
    log = folder / "log"
    data = place / "data"
    with running(dsn, folder, "dev", "shop:app", "--data", str(data), "--log-format", "json") as process:
        eventually(lambda: _events(folder, "worker_started"), seconds=40)
        found = re.search(r"export SKIPLOCK_DATABASE_URL='(.*)'", log.read_text())
        assert found and str(data) in found[1] and found[1] != dsn
        (folder / "shop.py").write_text((folder / "shop.py").read_text() + "\nnonsense here\n")
        eventually(lambda: "waiting for a change" in log.read_text())
        assert "SyntaxError" in log.read_text()
        (folder / "shop.py").write_text((folder / "shop.py").read_text().replace("nonsense here", ""))
        eventually(lambda: len(_events(folder, "worker_started")) == 2)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
    assert len(_events(folder, "worker_stopped")) == 2 and not (data / "postmaster.pid").exists()


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--max-jobs", "0", "--max-jobs"),
        ("--max-memory", "plenty", "'plenty' is not an amount of memory, as in 512MiB"),
        ("--max-memory", "1000", "max_memory=1000 bytes: the app takes"),
        ("--max-age", "-1", "--max-age"),
        ("--vouch-for", "0", "--vouch-for"),
    ],
)
def test_limits_that_make_no_sense(spawn, option, value, said):
    """Refused at the start, before there is any child."""
    answer = spawn("worker", "shop:app", option, value)
    assert answer.code in (2, 3) and said in answer.err and "Traceback" not in answer.err and answer.out == ""
    assert "child started" not in answer.err
