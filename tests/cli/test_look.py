"""Small things people see."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

import pytest

from skiplock.cli import look


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *[(0, "<1 ms"), (0.25, "250 ms"), (3.9, "3 s"), (59, "59 s"), (60, "1 min"), (3599, "59 min"), (3600, "1 h")],
        *[(47 * 3600, "47 h"), (48 * 3600, "2 d"), (729 * 86400, "729 d"), (800 * 86400, "2 y"), (-5, "5 s")],
    ],
)
def test_span(seconds, text):
    assert look.span(seconds) == text


def test_age():
    now = datetime.now(UTC)
    assert look.age(None) == "" and look.age(now) == "now"
    assert look.age(now - timedelta(minutes=5, seconds=1)) == "5 min"
    assert look.age(now + timedelta(minutes=5, seconds=1)) == "in 5 min"


def test_text_from_outside_cannot_move_the_cursor():
    assert look.plain("a\x1b[31mb\r\x07\u202ec\td\n") == "a\\x1b[31mb\\r\\x07\\u202ec\td\n"
    assert look.plain("änn 日本 🐇") == "änn 日本 🐇"
    assert look.cell("[red]x[/red]\ny").plain == "[red]x[/red] y"


def test_no_colours_in_a_pipe_or_with_no_color(invoke, monkeypatch):
    invoke("enqueue", "t")
    assert "\x1b" not in invoke("jobs", "list").out
    assert "\x1b[" in invoke("jobs", "list", FORCE_COLOR="1").out
    assert "\x1b[3" not in invoke("jobs", "list", FORCE_COLOR="1", NO_COLOR="1").out
    assert sys.stdout
