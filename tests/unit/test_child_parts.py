"""The pure parts around child processes: amounts of memory, wear, words for exits, frames, rooms of queues."""

from __future__ import annotations

import signal
from typing import Any

import msgspec
import pytest

from skiplock import OptionError, Skiplock
from skiplock.core.exits import how_it_ended
from skiplock.core.job import Job
from skiplock.core.outcome import Outcome
from skiplock.core.size import size_as_text, size_in_bytes
from skiplock.core.wear import Wear
from skiplock.work.children import rooms
from skiplock.work.talk import Began, Ended, Frames, Leave, ToChild, ToWorker, Work, frame
from tests.support import process_jobs

SIZES: dict[Any, int] = {
    1: 1,
    536_870_912: 536_870_912,
    "4096": 4096,
    "10 B": 10,
    "1k": 1024,
    "1KiB": 1024,
    "1kB": 1000,
    "512MiB": 512 * 1024**2,
    " 1.5 GB ": 1_500_000_000,
    "2g": 2 * 1024**3,
    "1TiB": 1024**4,
}


@pytest.mark.parametrize(("given", "size"), SIZES.items(), ids=repr)
def test_amounts_of_memory(given: Any, size: int) -> None:
    assert size_in_bytes(given, "memory") == size


NO_SIZES = (
    0,
    -1,
    True,
    1.5,
    None,
    "",
    "MiB",
    "512 MiBs",
    "-1MiB",
    "1e3",
    "1,5GB",
    "٣MiB",
    "0.1",
    b"1",
    "9" * 60,
    2**63,
)


@pytest.mark.parametrize("given", NO_SIZES, ids=repr)
def test_what_is_no_amount_of_memory(given: Any) -> None:
    with pytest.raises(OptionError, match=r"memory=.*512MiB"):
        size_in_bytes(given, "memory")


def test_amounts_for_people() -> None:
    assert [size_as_text(n) for n in (1023, 1024, 1536, 512 * 1024**2, 5 * 1024**4)] == [
        "1023 bytes",
        "1 KiB",
        "1.5 KiB",
        "512 MiB",
        "5 TiB",
    ]


def test_wear() -> None:
    wear = Wear(jobs=10, memory=2**20, age=60.0)
    assert wear.reached(9, 2**20, 59.9) is None
    assert wear.reached(10, 0, 0.0) == "has run 10 jobs"
    assert wear.reached(0, 2**21, 0.0) == "holds 2 MiB, more than 1 MiB"
    assert wear.reached(0, 0, 60.0) == "has lived for 60 s"
    assert Wear().reached(10**9, 2**50, 1e9) is None


def test_words_for_exits() -> None:
    assert how_it_ended(0) == "exited with code 0"
    assert how_it_ended(-signal.SIGSEGV) == "was killed by SIGSEGV"
    assert how_it_ended(-63) == "was killed by signal 63"


def test_frames_whatever_the_pieces() -> None:
    job = Job(2**62, 3, "q", 0, 1, "t", '{"a":"☃\\u0000"}', 1, 2, 0, "2026-01-01 00:00:00+00", None, "{}")
    sent: list[Any] = [Work(job, 2**40), Leave(), Work(job)]
    whole = b"".join(map(frame, sent))
    for step in (1, 3, 7, len(whole)):
        frames: Frames[ToChild] = Frames(ToChild)
        heard = [m for at in range(0, len(whole), step) for m in frames.feed(whole[at : at + step])]
        assert heard == sent
    answers: Frames[ToWorker] = Frames(ToWorker)
    ended = Ended(Outcome(1, 2, "completed", 0.5, "3"), 4, True)
    assert list(answers.feed(frame(Began(1)) + frame(ended))) == [Began(1), ended]


@pytest.mark.parametrize(
    "nonsense", [b"\0\0\0\5hello", b"\0\0\0\0", frame(Leave())], ids=["text", "nothing", "not theirs"]
)
def test_what_is_no_frame(nonsense: bytes) -> None:
    answers: Frames[ToWorker] = Frames(ToWorker)
    with pytest.raises(msgspec.MsgspecError):
        list(answers.feed(nonsense))


def test_a_queue_of_tasks_for_children_has_no_more_slots_than_there_are_children() -> None:
    here = Skiplock("postgresql://nobody@127.0.0.1:1/none")
    here.task(name="cpu", queue="cpu", executor="process")(process_jobs.nothing.spec.function)
    here.task(name="mixed cpu", queue="mixed", executor="process")(process_jobs.nothing.spec.function)
    here.task(name="mixed", queue="mixed")(process_jobs.nothing.spec.function)
    specs = [task.spec for task in here.tasks.values()]
    queues = {"cpu": 50, "mixed": 50, "of nobody": 50}
    assert rooms(queues, specs, 4) == queues | {"cpu": 4}
    assert rooms(queues, specs, 80) == queues
