"""W6: another session's snapshot keeps every dead row from being removed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

from bench.contender import Contender
from bench.workloads.base import Bench, Figures, Results, drain, failed, fill

FREE, STAYING = "no snapshot", "stays up"
GIVE_UP = 4.0  # in a long run, others than skiplock leave when they have become so many times slower


def horizon(bench: Bench) -> Results:
    """W6: rounds of enqueue and drain beside an old snapshot.

    Round by round: the reference, skiplock whose worker starts anew each round, skiplock whose worker stays, and skiplock
    without the snapshot. One dictionary per round; the cold first one is no measure.
    """
    scale, began = bench.scale, time.monotonic()
    with ExitStack() as stack:
        free, staying = (stack.enter_context(bench.twin(label)) for label in (FREE, STAYING))
        contenders = [bench.reference, bench.skiplock, staying, free, *bench.peers]
        found: Results = {contender.label: [] for contender in contenders}
        most = _most_rounds(bench)
        for contender in contenders:
            found[contender.label] += _prepare(bench, contender, most, stack if contender is not free else None)
        staying.start()
        nth = 0
        while nth < most and (nth < scale.rounds or time.monotonic() - began < scale.minutes * 60):
            bench.say(f"round {nth + 1}, {(time.monotonic() - began) / 60:.1f} minutes")
            once = partial(_round, bench, staying, nth)
            for contender in contenders:
                if _goes_on(bench, contender, found[contender.label]):
                    figures = bench.attempt(contender, once)
                    found[contender.label].append({**figures, "at_s": time.monotonic() - began})
            nth += 1
        staying.stop()
    return found


def _most_rounds(bench: Bench) -> int:
    """As many as marks are reserved for; a turn of all takes more than a second."""
    return max(bench.scale.rounds, int(bench.scale.minutes * 60))


def _prepare(bench: Bench, contender: Contender, rounds: int, stack: ExitStack | None) -> list[Figures]:
    """An empty database, and in another session the snapshot; an error if a peer fails at it."""

    def reset(contender: Contender) -> Figures:
        contender.reset(rounds * bench.scale.round_jobs)
        if stack is not None and contender.kind.kind_of_store == "pg":
            pin = stack.enter_context(contender.connect())
            pin.execute("begin isolation level repeatable read")
            pin.execute("select count(*) from pg_class")
        return {}

    return [figures for figures in [bench.attempt(contender, reset)] if figures]


def _goes_on(bench: Bench, contender: Contender, rounds: Sequence[Figures]) -> bool:
    if failed(rounds):
        return False
    if contender.kind is bench.skiplock.kind or len(rounds) <= bench.scale.rounds:
        return True
    return bool(rounds[-1]["jobs_s"] * GIVE_UP > rounds[1]["jobs_s"])


def _round(bench: Bench, staying: Contender, nth: int, contender: Contender) -> Figures:
    """Where the worker stays, it starts with the first jobs of the bulk: the rate is of enqueuing and draining together."""
    jobs = bench.jobs(contender, bench.scale.round_jobs)
    first, base = nth * bench.scale.round_jobs, contender.base()
    fill(contender, first, jobs)
    if contender is not staying:
        contender.start()
    figures = drain(bench, contender, first, jobs, base)
    if contender is not staying:
        contender.stop()
    return figures
