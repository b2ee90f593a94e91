"""The workloads. Each runs its contenders in turn within every repetition, so that drift of the machine hits all alike.

A workload answers, for each contender, a list with one dictionary of figures for each repetition.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.contender import BenchError, Contender

Figures = dict[str, Any]
Results = dict[str, list[Figures]]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything. The defaults are the quick profile."""

    reps: int = 3
    bulk: int = 20_000  # W1
    single: int = 1_000  # W2
    drain: int = 100_000  # W3, W3x2
    rate: int = 50  # W4: jobs a second
    load_seconds: int = 6  # W4
    backlog: int = 1_000_000  # W5
    window: float = 3.0  # W5: seconds a repetition drains
    rounds: int = 20  # W6
    round_jobs: int = 10_000  # W6
    idle_seconds: float = 6.0  # W7: seconds a repetition watches
    cap: float = 120.0  # seconds a drain may take


@dataclass(frozen=True, slots=True)
class Bench:
    """What a workload gets."""

    reference: Contender
    skiplock: Contender
    scale: Scale
    say: Say

    @property
    def both(self) -> tuple[Contender, Contender]:
        return self.reference, self.skiplock

    def alternate(self, once: Callable[[Contender], Figures], contenders: Sequence[Contender] | None = None) -> Results:
        """`once` for each contender in turn, and all of it `reps` times."""
        found: Results = defaultdict(list)
        for rep in range(self.scale.reps):
            for contender in contenders or self.both:
                self.say(f"repetition {rep + 1} of {self.scale.reps}: {contender.label}")
                found[contender.label].append(once(contender))
        return dict(found)


# -- enqueuing ---------------------------------------------------------------------------------------------------------


def bulk(bench: Bench) -> Results:
    """W1: enqueue in bulk."""
    return _enqueue(bench, "bulk", bench.scale.bulk)


def single(bench: Bench) -> Results:
    """W2: one enqueue after the other, each awaited and durable."""
    return _enqueue(bench, "single", bench.scale.single)


def _enqueue(bench: Bench, verb: str, jobs: int) -> Results:
    def once(contender: Contender) -> Figures:
        contender.reset(1)
        return {"jobs": jobs, "jobs_s": jobs / contender.produce(verb, 0, jobs)["seconds"]}

    return bench.alternate(once)


# -- draining ----------------------------------------------------------------------------------------------------------


def drain(bench: Bench) -> Results:
    """W3: one worker drains a full queue."""
    return bench.alternate(lambda contender: _drain(contender, bench.scale, 1))


def drain_two(bench: Bench) -> Results:
    """W3x2: two worker processes do."""
    return bench.alternate(lambda contender: _drain(contender, bench.scale, 2))


def _drain(contender: Contender, scale: Scale, workers: int) -> Figures:
    contender.reset(scale.drain)
    base = contender.base()
    contender.produce("bulk", 0, scale.drain)
    contender.settle()
    contender.start(workers)
    figures = contender.drain(0, scale.drain, base, scale.cap)
    contender.stop()
    return figures


# -- an idle worker ----------------------------------------------------------------------------------------------------


def latency(bench: Bench, warm: int = 30) -> Results:
    """W4: milliseconds from just before the enqueue to the handler's start, 50 jobs/s, open loop."""
    scale, contender = bench.scale, bench.skiplock
    jobs = scale.rate * scale.load_seconds

    def once(contender: Contender) -> Figures:
        contender.reset(warm + jobs)
        contender.start()
        contender.produce("load", 0, warm, scale.rate)
        lag = contender.produce("load", warm, jobs, scale.rate)["lag"]
        deadline = time.monotonic() + 10
        while contender.marks.started(0, warm + jobs) < warm + jobs and time.monotonic() < deadline:
            time.sleep(0.05)
        contender.stop()
        delays = contender.marks.delays(warm, jobs)
        if not delays:
            raise BenchError(f"{contender.label}: no job started")
        figures: Figures = {f"p{p}": delays[min(len(delays) - 1, len(delays) * p // 100)] for p in (50, 95, 99)}
        lost = jobs - len(delays)
        return {
            **figures,
            "max": delays[-1],
            "lost": lost,
            "twice": contender.marks.repeated(warm, jobs),
            "lag_ms": lag * 1e3,
        }

    return bench.alternate(once, [contender])


def idle(bench: Bench) -> Results:
    """W7: transactions and CPU of a worker that has nothing to do."""
    contender, seconds = bench.skiplock, bench.scale.idle_seconds
    contender.reset(1)
    contender.start()
    time.sleep(6)

    def once(contender: Contender) -> Figures:
        commits, cpu, began = contender.commits(), contender.cpu()[0], time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        return {
            "transactions_s": (contender.commits() - commits) / took,
            "cpu_s_in_30s": (contender.cpu()[0] - cpu) / took * 30,
        }

    found = bench.alternate(once, [contender])
    contender.stop()
    return found


# -- adversity ---------------------------------------------------------------------------------------------------------


def backlog(bench: Bench) -> Results:
    """W5: jobs started in a few seconds with a million queued; every repetition goes on with what is left."""
    scale = bench.scale
    for contender in bench.both:
        bench.say(f"filling {scale.backlog:,} jobs: {contender.label}")
        contender.reset(scale.backlog)
        for first in range(0, scale.backlog, 100_000):
            contender.produce("bulk", first, min(100_000, scale.backlog - first))
        contender.settle()

    def once(contender: Contender) -> Figures:
        marks, before = contender.marks, contender.marks.started(0, scale.backlog)
        if before == scale.backlog:
            raise BenchError(f"{contender.label}: the backlog is used up; raise it or shorten the window")
        contender.start()
        while (begun := marks.started(0, scale.backlog)) == before:
            time.sleep(0.01)
        began = time.monotonic()
        time.sleep(scale.window)
        after, ended = marks.started(0, scale.backlog), time.monotonic()
        contender.stop()
        if after == scale.backlog:  # until the last start, then
            ended = marks.starts(0, scale.backlog)[-1]
        return {"jobs": after - begun, "jobs_s": (after - begun) / (ended - began), "left": scale.backlog - after}

    return bench.alternate(once)


def horizon(bench: Bench) -> Results:
    """W6: rounds of enqueue and drain while another session's snapshot keeps every dead row from being removed.

    Round by round beside skiplock without that snapshot, and beside the reference with it. One dictionary per round.
    """
    scale, found = bench.scale, Results()
    free = bench.skiplock.twin("no snapshot")
    contenders = (bench.reference, free, bench.skiplock)
    for contender in contenders:
        contender.reset(scale.rounds * scale.round_jobs)
        found[contender.label] = []
    with bench.reference.connect() as one, bench.skiplock.connect() as two:
        for pin in (one, two):
            pin.execute("begin isolation level repeatable read")
            pin.execute("select count(*) from pg_class")
        for nth in range(scale.rounds):
            bench.say(f"round {nth + 1} of {scale.rounds}")
            for contender in contenders:
                found[contender.label].append(_round(contender, scale, nth))
    free.close()
    return found


def _round(contender: Contender, scale: Scale, nth: int) -> Figures:
    first, base = nth * scale.round_jobs, contender.base()
    contender.produce("bulk", first, scale.round_jobs)
    contender.start()
    figures = contender.drain(first, scale.round_jobs, base, scale.cap)
    contender.stop()
    return figures


WORKLOADS: dict[str, Callable[[Bench], Results]] = {
    "W1": bulk,
    "W2": single,
    "W3": drain,
    "W3x2": drain_two,
    "W4": latency,
    "W5": backlog,
    "W6": horizon,
    "W7": idle,
}
DEFAULT = ("W1", "W2", "W3", "W3x2", "W4", "W7")
