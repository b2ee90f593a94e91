"""The map that a worker process shares with its supervisor: what one writes the other reads, through one descriptor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from skiplock.work.startmap import StartMap
from tests.support.waiting import eventually


@pytest.fixture
def shared() -> Iterator[tuple[StartMap, StartMap]]:
    """The supervisor's view and the process's."""
    mine = StartMap.create(4)
    theirs = StartMap(os.dup(mine.fd), 4)
    yield mine, theirs
    theirs.close()
    mine.close()


def test_a_new_one_says_nothing(shared: tuple[StartMap, StartMap]) -> None:
    for side in shared:
        assert (side.worker, side.turned_at, side.heard_at, side.vouched_at) == (0, 0, 0, 0)
        assert not side.wishes_to_leave and not side.may_leave
        assert side.started() == [] and side.stacks() == ""


def test_jobs_begin_and_end(shared: tuple[StartMap, StartMap]) -> None:
    supervisor, process = shared
    slots = [process.begin(job) for job in (7, 8, 9, 2**62)]
    assert supervisor.started() == [7, 8, 9, 2**62]
    assert process.begin(10) == -1, "it is full"
    process.end(-1)
    process.end(slots[1])
    assert supervisor.started() == [7, 9, 2**62]
    process.begin(10)
    assert supervisor.started() == [7, 9, 10, 2**62]


def test_each_side_tells_the_other(shared: tuple[StartMap, StartMap]) -> None:
    supervisor, process = shared
    before = time.monotonic()
    process.set_worker(5)
    process.stamp_turn()
    process.stamp_beat()
    process.wish_to_leave()
    assert supervisor.worker == 5 and supervisor.wishes_to_leave
    assert before - 0.001 <= supervisor.turned_at <= supervisor.heard_at <= time.monotonic()
    supervisor.set_vouched(before)
    supervisor.let_leave()
    assert process.may_leave and process.vouched_at == pytest.approx(before, abs=0.001)
    process.set_worker(0)
    process.no_more_beats()
    assert (supervisor.worker, supervisor.heard_at) == (0, 0)
    assert supervisor.started() == [], "none of that looks like a job"


def test_it_has_no_name_that_could_be_left_behind(shared: tuple[StartMap, StartMap]) -> None:
    target = os.readlink(f"/proc/self/fd/{shared[0].fd}") if Path("/proc/self/fd").exists() else "(deleted)"
    assert target.endswith("(deleted)")


_PROCESS = """
import ctypes, os, signal, sys
from skiplock.work.startmap import StartMap
shared = StartMap(int(sys.argv[1]), 4)
shared.write_stacks_here()
def in_the_handler():
    shared.set_worker(1)
    if sys.argv[2] == "crash":
        ctypes.string_at(0)
    while True:
        ctypes.PyDLL(None).sleep(60)
in_the_handler()
"""


@pytest.mark.parametrize("way", ["crash", "asked"])
def test_where_a_process_crashed_or_was_when_asked(way: str) -> None:
    """Also while it holds the interpreter: no line of Python runs then."""
    mine = StartMap.create(4)
    command = [sys.executable, "-c", _PROCESS, str(mine.fd), way]
    with subprocess.Popen(command, pass_fds=[mine.fd]) as process:
        eventually(lambda: mine.worker, seconds=30)
        if way == "asked":
            eventually(lambda: process.send_signal(signal.SIGQUIT) or mine.stacks(), seconds=30, pause=0.1)
            assert process.poll() is None, "it lives on"
            process.kill()
        process.wait(30)
    assert "in in_the_handler" in mine.stacks()
    assert mine.started() == []
    mine.close()
