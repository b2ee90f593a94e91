"""`python -m bench.peers [NAMES]`: installs each peer and tries it with a few jobs. The rates only show that it runs."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.contender import BenchError, Contender
from bench.peers import DEFAULT, NAMES, prepare
from bench.server import server
from bench.system import System
from skiplock.store.embedded import EmbeddedServer

JOBS = 2_000
RATE, SECONDS = 50, 3
CAP = 60.0  # seconds


def attempt(found: EmbeddedServer, kind: type[System], folder: Path) -> tuple[float, str]:
    """Jobs a second of a short drain, and what went wrong."""
    contender = Contender(found, kind, folder)
    try:
        contender.reset(JOBS)
        contender.produce("bulk", 0, JOBS)
        contender.settle()
        contender.start()
        figures = contender.drain(0, JOBS, 0, CAP)
        contender.stop()

        contender.reset(1 + RATE * SECONDS)
        contender.start()
        contender.produce("single", 0, 1)  # the worker is ready when it has done this
        _wait(contender, 1)
        contender.produce("load", 1, RATE * SECONDS, RATE)
        _wait(contender, RATE * SECONDS + 1)
        contender.stop()
        delays = contender.marks.delays(1, RATE * SECONDS)
        lost = RATE * SECONDS - len(delays)
        twice = int(figures["twice"]) + contender.marks.repeated(0, 1 + RATE * SECONDS)
        trouble = f"{lost} lost, {twice} twice" if lost or twice else ""
        return figures["jobs_s"], trouble
    except BenchError as error:
        return 0.0, str(error)
    finally:
        contender.close()


def _wait(contender: Contender, jobs: int) -> None:
    deadline = time.monotonic() + 20
    while contender.marks.started(0, jobs) < jobs and time.monotonic() < deadline:
        time.sleep(0.02)


def main() -> int:
    """The exit code: 1 if a peer that is installed does not work."""
    names = sys.argv[1:] or DEFAULT
    if unknown := set(names) - set(NAMES):
        print(f"unknown: {' '.join(sorted(unknown))}; there are {' '.join(NAMES)}", file=sys.stderr)
        return 2
    console = Console() if sys.stdout.isatty() else Console(width=120)
    table = Table("peer", "version", "works", "jobs/s")
    failed = 0
    with console.status("") as status:
        usable, missing = prepare(names, status.update)
        with tempfile.TemporaryDirectory(prefix="bench-") as folder, server() as found:
            for kind in usable:
                status.update(f"trying {kind.name}")
                rate, trouble = attempt(found, kind, Path(folder))
                failed += bool(trouble)
                table.add_row(kind.name, kind.version(), trouble or "yes", f"{rate:,.0f}")
    for name, reason in missing.items():
        table.add_row(name, "", reason, "")
    console.print(table)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
