"""What every workload uses: how much of everything, who is measured, and the turns they take.

A workload answers, for each contender, a list with one dictionary of figures for each repetition (W6: each round). A
peer that fails gets {"error": why} instead, and is left out of the rest of that workload.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bench.contender import BenchError, Contender, TooSlow

Figures = dict[str, Any]
Results = dict[str, list[Figures]]
Say = Callable[[str], None]
CHUNK = 100_000  # jobs enqueued by one producer process when filling
CALIBRATION = 2_000  # jobs


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything. The defaults are the quick profile."""

    reps: int = 3
    bulk: int = 20_000  # W1
    single: int = 1_000  # W2
    drain: int = 100_000  # W3, W3x2, W3x4
    rate: int = 50  # W4: jobs a second
    load_seconds: int = 6  # W4, W4half
    backlog: int = 1_000_000  # W5
    deep_backlog: int = 10_000_000  # W5x10
    history: int = 10_000_000  # W8
    part: int = 100_000  # W5, W5x10, W8: jobs drained in a repetition
    rounds: int = 20  # W6: at least so many
    minutes: float = 0.0  # W6: and so long
    round_jobs: int = 10_000  # W6
    idle_seconds: float = 6.0  # W7: seconds a repetition watches
    handled: int = 50_000  # W9 to W13
    costed: int = 20_000  # W14
    memory: int = 300_000  # W15
    cap: float = 120.0  # seconds a drain may take (100,000 jobs or fewer)
    peer_cap: float = 20.0  # seconds after which a peer's drain is cut off, and its rate taken until then


@dataclass(frozen=True, slots=True)
class Bench:
    """What a workload gets. `speeds`: the calibrated drain rate of each peer."""

    reference: Contender
    skiplock: Contender
    scale: Scale
    say: Say
    peers: Sequence[Contender] = ()
    speeds: Mapping[str, float] = field(default_factory=dict)

    @property
    def everybody(self) -> tuple[Contender, ...]:
        """The contenders of workloads that make sense for any system."""
        return self.reference, self.skiplock, *self.peers

    @property
    def unhurried(self) -> tuple[Contender, ...]:
        """The contenders of W4 and W7: the reference, which polls, says something only beside peers."""
        return self.everybody if self.peers else (self.skiplock,)

    def is_peer(self, contender: Contender) -> bool:
        """Whether it may fail and may be slow."""
        return any(contender is peer for peer in self.peers)

    def jobs(self, contender: Contender, wanted: int) -> int:
        """So many, or fewer for a slow peer."""
        if not self.is_peer(contender):
            return wanted
        speed = self.speeds.get(contender.label, 0.0)
        if speed >= 5_000 and contender.kind.has_bulk:
            return wanted
        return min(wanted, 20_000 if speed >= 1_000 else 5_000)

    def cap(self, contender: Contender) -> float:
        """Seconds its drain may take."""
        return self.scale.peer_cap if self.is_peer(contender) else self.scale.cap

    def alternate(self, once: Callable[[Contender], Figures], contenders: Sequence[Contender] | None = None) -> Results:
        """`once` for each contender in turn, and all of it `reps` times."""
        contenders = self.everybody if contenders is None else contenders
        found: Results = {contender.label: [] for contender in contenders}
        for rep in range(self.scale.reps):
            for contender in contenders:
                if not failed(found[contender.label]):
                    self.say(f"repetition {rep + 1} of {self.scale.reps}: {contender.label}")
                    found[contender.label].append(self.attempt(contender, once))
        return found

    def attempt(self, contender: Contender, once: Callable[[Contender], Figures]) -> Figures:
        """The figures; if a peer fails, why."""
        if not self.is_peer(contender):
            return once(contender)
        try:
            return once(contender)
        except Exception as error:  # whatever a peer does must not end the run
            halt(contender)
            return {"error": _last_line(error)}

    @contextmanager
    def twin(self, label: str) -> Iterator[Contender]:
        """skiplock once more, in a database of its own."""
        contender = self.skiplock.twin(label)
        try:
            yield contender
        finally:
            contender.close()


def failed(figures: Sequence[Figures]) -> bool:
    """Whether a peer has given up."""
    return any("error" in f for f in figures)


def halt(contender: Contender) -> None:
    """Stop its workers, whatever became of them."""
    try:
        contender.stop()
    except BenchError:
        pass


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if lines else ""
    return f"{type(error).__name__}: {text}"[:200]


# -- what several workloads do -----------------------------------------------------------------------------------------


def fill(contender: Contender, first: int, jobs: int, chunk: int = CHUNK) -> float:
    """Enqueue jobs first … first+jobs-1 by the fastest way; the seconds it took."""
    starts = range(first, first + jobs, chunk)
    return sum(contender.produce("bulk", at, min(chunk, first + jobs - at))["seconds"] for at in starts)


def drain(bench: Bench, contender: Contender, first: int, jobs: int, base: int) -> Figures:
    """With workers started: the figures of draining these jobs; those of a slow peer are cut off at its cap."""
    cap, began = bench.cap(contender), time.monotonic()
    try:
        return contender.drain(first, jobs, base, cap)
    except TooSlow:
        if not bench.is_peer(contender):
            raise
        starts = contender.marks.starts(first, jobs)
        if len(starts) < 2:
            raise
        halt(contender)
        twice = contender.marks.repeated(first, jobs)
        rate = len(starts) / (time.monotonic() - starts[0])
        return {"jobs": len(starts), "jobs_s": rate, "twice": twice, "cut_off_s": time.monotonic() - began}


def fresh_drain(bench: Bench, contender: Contender, jobs: int, *, workers: int = 1, chunk: int = CHUNK) -> Figures:
    """Fill a fresh database, let workers drain it."""
    contender.reset(jobs)
    base = contender.base()
    fill(contender, 0, jobs, chunk)
    contender.settle()
    contender.start(workers)
    figures = drain(bench, contender, 0, jobs, base)
    contender.stop()
    return figures


def calibrate(bench: Bench, contender: Contender) -> Figures:
    """How fast it is, roughly."""
    return bench.attempt(contender, lambda peer: fresh_drain(bench, peer, CALIBRATION))


def pause_until(condition: Callable[[], bool], seconds: float, every: float = 0.02) -> bool:
    """Wait for a condition; whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every)
    return True
