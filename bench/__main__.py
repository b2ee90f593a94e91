"""`make bench`, or `python -m bench [W1 W2 W3 W3x2 W4 W5 W6 W7]`."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status

from bench.adapter import SkiplockSystem
from bench.contender import ROOT, BenchError, Contender
from bench.reference import Reference
from bench.report import save, show
from bench.server import facts, server
from bench.workloads import DEFAULT, WORKLOADS, Bench, Results, Scale

RESULTS = ROOT / "bench" / "results"


def parse() -> tuple[list[str], Scale, Path]:
    """The workloads, how much of them, and where the figures go."""
    lines = [f"{name}: {(work.__doc__ or '').splitlines()[0].split(': ', 1)[1]}" for name, work in WORKLOADS.items()]
    parser = argparse.ArgumentParser(
        prog="python -m bench", epilog="\n".join(lines), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", nargs="*", metavar="W", help=f"workloads (default: {' '.join(DEFAULT)})")
    parser.add_argument("--out", type=Path, default=RESULTS / time.strftime("%Y%m%d-%H%M%S.json"), help="JSON file")
    default = Scale()
    for item in fields(Scale):
        value = getattr(default, item.name)
        parser.add_argument(
            f"--{item.name.replace('_', '-')}", type=type(value), default=value, help=f"default {value}"
        )
    given = parser.parse_args()
    unknown = [name for name in given.work if name not in WORKLOADS]
    if unknown:
        parser.error(f"unknown: {' '.join(unknown)}; there are {' '.join(WORKLOADS)}")
    scale = replace(default, **{item.name: getattr(given, item.name) for item in fields(Scale)})
    return given.work or list(DEFAULT), scale, given.out


def measure(console: Console, names: list[str], scale: Scale) -> tuple[dict[str, Results], dict[str, Any]]:
    """Run these workloads on a server of their own."""
    results: dict[str, Results] = {}
    with (
        console.status("starting PostgreSQL") as status,
        tempfile.TemporaryDirectory(prefix="bench-") as folder,
        server() as found,
    ):
        about: dict[str, Any] = {**facts(found.dsn()), "cores": os.cpu_count(), "load": [os.getloadavg()[0]]}
        reference, skiplock = (Contender(found, kind, Path(folder)) for kind in (Reference, SkiplockSystem))
        try:
            for name in names:
                began = time.monotonic()
                bench = Bench(reference, skiplock, scale, partial(_say, status, name))
                results[name] = WORKLOADS[name](bench)
                about["load"].append(os.getloadavg()[0])
                console.print(f"{name} took {time.monotonic() - began:.0f} s", style="dim", highlight=False)
        finally:
            reference.close()
            skiplock.close()
    return results, about


def _say(status: Status, name: str, text: str) -> None:
    status.update(f"{name}: {text}")


def main() -> int:
    """The exit code: 0, or 1 if the run could not be finished."""
    names, scale, out = parse()
    console = Console() if sys.stdout.isatty() else Console(width=120)
    try:
        results, about = measure(console, names, scale)
    except BenchError as error:
        console.print(str(error), style="red", markup=False)
        return 1
    save(out, results, about)
    show(console, results, about)
    console.print(f"Every repetition: {out}", style="dim", highlight=False)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
