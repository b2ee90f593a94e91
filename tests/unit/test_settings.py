"""Settings: refused when they make no sense, with the value in the message; where the DSN comes from."""

from __future__ import annotations

from typing import Any

import pytest

from skiplock import ConfigurationError, Skiplock
from skiplock.core.settings import WorkerSettings, resolve_dsn

FINE: dict[str, dict[str, Any]] = {
    "the defaults": {},
    "several queues": {"queues": {"mail": 1, "ünï ☃": 10_000}},
    "no grace at all": {"grace": 0},
    "three beats": {"beat_every": 2.0, "lost_after": 6.0},
    "in quick order": {"beat_every": 0.01, "lost_after": 0.05, "poll_every": 0.001},
}


@pytest.mark.parametrize("settings", FINE.values(), ids=FINE)
def test_settings_that_are_fine(settings: dict[str, Any]) -> None:
    WorkerSettings(**settings)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no queue": ({"queues": {}}, "at least one"),
    "no slot": ({"queues": {"q": 0}}, "'q': concurrency 0"),
    "slots below none": ({"queues": {"q": -1}}, "concurrency -1"),
    "too many slots": ({"queues": {"q": 10_001}}, "concurrency 10001"),
    "half a slot": ({"queues": {"q": 1.5}}, "concurrency 1.5"),
    "yes": ({"queues": {"q": True}}, "concurrency True"),
    "grace below none": ({"grace": -1}, "grace=-1"),
    "grace without end": ({"grace": float("inf")}, "grace=inf"),
    "no beat": ({"beat_every": 0}, "beat_every=0"),
    "a beat of NaN": ({"beat_every": float("nan")}, "beat_every=nan"),
    "never lost": ({"lost_after": float("inf")}, "lost_after=inf"),
    "lost between two beats": (
        {"beat_every": 3.0, "lost_after": 8.0},
        "lost_after=8.0 must be at least 3 times beat_every=3.0",
    ),
    "no polling": ({"poll_every": 0}, "poll_every=0"),
}


@pytest.mark.parametrize(("settings", "said"), REFUSED.values(), ids=REFUSED)
def test_settings_that_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said.replace("(", r"\(")):
        WorkerSettings(**settings)


UNCHECKED: dict[str, dict[str, Any]] = {
    "a claim of none: the worker would idle for ever": {"max_claim": 0},
    "ahead below none": {"max_ahead": -1},
    "an empty queue name": {"queues": {"": 1}},
    "a queue name that no job can have": {"queues": {"q" * 201: 1}},
}


@pytest.mark.parametrize("settings", UNCHECKED.values(), ids=UNCHECKED)
def test_settings_that_should_be_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        WorkerSettings(**settings)


def test_three_beats_of_a_tenth_of_a_second() -> None:
    WorkerSettings(beat_every=0.1, lost_after=0.3)


A, B, C = "postgresql://a/a", "postgresql://b/b", "postgresql://c/c"
SOURCES = {
    "explicit": (A, {"SKIPLOCK_DATABASE_URL": B, "DATABASE_URL": C}, A),
    "our own variable": (None, {"SKIPLOCK_DATABASE_URL": B, "DATABASE_URL": C}, B),
    "everybody's variable": (None, {"DATABASE_URL": C}, C),
    "an empty variable is none": (None, {"SKIPLOCK_DATABASE_URL": "", "DATABASE_URL": C}, C),
    "an empty text is none": ("", {"DATABASE_URL": C}, C),
}


@pytest.mark.parametrize(("explicit", "environ", "dsn"), SOURCES.values(), ids=SOURCES)
def test_where_the_dsn_comes_from(explicit: str | None, environ: dict[str, str], dsn: str) -> None:
    assert resolve_dsn(explicit, environ) == dsn


def test_no_dsn_at_all() -> None:
    with pytest.raises(ConfigurationError, match=r"Skiplock\(.*SKIPLOCK_DATABASE_URL or DATABASE_URL"):
        resolve_dsn(None, {})


def test_an_app_asks_for_its_dsn_at_first_use_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SKIPLOCK_DATABASE_URL", raising=False)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    app = Skiplock()
    with pytest.raises(ConfigurationError):
        app.get(1)
    monkeypatch.setenv("DATABASE_URL", A)
    assert app.dsn == A


def test_the_schema_comes_from_the_environment_unless_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKIPLOCK_SCHEMA", "jobs")
    assert (Skiplock().schema, Skiplock(schema="mine").schema) == ("jobs", "mine")
    monkeypatch.setenv("SKIPLOCK_SCHEMA", "")
    assert Skiplock().schema == "skiplock"
    monkeypatch.setenv("SKIPLOCK_SCHEMA", "a.b")
    with pytest.raises(ConfigurationError, match="a\\.b"):
        Skiplock()
