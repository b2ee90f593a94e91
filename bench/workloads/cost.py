"""W14: what a job costs the server, from enqueue to history."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bench.contender import Contender
from bench.meter import Meter, Statement, counting
from bench.workloads.base import Bench, Figures, Results, drain

# Which of skiplock's statements belongs to which part.
PARTS = {"enqueue": "enqueue_many(", "claim": ".claim(", "settle": ".settle("}


def cost(bench: Bench) -> Results:
    """W14: WAL bytes, statements and row versions a job, for enqueue, claim and settle."""
    for contender in bench.everybody:  # what earlier workloads left would be vacuumed meanwhile, and counted here
        contender.reset(1)
    return bench.alternate(lambda contender: _once(bench, contender), (bench.reference, bench.skiplock))


def _once(bench: Bench, contender: Contender) -> Figures:
    """No checkpoint after the first: nearly all pages are new, so full-page images are few; they are told apart too."""
    jobs, meter = bench.scale.costed, Meter(contender)
    contender.reset(jobs)
    contender.settle()
    base = contender.base()
    with counting(contender) as able:
        before = meter.rows()
        enqueue = _wal(meter, jobs, lambda: contender.produce("bulk", 0, jobs))
        contender.start()
        drained = _wal(meter, jobs, lambda: drain(bench, contender, 0, jobs, base))
        contender.stop()
        written, left_dead = (after - first for after, first in zip(meter.rows(), before, strict=True))
        statements = meter.statements() if able else []
    figures: Figures = {"jobs": jobs, "rows": written / jobs, "dead_rows": left_dead / jobs}
    for key in ("wal", "images"):
        if key in enqueue:
            figures |= {f"enqueue_{key}": enqueue[key], f"drain_{key}": drained[key], key: enqueue[key] + drained[key]}
    if statements:
        figures |= _parts(statements, jobs)
    return figures


def _wal(meter: Meter, jobs: int, work: Callable[[], object]) -> dict[str, float]:
    """Bytes a job."""
    position = meter.position()
    work()
    return {key: value / jobs for key, value in meter.wal(position).items()}


def _parts(statements: Sequence[Statement], jobs: int) -> Figures:
    figures: Figures = {"statements": sum(s.calls for s in statements) / jobs}
    for part, mark in PARTS.items():
        found = [s for s in statements if mark in s.query]
        if found:
            figures[f"{part}_statements"] = sum(s.calls for s in found) / jobs
            figures[f"{part}_statement_wal"] = sum(s.wal for s in found) / jobs
    return figures
