"""Pausing and resuming, as queues and tasks have it in common."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar, cast

from skiplock.cli.database import connected
from skiplock.cli.look import clock, emit, say
from skiplock.cli.options import Moment, Place, option
from skiplock.core.codec import check_name
from skiplock.store.call import Call

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def pause_options(function: F) -> F:
    """--for and --until, handed over as `length` and `until`: no parameter can be called `for`, and its variable must be."""

    @option("--for", "for", metavar="TIME", help="For that long, as in 30m or 1h30m.")
    @option("--until", type=Moment(), metavar="TIME", help="Until then, as in 2027-03-01T09:00+01:00.")
    @functools.wraps(function)
    def handed_over(*args: Any, **given: Any) -> Any:
        return function(*args, length=given.pop("for"), **given)

    return cast("F", handed_over)


def act_on(place: Place, names: Sequence[str], kind: str, call: Callable[[str], Call[T]]) -> list[tuple[str, T]]:
    """One call for each name, all names checked before the first; the answers by name."""
    wanted = [check_name(name, kind) for name in dict.fromkeys(names)]
    calls = [(name, call(name)) for name in wanted]
    with connected(place.require()) as run:
        return [(name, run(each)) for name, each in calls]


def tell_pauses(what: str, found: Sequence[tuple[str, datetime | None]], *, paused: bool, json: bool) -> None:
    """`what`: queues or tasks; with each until when it is paused."""
    if json:
        emit({what: [{"name": name, "paused": paused} | ({"resume_at": at} if paused else {}) for name, at in found]})
        return
    for name, at in found:
        until = "" if at is None else f" until {clock(at)}"
        say(f"{what[:-1]} {name}: {'paused' if paused else 'resumed'}{until}", "yellow" if paused else "green")
