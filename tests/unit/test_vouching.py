"""For which children the supervisor beats, when it says so, and when it gives one up (case 2; LIFE-32, LIFE-48)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from skiplock.core.events import Event, Events
from skiplock.core.settings import WorkerSettings
from skiplock.messenger import Vouched
from skiplock.vouching import Vouching
from skiplock.work.startmap import StartMap


class Clock:
    """In place of the module `time`."""

    now = 1000.0

    def monotonic(self) -> float:
        return self.now


class Child:
    """A member of the fleet that is registered as worker 5 and beats when told to."""

    def __init__(self) -> None:
        self.startmap = StartMap.create(4)
        self.startmap.set_worker(5)
        self.startmap.stamp_turn()
        self.startmap.stamp_beat()
        self.pid, self.code, self.suspended = 77, None, False
        self.killed: list[str] = []

    def silence(self, now: float) -> float:
        return now - self.startmap.heard_at if self.startmap.worker else 0.0

    def is_suspended(self) -> bool:
        return self.suspended

    def kill(self, because: str) -> None:
        self.killed.append(because)


class Scene:
    """A child, its supervisor's vouching, and a database that answers at once, knows the worker, or is away."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.child = clock, Child()
        self.away, self.known = False, True
        self.asked = 0
        self.told: list[Event] = []
        self._answers: list[Vouched] = []
        events = Events()
        events.subscribe(self.told.append, "worker_vouched", "worker_heard")
        settings = WorkerSettings(beat_every=3.0, lost_after=9.0, vouch_for=60.0)
        messenger: Any = self
        self._vouching = Vouching(messenger, events, settings)

    def vouch(self, workers: list[int]) -> None:
        self.asked += 1
        known = None if self.away else frozenset(workers if self.known else [])
        self._answers.append(Vouched(tuple(workers), known, self.clock.now))

    def answers(self) -> list[Vouched]:
        found, self._answers = self._answers, []
        return found

    def pass_time(self, seconds: float, *, turning: bool = False, beating: bool = False) -> None:
        child: Any = self.child
        for _ in range(int(seconds)):
            self.clock.now += 1.0
            if turning:
                child.startmap.stamp_turn()
            if beating:
                child.startmap.stamp_beat()
            self._vouching.look([child])

    def heard(self) -> list[str]:
        return [event.name for event in self.told]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    clock = Clock()
    monkeypatch.setattr("skiplock.vouching.time", clock)
    monkeypatch.setattr("skiplock.work.startmap.time", clock)
    found = Scene(clock)
    yield found
    found.child.startmap.close()


def test_one_that_beats_is_left_alone(scene: Scene) -> None:
    scene.pass_time(100, turning=True, beating=True)
    assert (scene.asked, scene.told, scene.child.killed) == (0, [], [])


def test_one_that_stands_still_is_vouched_for_in_time_and_told_of_once(scene: Scene) -> None:
    scene.child.startmap.begin(42)
    scene.pass_time(4)
    assert scene.asked == 0
    scene.pass_time(26)
    assert scene.asked == 9  # every three seconds from half of nine on
    assert scene.clock.now - scene.child.startmap.vouched_at <= 4
    assert scene.heard() == ["worker_vouched"]
    assert scene.told[0].fields["jobs"] == [42] and scene.told[0].fields["worker"] == 5
    scene.pass_time(1, turning=True, beating=True)
    assert scene.heard() == ["worker_vouched", "worker_heard"]
    assert 30 <= scene.told[1].fields["silent_for"] <= 32
    scene.pass_time(10)
    assert scene.heard().count("worker_vouched") == 2, "another time"
    assert scene.child.killed == []


def test_one_that_stands_still_for_too_long_is_killed(scene: Scene) -> None:
    scene.pass_time(60)
    assert scene.child.killed == []
    scene.pass_time(10)
    assert "had not come round" in scene.child.killed[0]


def test_one_whose_beats_fail_is_vouched_for_without_a_word_and_never_killed(scene: Scene) -> None:
    """Its heart comes round: it has trouble with the database only, and says so itself."""
    scene.pass_time(1000, turning=True)
    assert scene.asked > 300
    assert (scene.told, scene.child.killed) == ([], [])


def test_while_the_database_is_away_no_time_counts(scene: Scene) -> None:
    scene.pass_time(50)
    scene.away = True
    scene.pass_time(500)
    assert scene.child.killed == []
    scene.away = False
    scene.pass_time(50)
    assert scene.child.killed == []
    assert scene.heard() == ["worker_vouched"]
    scene.pass_time(20)
    assert scene.child.killed != []


def test_one_that_was_declared_lost_is_given_up_until_it_is_registered_anew(scene: Scene) -> None:
    scene.known = False
    scene.pass_time(100)
    assert (scene.asked, scene.told, scene.child.killed) == (1, [], [])
    scene.known = True
    scene.child.startmap.set_worker(6)
    scene.pass_time(2)
    assert scene.heard() == ["worker_vouched"] and scene.told[0].fields["worker"] == 6


@pytest.mark.parametrize("why", ["stopped", "not registered", "leaving"])
def test_for_whom_nobody_vouches(scene: Scene, why: str) -> None:
    if why == "stopped":
        scene.child.suspended = True
    elif why == "not registered":
        scene.child.startmap.set_worker(0)
    else:
        scene.child.silence = lambda now: 0.0  # type: ignore[method-assign]
    scene.pass_time(100)
    assert (scene.asked, scene.told, scene.child.killed) == (0, [], [])
