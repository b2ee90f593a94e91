"""What skiplock must reach, and whether it did."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.figures import EMPTY, RAW, REFERENCE, SKIPLOCK, STAYING, Figures, Results, median, number, ratios, settled

BULK_RATE, BULK_SHARE = 100_000, 0.4  # W1: one of these is enough
ONE_WORKER, TWO_WORKERS = 0.50, 0.70  # W3, W3x2: of the reference
MEDIAN_MS, SLOW_MS = 1.2, 4.0  # W4: p50 and p99
UNMOVED = 0.9  # W5, W5x10, W6, W8: of the rate on an empty system, or of the first rounds
MANY_QUEUES = 0.7  # W9: of one queue
LIMITED = 0.2  # W16: of the same jobs without a limit
STATEMENTS, CONNECTIONS = 0.5, 4  # W7: statements a second, connections
WAL_BYTES = 1_300  # W14: a job, from enqueue to history
GROWTH_MIB, GROWTH_SHARE = 3.0, 0.05  # W15: one of these is enough


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the table of targets."""

    workload: str
    what: str
    measured: str
    target: str
    reached: bool


def verdicts(results: Mapping[str, Results]) -> list[Verdict]:
    """Of everything that ran."""
    return [verdict for name, judge in _JUDGES.items() if name in results for verdict in judge(name, results[name])]


def _at_least(name: str, what: str, found: Sequence[float], target: float) -> Iterator[Verdict]:
    if found:
        value = statistics.median(found)
        yield Verdict(name, what, f"{value:.2f}", f"≥ {target:.2f}", value >= target)


def _at_most(name: str, what: str, value: float | None, target: float, unit: str = "") -> Iterator[Verdict]:
    if value is not None:
        yield Verdict(name, what, f"{number(value)}{unit}", f"≤ {number(target)}{unit}", value <= target)


def _bulk(name: str, found: Results) -> Iterator[Verdict]:
    rate, shares = median(found[SKIPLOCK], "jobs_s"), ratios(found[SKIPLOCK], found.get(RAW, []))
    if rate is None or not shares:
        return
    share = statistics.median(shares)
    yield Verdict(
        name,
        "bulk enqueue, jobs/s and share of a raw INSERT of the same rows",
        f"{rate:,.0f}/s, {share:.2f}",
        f"≥ {BULK_RATE:,}/s or {BULK_SHARE:.2f}",
        rate >= BULK_RATE or share >= BULK_SHARE,
    )


def _beside_reference(what: str, target: float) -> Callable[[str, Results], Iterator[Verdict]]:
    def judge(name: str, found: Results) -> Iterator[Verdict]:
        return _at_least(name, f"{what}, share of the reference", ratios(found[SKIPLOCK], found[REFERENCE]), target)

    return judge


def _latency(name: str, found: Results) -> Iterator[Verdict]:
    yield from _at_most(name, "enqueue to start at 50 jobs/s, median", median(found[SKIPLOCK], "p50"), MEDIAN_MS, " ms")
    yield from _at_most(name, "… slowest hundredth (p99)", median(found[SKIPLOCK], "p99"), SLOW_MS, " ms")


def _beside_empty(what: str) -> Callable[[str, Results], Iterator[Verdict]]:
    def judge(name: str, found: Results) -> Iterator[Verdict]:
        return _at_least(
            name, f"drain {what}, share of an empty system", ratios(found[SKIPLOCK], found[EMPTY]), UNMOVED
        )

    return judge


def _horizon(name: str, found: Results) -> Iterator[Verdict]:
    for label, what in ((SKIPLOCK, "worker started each round"), (STAYING, "worker stays up")):
        rates = settled(found.get(label, []))
        if rates:
            yield from _at_least(name, f"last rounds / first rounds, {what}", [rates[1] / rates[0]], UNMOVED)


def _idle(name: str, found: Results) -> Iterator[Verdict]:
    ours = found[SKIPLOCK]
    yield from _at_most(name, "idle worker, statements/s", median(ours, "statements_s"), STATEMENTS)
    yield from _at_most(name, "idle worker, connections", median(ours, "connections"), CONNECTIONS)
    heard = [f["notifications"] for f in ours if f.get("saturated")]
    if heard:
        yield Verdict(name, "notifications while saturated", number(max(heard)), "0", max(heard) == 0)


def _queues(name: str, found: Results) -> Iterator[Verdict]:
    one, many = found.get("skiplock one queue", []), found.get("skiplock 20 queues", [])
    return _at_least(name, "20 queues × 3 priorities, share of one queue", ratios(many, one), MANY_QUEUES)


def _limits(name: str, found: Results) -> Iterator[Verdict]:
    plain, limited = found.get(SKIPLOCK, []), found.get("skiplock 1,000 keys of limit 1", [])
    return _at_least(name, "drain of 1,000 keys of limit 1, share of no limit", ratios(limited, plain), LIMITED)


def _cost(name: str, found: Results) -> Iterator[Verdict]:
    ours = found[SKIPLOCK]
    whole, images = median(ours, "wal"), median(ours, "images")
    if whole is not None:
        what = "WAL a job, enqueue to history" + (", without full-page images" if images is not None else "")
        yield from _at_most(name, what, whole - (images or 0.0), WAL_BYTES, " bytes")


def _memory(name: str, found: Results) -> Iterator[Verdict]:
    figures: Figures = found[SKIPLOCK][0]
    growth, warm = figures["growth_mib"], figures["warm_mib"]
    yield Verdict(
        name,
        f"memory after the first {figures.get('warm_jobs', 0):,} of {figures['jobs']:,} jobs",
        f"{growth:+.1f} MiB on {warm:.1f}",
        f"≤ {GROWTH_MIB:.0f} MiB or {GROWTH_SHARE:.0%}",
        growth <= max(GROWTH_MIB, GROWTH_SHARE * warm),
    )


_JUDGES: dict[str, Callable[[str, Results], Iterator[Verdict]]] = {
    "W1": _bulk,
    "W3": _beside_reference("one worker", ONE_WORKER),
    "W3x2": _beside_reference("two workers", TWO_WORKERS),
    "W4": _latency,
    "W5": _beside_empty("with a long queue"),
    "W5x10": _beside_empty("with a very long queue"),
    "W6": _horizon,
    "W7": _idle,
    "W8": _beside_empty("beside a long history"),
    "W9": _queues,
    "W14": _cost,
    "W15": _memory,
    "W16": _limits,
}
