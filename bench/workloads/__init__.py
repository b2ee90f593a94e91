"""The workloads by name, a module per theme. The first line of each docstring is what `--help` says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bench.workloads import backlogs, cost, drains, enqueue, handlers, horizon, idle, latency, memory
from bench.workloads.base import Bench, Figures, Results, Say, Scale

__all__ = ["EVERYBODYS", "FULL", "QUICK", "WORKLOADS", "Bench", "Figures", "Results", "Say", "Scale", "full_scale"]

Workload = Callable[[Bench], Results]
WORKLOADS: dict[str, Workload] = {
    "W1": enqueue.bulk,
    "W2": enqueue.single,
    "W3": drains.drain,
    "W3x2": drains.drain_two,
    "W3x4": drains.drain_four,
    "W4": latency.latency,
    "W4half": latency.half_load,
    "W5": backlogs.backlog,
    "W5x10": backlogs.deep_backlog,
    "W6": horizon.horizon,
    "W7": idle.idle,
    "W8": backlogs.history,
    "W9": handlers.queues,
    "W10": handlers.async_handlers,
    "W11": handlers.thread_handlers,
    "W12": handlers.payloads,
    "W13": handlers.failures,
    "W14": cost.cost,
    "W15": memory.memory,
    "W16": handlers.limits,
}
QUICK = ("W1", "W2", "W3", "W3x2", "W4", "W7", "W14")
FULL = tuple(WORKLOADS)
EVERYBODYS = ("W1", "W2", "W3", "W3x2", "W4", "W5", "W6", "W7")  # where peers take part


def full_scale(scale: Scale) -> Scale:
    """The sizes of the full profile."""
    return replace(scale, load_seconds=20, minutes=10.0, idle_seconds=10.0, memory=5_000_000)
