"""An exhaustive explorer: every state that any order of steps can reach, breadth first.

A machine says where it starts, which steps lead on from a state, what is wrong with a state, and whether all is done in it.
States are hashable values. Two kinds of fault are found, each with the shortest way to it:

    wrong   a state that must never be
    stuck   a state from which no way leads to the end without further faults of the world
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)


class Step(NamedTuple, Generic[S]):
    """One thing that happens. `fault`: the world did it (a crash, a cut); nothing that must end may count on it."""

    name: str
    to: S
    fault: bool = False


class Machine(Protocol[S]):
    def start(self) -> S: ...

    def steps(self, state: S) -> Iterable[Step[S]]: ...

    def wrong(self, state: S) -> str:
        """What must never be and is so in this state, or nothing."""

    def done(self, state: S) -> bool: ...

    def show(self, state: S) -> str:
        """A line for people."""


@dataclass(frozen=True)
class Explored:
    """What was found. `kinds` are the steps that were taken, by name; `problem` is empty if there is none."""

    states: int
    steps: int
    depth: int
    kinds: frozenset[str]
    problem: str = ""
    trace: str = ""

    def __str__(self) -> str:
        size = f"{self.states:,} states, {self.steps:,} steps, {self.depth} deep"
        return f"{self.problem} ({size})\n{self.trace}" if self.problem else size


class _Ways(Generic[S]):
    """How each state was reached first, and by which fair steps it can be reached at all."""

    def __init__(self, start: S) -> None:
        self.states = [start]
        self.numbers = {start: 0}
        self.came_by: list[tuple[int, str]] = [(-1, "")]
        self.depths = [0]
        self.fair_origins: list[list[int]] = [[]]
        self.steps = 0
        self.kinds: set[str] = set()

    def add(self, origin: int, step: Step[S]) -> bool:
        """Whether this step leads to a state not seen before."""
        self.steps += 1
        self.kinds.add(step.name)
        number = self.numbers.setdefault(step.to, len(self.states))
        new = number == len(self.states)
        if new:
            self.states.append(step.to)
            self.came_by.append((origin, step.name))
            self.depths.append(self.depths[origin] + 1)
            self.fair_origins.append([])
        if not step.fault:
            self.fair_origins[number].append(origin)
        return new

    def way_to(self, number: int) -> Iterator[tuple[str, S]]:
        found = []
        while number >= 0:
            origin, name = self.came_by[number]
            found.append((name, self.states[number]))
            number = origin
        return reversed(found)


def explore(machine: Machine[S], limit: int = 2_000_000) -> Explored:
    """Explore all of it. Ends at the first state that is wrong, which no shorter way leads to."""
    ways = _Ways(machine.start())
    number = 0
    while number < len(ways.states):
        for step in machine.steps(ways.states[number]):
            if ways.add(number, step) and (problem := machine.wrong(step.to)):
                return _explored(machine, ways, problem, len(ways.states) - 1)
        number += 1
        if number > limit:
            raise AssertionError(f"more than {limit:,} states: bound the machine")
    stuck = _first_stuck(machine, ways)
    if stuck is not None:
        return _explored(machine, ways, "stuck: from here it never ends", stuck)
    return _explored(machine, ways)


def _first_stuck(machine: Machine[S], ways: _Ways[S]) -> int | None:
    """The first state that cannot reach the end by fair steps, looking back from the end."""
    ends = [number for number, state in enumerate(ways.states) if machine.done(state)]
    alive = bytearray(len(ways.states))
    for number in ends:
        alive[number] = True
    while ends:
        for origin in ways.fair_origins[ends.pop()]:
            if not alive[origin]:
                alive[origin] = True
                ends.append(origin)
    found = alive.find(0)
    return None if found < 0 else found


def _explored(machine: Machine[S], ways: _Ways[S], problem: str = "", number: int | None = None) -> Explored:
    lines = []
    if number is not None:
        for nth, (name, state) in enumerate(ways.way_to(number)):
            lines.append(f"{nth:3}. {name or 'start':58} {machine.show(state)}")
    return Explored(len(ways.states), ways.steps, max(ways.depths), frozenset(ways.kinds), problem, "\n".join(lines))
