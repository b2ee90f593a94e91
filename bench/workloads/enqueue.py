"""W1, W2: enqueuing."""

from __future__ import annotations

from bench.contender import Contender
from bench.rawinsert import RawInsert
from bench.workloads.base import Bench, Figures, Results


def bulk(bench: Bench) -> Results:
    """W1: enqueue in bulk, beside COPY and beside a raw INSERT of the same rows."""
    raw = bench.reference.sibling(RawInsert)
    try:
        return _enqueue(bench, "bulk", bench.scale.bulk, (bench.reference, raw, bench.skiplock, *bench.peers))
    finally:
        raw.close()


def single(bench: Bench) -> Results:
    """W2: one enqueue after the other, each awaited and durable."""
    return _enqueue(bench, "single", bench.scale.single, bench.everybody)


def _enqueue(bench: Bench, verb: str, jobs: int, contenders: tuple[Contender, ...]) -> Results:
    def once(contender: Contender) -> Figures:
        contender.reset(1)
        count = jobs if contender.kind.has_bulk else min(jobs, 2_000)
        return {"jobs": count, "jobs_s": count / contender.produce(verb, 0, count)["seconds"]}

    return bench.alternate(once, contenders)
