"""W9 to W13, W16: other queues, handlers and arguments than a no-op in one queue."""

from __future__ import annotations

from bench import variants
from bench.adapter import SkiplockSystem
from bench.contender import Contender
from bench.workloads.base import Bench, Figures, Results, fresh_drain

BIG_CHUNK = 500  # jobs of 100 KiB in one statement
BIG_SHARE = 25  # of so many jobs, one is of 100 KiB


def queues(bench: Bench) -> Results:
    """W9: jobs in 20 queues with 3 priorities each, beside one queue of as many slots."""
    return _variants(bench, variants.OneQueue, variants.ManyQueues)


def async_handlers(bench: Bench) -> Results:
    """W10: async handlers that wait for 1 and 10 ms, 500 at a time; ideal is 500 / the wait."""
    return _variants(bench, variants.AsyncSleep1, variants.AsyncSleep10)


def thread_handlers(bench: Bench) -> Results:
    """W11: handlers in threads, no-op and 1 ms, 50 at a time; ideal is 50 / the wait."""
    return _variants(bench, variants.ThreadsNoop, variants.ThreadsSleep1)


def payloads(bench: Bench) -> Results:
    """W12: arguments of 1 KiB and 100 KiB, beside the usual 60 bytes."""
    return _variants(bench, SkiplockSystem, variants.Payload1, variants.Payload100)


def failures(bench: Bench) -> Results:
    """W13: every tenth job fails once and is tried again, beside none that fails."""
    return _variants(bench, SkiplockSystem, variants.Failing)


def limits(bench: Bench) -> Results:
    """W16: jobs under 1,000 keys of one at a time, beside none under a limit."""
    return _variants(bench, SkiplockSystem, variants.Limited)


def _variants(bench: Bench, *kinds: type[SkiplockSystem]) -> Results:
    contenders = [bench.skiplock.sibling(kind) for kind in kinds]
    try:
        return bench.alternate(lambda contender: _once(bench, contender), contenders)
    finally:
        for contender in contenders:
            contender.close()


def _once(bench: Bench, contender: Contender) -> Figures:
    kind, jobs = contender.kind, bench.scale.handled
    if kind is variants.Payload100:
        figures = fresh_drain(bench, contender, max(jobs // BIG_SHARE, BIG_CHUNK), chunk=BIG_CHUNK)
    else:
        figures = fresh_drain(bench, contender, jobs)
    if issubclass(kind, variants.Payload):
        figures["mib_s"] = figures["jobs_s"] * kind.kibibytes / 1024
    if issubclass(kind, variants.AsyncSleep | variants.Threads) and kind.seconds:
        figures["ideal_s"] = kind.slots / kind.seconds
    return figures
