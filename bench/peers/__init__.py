"""Other job systems, measured in the same run. `python -m bench.peers` installs and tries each.

`NAME.py` is the adapter of a peer, `NAME.mjs` its child process if it runs on Node. Importing an adapter needs nothing
but the standard library: the peer is installed in a virtual environment of its own, and runs only there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module

from bench.peers.install import Unavailable
from bench.peers.peer import Peer
from bench.system import System

NAMES: tuple[str, ...] = (
    "procrastinate", "pgqueuer", "awa", "oban", "chancy", "dramatiq_postgres", "absurd", "graphile_worker", "pg_boss",
    "huey", "taskiq", "saq", "arq", "dramatiq", "celery", "rq",
)  # fmt: skip
DEFAULT = NAMES


def load(name: str) -> type[Peer]:
    """The peer of this name; it need not be installed."""
    found: type[Peer] = import_module(f"bench.peers.{name}").Adapter
    return found


def prepare(names: Sequence[str], say: Callable[[str], None]) -> tuple[list[type[System]], dict[str, str]]:
    """Install what is missing. The peers that can be measured; for each of the others, in a line, why not."""
    usable: list[type[System]] = []
    missing: dict[str, str] = {}
    for name in names:
        peer = load(name)
        try:
            peer.install(say)
        except Unavailable as error:
            missing[name] = str(error)
        else:
            usable.append(peer)
    return usable, missing
