"""Microseconds of Python per job, step by step, without a database: `python -m bench.hotpath`.

The steps are the worker's own functions, fed with made-up rows. What the driver (psycopg) and the socket cost is not in
here: that is the rest of "worker µs" in the drain. CPU time, the best of many repetitions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

from rich.console import Console

from bench.child import run
from bench.marks import payload
from skiplock import Skiplock
from skiplock.core.cursor import ClaimCursor
from skiplock.core.events import Events
from skiplock.core.job import Job
from skiplock.core.outcome import Outcome, Verdict
from skiplock.produce.enqueue import enqueue_call
from skiplock.store.call import Call
from skiplock.work.claim import _jobs
from skiplock.work.context import Reach
from skiplock.work.lines import Lines
from skiplock.work.prepared import Prepared
from skiplock.work.run import Runner
from skiplock.work.settle import Settler, settle_call
from skiplock.work.startmap import StartMap

JOBS = 1000
REPEATS = 200


class DeafLink:
    """Takes every statement and answers nothing."""

    async def run(self, call: Call[Any]) -> Any:
        return []


def main() -> None:
    """All steps."""
    app = Skiplock("postgresql://nowhere/nothing")

    @app.task(name="bench.noop")
    async def noop(to: str, subject: str, n: int) -> None:
        pass

    new = [noop.job(**payload(n)) for n in range(JOBS)]
    now = datetime.now(UTC)
    rows = [(n, 7, "default", 0, n, "bench.noop", new[n].args, 1, 10, 0, now, None, None) for n in range(JOBS)]
    jobs = _jobs(rows)
    prepared = Prepared(noop.spec)
    outcomes = [Outcome(n, 2**62 + 7, Verdict.COMPLETED, 0.00001 * n) for n in range(JOBS)]
    steps = {
        "enqueue: check and encode the arguments": lambda: [noop.job(**payload(n)) for n in range(JOBS)],
        "enqueue: the statement's parameters": lambda: enqueue_call(new, "skiplock"),
        "claim: rows to jobs": lambda: _jobs(rows),
        "claim: the cursor": lambda: _see(jobs),
        "run: decode the arguments (part of the next)": lambda: [prepared.decode(job.args) for job in jobs],
        "settle: the statement's parameters": lambda: settle_call(outcomes, "select"),
    }
    console = Console()
    for name, step in steps.items():
        _print(console, name, _best(step))
    _print(console, "run: an attempt from start to outcome", run(_attempts(prepared, jobs, None)))
    _print(console, "run: the same with a supervisor's map", run(_attempts(prepared, jobs, StartMap.create(50))))
    _print(console, "(for comparison: a bare asyncio task)", run(_bare()))
    app.close()


def _see(jobs: list[Job]) -> None:
    ClaimCursor().saw(((j.queue, j.priority, j.position) for j in jobs), 0.0)


async def _attempts(prepared: Prepared, jobs: list[Job], startmap: StartMap | None) -> float:
    reach: Any = Reach("skiplock", 1_000_000, lambda: None, lambda: None)  # type: ignore[arg-type,return-value]
    link: Any = DeafLink()

    async def once() -> None:
        lines = Lines({"default": 50}, JOBS, JOBS)
        settler = Settler(link, "skiplock", Events())
        runner = Runner({"bench.noop": prepared}, lines, settler, Events(), reach, startmap=startmap)
        runner.accept(jobs)
        await runner.quiet()
        assert settler.pending == len(jobs)
        runner.close()

    try:
        return await _best_async(once)
    finally:
        if startmap is not None:
            startmap.close()


async def _bare() -> float:
    import asyncio

    async def nothing() -> None:
        pass

    async def once() -> None:
        await asyncio.gather(*[asyncio.create_task(nothing()) for _ in range(JOBS)])

    return await _best_async(once)


def _best(step: Callable[[], object]) -> float:
    best = float("inf")
    for _ in range(REPEATS):
        began = time.process_time()
        step()
        best = min(best, time.process_time() - began)
    return best


async def _best_async(step: Callable[[], Coroutine[Any, Any, None]]) -> float:
    best = float("inf")
    for _ in range(REPEATS):
        began = time.process_time()
        await step()
        best = min(best, time.process_time() - began)
    return best


def _print(console: Console, name: str, seconds: float) -> None:
    console.print(f"{seconds / JOBS * 1e6:8.2f} µs  {name}", highlight=False)


if __name__ == "__main__":
    main()
