"""Settings: refused when they make no sense, with the value in the message; where the DSN comes from."""

from __future__ import annotations

from typing import Any

import pytest

from skiplock import ConfigurationError, Skiplock
from skiplock.core.settings import MAX_PAYLOAD, WorkerSettings, resolve_dsn, resolve_listen_dsn

FINE: dict[str, dict[str, Any]] = {
    "the defaults": {},
    "several queues": {"queues": {"mail": 1, "ünï ☃": 10_000}},
    "no grace at all": {"grace": 0},
    "three beats": {"beat_every": 2.0, "lost_after": 6.0},
    "worn out some time": {"max_jobs": 1, "max_memory": "512MiB", "max_age": 0.5},
    "memory in bytes": {"max_memory": 2**30},
    "children": {"children": 1, "child_max_jobs": 1, "child_max_memory": "1GiB", "child_max_age": 0.5},
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
    "a name with NUL": ({"name": "a\0b"}, "name: 'a"),
    "a name that is no text": ({"name": "a\udcff"}, "name: 'a"),
    "a name of many lines": ({"name": "a\nb"}, "name: 'a"),
    "a name too long": ({"name": "x" * 201}, "201 characters"),
    "no child": ({"children": 0}, "children=0"),
    "half a child": ({"children": 0.5}, "children=0.5"),
    "children of no number": ({"children": None}, "children=None"),
    "a child of no job": ({"child_max_jobs": 0}, "child_max_jobs=0"),
    "a child without memory": ({"child_max_memory": "none"}, "child_max_memory='none'"),
    "a child of no age": ({"child_max_age": 0.0}, "child_max_age=0.0"),
    "a child that is told to be old": ({"child_max_age": "old"}, "child_max_age='old'"),
    "a child of endless age": ({"child_max_age": float("inf")}, "child_max_age=inf"),
    "worn out before the first job": ({"max_jobs": 0}, "max_jobs=0"),
    "half a job": ({"max_jobs": 0.5}, "max_jobs=0.5"),
    "worn out at once": ({"max_age": 0}, "max_age=0"),
    "an age without end": ({"max_age": float("inf")}, "max_age=inf"),
    "memory in words": ({"max_memory": "plenty"}, "max_memory='plenty'"),
    "memory below none": ({"max_memory": -5}, "max_memory=-5"),
    "vouched for without end": ({"vouch_for": float("inf")}, "vouch_for=inf"),
}


@pytest.mark.parametrize(("settings", "said"), REFUSED.values(), ids=REFUSED)
def test_settings_that_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said.replace("(", r"\(")):
        WorkerSettings(**settings)


@pytest.mark.parametrize("key", ["max_args_bytes", "max_result_bytes"])
def test_the_limits_of_arguments_and_results(key: str) -> None:
    for fine in (1, 1_048_576, MAX_PAYLOAD):
        assert getattr(Skiplock(**{key: fine}).settings, key) == fine  # type: ignore[arg-type]
    for wrong in (0, -1, MAX_PAYLOAD + 1, 10**30, 1.5, "1MB", True, None):
        with pytest.raises(ConfigurationError, match=f"{key}=.*: must be a number of bytes from 1 to 67,108,864"):
            Skiplock(**{key: wrong})  # type: ignore[arg-type]


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


def test_where_a_worker_listens() -> None:
    """Explicit, else SKIPLOCK_LISTEN_URL, else where everything else goes."""
    environ = {"SKIPLOCK_LISTEN_URL": "postgresql://direct/shop"}
    assert resolve_listen_dsn("postgresql://mine/shop", "postgresql://pooler/shop", environ) == "postgresql://mine/shop"
    assert resolve_listen_dsn(None, "postgresql://pooler/shop", environ) == "postgresql://direct/shop"
    assert resolve_listen_dsn(None, "postgresql://pooler/shop", {}) == "postgresql://pooler/shop"
    assert (
        resolve_listen_dsn(None, "postgresql://pooler/shop", {"SKIPLOCK_LISTEN_URL": ""}) == "postgresql://pooler/shop"
    )
