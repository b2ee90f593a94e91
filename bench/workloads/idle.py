"""W7: what a worker that has nothing to do costs, and whether a busy system sends notifications."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor

from bench.contender import BenchError, Contender
from bench.meter import Meter, counting
from bench.workloads.base import Bench, Figures, Results, fill, pause_until

CALM = 6.0  # seconds after the start, in which a worker goes to rest
BELL = "skiplock.bell"


def idle(bench: Bench) -> Results:
    """W7: statements, CPU and connections of an idle worker; notifications in a saturated system."""
    found: Results = {}
    for contender in bench.unhurried:
        bench.say(f"idle: {contender.label}")
        found[contender.label] = _watch(bench, contender)
    bench.say("saturated: skiplock")
    found[bench.skiplock.label].append(_notifications(bench, bench.skiplock))
    return found


def _watch(bench: Bench, contender: Contender) -> list[Figures]:
    figures: list[Figures] = []

    def once(contender: Contender) -> Figures:
        contender.reset(1)
        contender.start()
        time.sleep(CALM)  # there is nothing to wait for: it is doing nothing that is measured here
        figures.extend(_idle(contender, bench.scale.idle_seconds) for _ in range(bench.scale.reps))
        contender.stop()
        return {}

    failure = bench.attempt(contender, once)
    return [*figures, failure] if failure else figures


def _idle(contender: Contender, seconds: float) -> Figures:
    stored = contender.kind.kind_of_store == "pg"
    meter = Meter(contender)
    with counting(contender) as able:
        commits, cpu, began = contender.commits(), contender.cpu()[0], time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        figures: Figures = {
            "transactions_s" if stored else "commands_s": (contender.commits() - commits) / took,
            "cpu_s_in_30s": (contender.cpu()[0] - cpu) / took * 30,
        }
        if stored:
            figures["connections"] = meter.connections()
        if stored and able:
            figures["statements_s"] = sum(statement.calls for statement in meter.statements()) / took
    return figures


def _notifications(bench: Bench, contender: Contender) -> Figures:
    """Enqueue while a worker has more than it can do: how many notifications a listener hears.

    It was saturated if the jobs that were there before had not all begun when the last one was enqueued.
    """
    jobs, more = bench.scale.drain, max(bench.scale.drain // 10, 1)
    contender.reset(jobs + more)
    fill(contender, 0, jobs)
    contender.start()
    marks = contender.marks
    if not pause_until(lambda: marks.started(0, 1_000) > 0, bench.scale.cap):
        raise BenchError(f"{contender.label}: nothing started")
    with ThreadPoolExecutor(1) as pool, contender.connect() as listener:
        listener.execute(f'listen "{BELL}"')
        job: Future[float] = pool.submit(fill, contender, jobs, more)
        heard = 0
        while not job.done():
            heard += len(list(listener.notifies(timeout=0.1)))
        saturated = not marks.is_started(jobs - 1)
    contender.stop()
    return {"notifications": heard, "enqueued": more, "saturated": saturated}
