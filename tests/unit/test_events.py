"""Events reach who subscribed to them, and nobody who listens can do harm."""

from __future__ import annotations

import re

import pytest

import skiplock.core.events as module
from skiplock.core.events import Event, Events


@pytest.fixture
def events() -> Events:
    return Events()


def test_subscribers_are_told_in_their_order_and_only_what_they_asked_for(events: Events) -> None:
    told: list[tuple[str, Event]] = []
    events.subscribe(lambda e: told.append(("first", e)), "a", "b")
    events.subscribe(lambda e: told.append(("second", e)), "a")
    events.emit("a", job=1)
    events.emit("b")
    events.emit("c")
    one = Event("a", {"job": 1})
    assert told == [("first", one), ("second", one), ("first", Event("b"))]


def test_wants(events: Events) -> None:
    assert not events.wants("a")
    events.subscribe(print, "a")
    assert (events.wants("a"), events.wants("b")) == (True, False)


def test_a_field_may_be_called_name(events: Events) -> None:
    told: list[Event] = []
    events.subscribe(told.append, "worker_started")
    events.emit("worker_started", name="Ann's", self=1)
    assert told == [Event("worker_started", {"name": "Ann's", "self": 1})]


def fail(event: Event) -> None:
    raise ZeroDivisionError(event.name)


def test_one_that_fails_is_reported_and_the_others_are_told(events: Events) -> None:
    told: list[Event] = []
    events.subscribe(fail, "a")
    events.subscribe(told.append, "a", "hook_failed")
    events.emit("a")
    assert [event.name for event in told] == ["hook_failed", "a"]
    assert told[0].fields["hook"] == "fail"
    assert isinstance(told[0].fields["error"], ZeroDivisionError)


def test_when_nobody_listens_to_failures_nothing_happens(events: Events) -> None:
    events.subscribe(fail, "a")
    events.emit("a")


def test_a_subscriber_to_failures_that_fails_itself_is_printed(
    events: Events, capsys: pytest.CaptureFixture[str]
) -> None:
    events.subscribe(fail, "a", "hook_failed")
    events.emit("a")
    assert "ZeroDivisionError('hook_failed')" in capsys.readouterr().err


def test_a_subscriber_may_subscribe_another(events: Events) -> None:
    told: list[str] = []
    events.subscribe(lambda e: events.subscribe(lambda _: told.append("late"), "b"), "a")
    events.emit("a")
    events.emit("b")
    assert told == ["late"]


def test_every_event_that_is_emitted_is_in_the_table() -> None:
    from pathlib import Path

    package = Path(module.__file__).parent.parent
    emitted = {
        name
        for path in package.rglob("*.py")
        for name in re.findall(r"""(?:emit|_tell)\(\s*(?:\w+, )?["'](\w+)["']""", path.read_text("utf-8"))
    }
    documented = set(
        re.findall(r"\b[a-z]+(?:_[a-z]+)+\b|\b(?:promoted|claimed|settled|reconciled)\b", str(module.__doc__))
    )
    assert len(emitted) > 10
    assert emitted <= documented
