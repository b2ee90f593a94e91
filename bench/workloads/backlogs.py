"""W5, W5x10, W8: draining beside a long queue or a long history, as fast as on an empty system?

Each repetition drains the same number of jobs from the full system and from an empty twin; the rate is taken between the
10 % and the 90 % start, alike for both, since the full system has no end that could be waited for.
"""

from __future__ import annotations

from collections.abc import Sequence

from bench.contender import BenchError, Contender
from bench.workloads.base import CHUNK, Bench, Figures, Results, failed, fill, pause_until

# Rows as settle leaves them: finished in the course of today, in today's partition, where new ones go as well.
_HISTORY = """
insert into skiplock.jobs_finished (id, position, lease, worker, enqueued_at, started_at, finished_at, attempt,
                                    max_attempts, priority, losses, state, queue, task, args)
select n.id, n.id, n.id, 1, n.at - interval '90 ms', n.at - interval '3 ms', n.at, 1, 10, 0, 0, 'completed', 'default', 'bench.noop',
       json_build_object('to', 'user@example.com', 'subject', 'hello', 'n', n.k)
from (select nextval('skiplock.job_numbers') as id, k,
             greatest(skiplock.now() - make_interval(secs => (%(of)s - k) * 0.001),
                      date_trunc('day', skiplock.now() at time zone 'UTC') at time zone 'UTC') as at
      from generate_series(%(first)s::bigint, %(last)s::bigint) as k) n"""


def backlog(bench: Bench) -> Results:
    """W5: drain with a million jobs queued, beside an empty system."""
    with bench.twin("empty") as empty:
        full = [bench.reference, bench.skiplock, *(p for p in bench.peers if p.kind.has_bulk)]
        return _beside_empty(bench, full, empty, bench.scale.backlog)


def deep_backlog(bench: Bench) -> Results:
    """W5x10: with ten million queued."""
    with bench.twin("empty") as empty:
        return _beside_empty(bench, [bench.skiplock], empty, bench.scale.deep_backlog)


def history(bench: Bench) -> Results:
    """W8: drain with ten million jobs in today's history, beside an empty system."""
    scale, full = bench.scale, bench.skiplock
    full.reset(scale.part * scale.reps + 1)
    with full.connect() as connection:
        for first in range(1, scale.history + 1, CHUNK):
            bench.say(f"writing a history of {scale.history:,} jobs: {first / scale.history:.0%}")
            last = min(first + CHUNK - 1, scale.history)
            connection.execute(_HISTORY.encode(), {"first": first, "last": last, "of": scale.history})
        connection.execute("vacuum analyze")
    with bench.twin("empty") as empty:
        return bench.alternate(lambda contender: _fill_and_drain(bench, contender, contender is full), [empty, full])


def _fill_and_drain(bench: Bench, contender: Contender, keep: bool) -> Figures:
    part = bench.scale.part
    first = _next(contender) if keep else 0
    if not keep:
        contender.reset(part)
    fill(contender, first, part)
    contender.settle()
    return _part(bench, contender, first, part)


def _beside_empty(bench: Bench, full: Sequence[Contender], empty: Contender, queued: int) -> Results:
    found: Results = {}
    for contender in full:
        found[contender.label] = [bench.attempt(contender, lambda c: _fill_up(bench, c, queued))]
    able = [contender for contender in full if not failed(found[contender.label])]

    def once(contender: Contender) -> Figures:
        if contender is empty:
            return _fill_and_drain(bench, empty, keep=False)
        contender.settle()
        return _part(bench, contender, _next(contender), bench.jobs(contender, bench.scale.part))

    if queued < bench.scale.part * (bench.scale.reps + 1):
        raise BenchError(f"{queued:,} jobs are too few for {bench.scale.reps} repetitions of {bench.scale.part:,}")
    measured = bench.alternate(once, [empty, *able])
    return {**{label: figures for label, figures in found.items() if failed(figures)}, **measured}


def _fill_up(bench: Bench, contender: Contender, queued: int) -> Figures:
    contender.reset(queued)
    for first in range(0, queued, CHUNK):
        bench.say(f"queueing {queued:,} jobs: {contender.label}, {first / queued:.0%}")
        fill(contender, first, min(CHUNK, queued - first))
    return {}


def _next(contender: Contender) -> int:
    """The first job that has not started; jobs start nearly in order."""
    n = 0
    while contender.marks.is_started(n):
        n += 1
    return n


def _part(bench: Bench, contender: Contender, first: int, jobs: int) -> Figures:
    """Start a worker, and stop it when so many more jobs have started."""
    marks = contender.marks
    contender.start()
    cut_off = not pause_until(lambda: marks.is_started(first + jobs - 1), bench.cap(contender))
    contender.stop()
    starts = marks.starts(first, jobs)
    if cut_off and not (bench.is_peer(contender) and len(starts) > 100):
        raise BenchError(f"{contender.label}: {len(starts):,} of {jobs:,} jobs in time")
    low, high = len(starts) // 10, len(starts) * 9 // 10
    rate = (high - low) / max(starts[high] - starts[low], 1e-9)
    return {"jobs": len(starts), "jobs_s": rate, "twice": marks.repeated(first, jobs)}
