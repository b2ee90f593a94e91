"""About how long a run takes, so that nobody starts an hour by accident."""

from __future__ import annotations

from collections.abc import Sequence

from bench.workloads import EVERYBODYS, Scale

_START = 5.0  # seconds: the server and the templates
_PEER = 25.0  # seconds a repetition of a workload takes with a peer, cut off as slow ones are
# Rates to reckon with, on two shared cores: jobs a second.
_ENQUEUE, _DRAIN, _HISTORY = 40_000, 20_000, 60_000


def estimate(names: Sequence[str], scale: Scale, peers: int) -> float:
    """Seconds."""
    found = {name: seconds for name, seconds in _seconds(scale).items() if name in names}
    with_peers = sum(name in EVERYBODYS for name in names) * peers * scale.reps * _PEER
    return _START + sum(found.values()) + with_peers


def _seconds(scale: Scale) -> dict[str, float]:
    reps = scale.reps
    one = _drained(scale.drain)
    part = _drained(scale.part)
    handled = _drained(scale.handled)
    rounds = max(scale.minutes * 60, scale.rounds * 4 * (_drained(scale.round_jobs) + 1))
    return {
        "W1": reps * 3 * (2 + scale.bulk / _ENQUEUE),
        "W2": reps * 2 * (2 + scale.single / 500),
        "W3": reps * 2 * one,
        "W3x2": reps * 2 * one,
        "W3x4": reps * 2 * one,
        "W4": reps * (scale.load_seconds + 4),
        "W4half": 2 * one + reps * (scale.load_seconds + 6),
        "W5": 2 * scale.backlog / _ENQUEUE + reps * 3 * part,
        "W5x10": scale.deep_backlog / _ENQUEUE + reps * 2 * part,
        "W6": rounds,
        "W7": 8 + reps * scale.idle_seconds + one,
        "W8": scale.history / _HISTORY + reps * 2 * part,
        "W9": reps * 2 * handled,
        "W10": reps * 2 * handled,
        "W11": reps * 2 * (handled * 2),
        "W12": reps * 3 * handled,
        "W13": reps * 2 * handled,
        "W14": reps * 2 * _drained(scale.costed),
        "W15": scale.memory / _ENQUEUE + scale.memory / _DRAIN,
        "W16": reps * 6 * handled,
    }


def _drained(jobs: int) -> float:
    """Filling and draining."""
    return 3 + jobs / _ENQUEUE + jobs / _DRAIN
