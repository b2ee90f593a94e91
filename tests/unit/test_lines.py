"""A worker's lines: room to claim, free slots, and what is given back when handlers turn out to be slow."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime

import pytest

from skiplock.core.job import Job
from skiplock.work.lines import SLOW, Line, Lines

numbers = itertools.count(1)
FAST = 0.00001


def job(queue: str = "q") -> Job:
    return Job(next(numbers), 1, queue, 0, 1, "t", "{}", 1, 10, 0, datetime.now(UTC), None, None)


def lines(
    concurrency: int = 10,
    *,
    running: int = 0,
    buffered: int = 0,
    mean: float | None = None,
    max_ahead: int = 100,
    max_claim: int = 1000,
) -> Lines:
    found = Lines({"q": concurrency}, max_ahead, max_claim)
    line = found.by_name["q"]
    line.running, line.mean = running, mean
    line.buffer.extend(job() for _ in range(buffered))
    return found


ROOMS = {
    "empty, unknown": (lines(10), 10),
    "some run": (lines(10, running=4), 6),
    "all run": (lines(10, running=10), 0),
    "all run, slow": (lines(10, running=10, mean=60.0), 0),
    "all run, fast": (lines(10, running=10, mean=FAST), 100),
    "empty, fast": (lines(10, mean=FAST), 110),
    "more than half of the ahead is left": (lines(10, running=10, buffered=60, mean=FAST), 0),
    "half of it is used up": (lines(10, running=10, buffered=50, mean=FAST), 50),
    "buffered jobs take free slots": (lines(10, running=2, buffered=5), 0),
    "no more than one claim may take": (lines(10, mean=FAST, max_claim=7), 7),
    "handlers left behind fill the slots": (lines(2, running=5), 0),
}


@pytest.mark.parametrize(("line", "room"), ROOMS.values(), ids=ROOMS)
def test_rooms(line: Lines, room: int) -> None:
    assert line.rooms() == ({"q": room} if room else {})


def test_a_line_that_needs_jobs_lets_the_others_ask_along() -> None:
    found = Lines({"needy": 10, "fine": 10, "full": 10}, 100, 1000)
    found.by_name["full"].running = 10
    found.by_name["fine"].mean = FAST
    found.by_name["fine"].running = 10
    found.by_name["fine"].buffer.extend(job("fine") for _ in range(80))
    assert found.rooms() == {"needy": 10, "fine": 20}
    found.by_name["needy"].running = 10
    assert found.rooms() == {}


def test_free_slots() -> None:
    found = Lines({"a": 3, "b": 2, "c": 1}, 0, 1)
    found.by_name["a"].running = 1
    found.by_name["b"].buffer.append(job("b"))
    found.by_name["c"].running = 2
    assert found.free() == {"a": 2, "b": 1}
    assert (found.running, found.buffered) == (3, 1)


def test_taking_the_buffered() -> None:
    found = lines(buffered=3)
    held = list(found.by_name["q"].buffer)
    assert found.take_buffered() == held
    assert (found.take_buffered(), found.buffered) == ([], 0)


def test_only_a_line_that_started_nothing_since_the_last_look_is_stalled() -> None:
    found = lines(buffered=3, mean=FAST)
    line = found.by_name["q"]
    line.starts = 7
    assert found.take_stalled() == []
    line.starts = 8
    assert found.take_stalled() == []
    held = list(line.buffer)
    assert found.take_stalled() == held
    assert line.mean == SLOW, "so that it does not claim ahead again at once"
    assert found.take_stalled() == []


def test_a_line_without_buffer_is_not_stalled() -> None:
    found = lines(mean=FAST)
    found.take_stalled()
    assert found.take_stalled() == []
    assert found.by_name["q"].mean == FAST


def test_the_mean_follows_what_is_measured() -> None:
    line = Line("q", 1)
    line.measured(2.0)
    assert line.mean == 2.0
    for _ in range(200):
        line.measured(0.001)
    assert line.mean is not None and line.mean < 0.002
