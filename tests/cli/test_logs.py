"""Logs: every event has a level, the text is complete, arguments stay out."""

from __future__ import annotations

import io
import json
import logging
import re
from datetime import datetime
from pathlib import Path

import pytest

from skiplock.cli import logs
from skiplock.core import events as events_module
from skiplock.core.events import Events
from skiplock.core.failure import describe
from skiplock.core.job import Job


@pytest.fixture
def write(monkeypatch):
    """Emit events and get the lines that were written."""
    logger, root = logging.getLogger("skiplock"), logging.getLogger()
    before = (logger.handlers, logger.level, logger.propagate, root.handlers)
    root.handlers = []

    def run(form, level, *emitted):
        out, events = io.StringIO(), Events()
        root.handlers = []
        logs.install(form, level, out)
        logs.subscribe(events)
        for name, fields in emitted:
            events.emit(name, **fields)
        return out.getvalue().splitlines()

    yield run
    logger.handlers, logger.level, logger.propagate, root.handlers = before


def _job(**changes):
    fields = {
        "id": 42,
        "lease": 1,
        "queue": "mail",
        "priority": 0,
        "position": 1,
        "task": "send",
        "args": '{"to":"SECRET"}',
        "attempt": 1,
        "max_attempts": 5,
        "losses": 0,
        "enqueued": "2026-12-01 03:00:00+00",
        "meta": None,
        "options": None,
    }
    return Job(**{**fields, **changes})


def _ended(verdict, failure=None, delay=None):
    job = _job()
    return "attempt_ended" if verdict == "completed" else "attempt_failed", {
        "job": job,
        "task": job.task,
        "queue": job.queue,
        "attempt": 1,
        "verdict": verdict,
        "took": 0.25,
        "failure": failure,
        "delay": delay,
    }


def _failure():
    try:
        raise ValueError("no such\nmailbox \x1b[31m")
    except ValueError as error:
        return describe(error)


def test_every_event_has_a_level():
    documented = set(re.findall(r"\b([a-z]+_[a-z]+|promoted)\b(?=[ ,|])", _event_names()))
    assert documented <= set(logs.LEVELS)
    emitted = set()
    for file in Path(events_module.__file__).parent.parent.rglob("*.py"):
        emitted |= set(re.findall(r'events\.emit\(\s*"(\w+)"', file.read_text()))
    assert emitted <= set(logs.LEVELS)


def _event_names():
    table = events_module.__doc__ or ""
    return "\n".join(
        line.split("|")[1] + "|" for line in table.splitlines() if re.match(r"\| [a-z]", line) and "event " not in line
    )


def test_text(write):
    (line,) = write("text", "info", ("worker_started", {"worker": 1, "name": "web 1", "queues": {"mail": 5, "x": 1}}))
    assert re.fullmatch(
        r'\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}  INFO     worker started  worker=1 name="web 1" queues=mail:5,x:1', line
    )


def test_a_retry_is_one_line_and_a_dead_job_has_its_traceback(write):
    retry = _ended("retry", _failure(), 1.5)
    (line,) = write("text", "info", retry)
    assert "WARNING" in line and 'error="ValueError: no such"' in line and "delay=1.5" in line and "job=42" in line
    assert any("raise ValueError" in text for text in write("text", "debug", retry))
    dead = ("job_dead", {"job": _job(), "task": "send", "queue": "mail", "attempt": 5, "failure": _failure()})
    lines = write("text", "info", dead, _ended("dead", _failure()))
    assert "ERROR" in lines[0] and "job dead" in lines[0] and any("raise ValueError" in text for text in lines)
    assert len([text for text in lines if "ERROR" in text or "WARNING" in text]) == 1
    assert not any("\x1b" in text for text in lines)


def test_json(write):
    started = ("worker_started", {"worker": 3, "name": "w", "queues": {"mail": 5}})
    dead = ("job_dead", {"job": _job(), "task": "send", "queue": "mail", "attempt": 5, "failure": _failure()})
    first, second = (json.loads(line) for line in write("json", "info", started, dead))
    assert first["event"] == "worker_started" and first["queues"] == {"mail": 5} and first["level"] == "INFO"
    assert datetime.fromisoformat(first["time"]).tzinfo is not None and first["pid"]
    assert (second["worker"], second["job"], second["task"], second["attempt"]) == (3, 42, "send", 5)
    assert second["error"] == "ValueError: no such" and "raise ValueError" in second["traceback"]


def test_levels(write):
    quiet = [_ended("completed"), _ended("snooze", delay=1.0), ("promoted", {"jobs": 1})]
    assert write("text", "info", *quiet) == [] and len(write("text", "debug", *quiet)) == 3
    assert len(write("text", "info", _ended("release"), _ended("cancelled"))) == 2
    failed = ("claim_failed", {"error": OSError("gone\naway"), "retry_in": 0.5})
    (line,) = write("text", "info", failed)
    assert 'WARNING  claim failed  error="OSError: gone" retry_in=0.5' in line
    (line,) = write("text", "warning", failed, ("worker_stopping", {"worker": 1, "reason": "SIGTERM"}))
    died = ("child_died", {"pid": 7, "code": -9, "reason": "killed", "restart_in": 0.1})
    assert json.loads(write("json", "info", died)[0])["pid"] == 7


def test_arguments_are_never_logged(write):
    job = _job()
    everything = [
        _ended("completed"),
        _ended("retry", _failure(), 1.0),
        ("attempt_started", {"job": job, "task": "send", "queue": "mail", "attempt": 1}),
        ("handler_stuck", {"job": job, "task": "send", "why": "timeout", "stack": "File x"}),
        ("settle_refused", {"jobs": list(range(100))}),
    ]
    for form in ("text", "json"):
        lines = write(form, "debug", *everything)
        assert len(lines) >= 5 and "SECRET" not in "\n".join(lines)
    assert any("…(100)" in line for line in write("text", "info", *everything))


def test_records_of_the_application(write):
    assert write("json", "info") == []
    out = io.StringIO()
    logging.getLogger().handlers = []
    logs.install("json", "info", out)
    logging.getLogger("myapp").warning("hello %s", "you")
    line = json.loads(out.getvalue())
    assert line["event"] == "log" and line["logger"] == "myapp" and line["message"] == "hello you"
