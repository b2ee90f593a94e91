"""`make bench`, or `python -m bench [W1 W2 … | all] [--full] [--peers [NAME …]]`. See README.md."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import psycopg
from rich.console import Console
from rich.status import Status

from bench import peers
from bench.adapter import SkiplockSystem
from bench.contender import ROOT, BenchError, Contender
from bench.estimate import estimate
from bench.reference import Reference
from bench.report import save, show
from bench.server import facts, server
from bench.workloads import FULL, QUICK, WORKLOADS, Bench, Results, Say, Scale, full_scale
from bench.workloads.base import calibrate
from skiplock.core.errors import SkiplockError
from skiplock.store.embedded import EmbeddedServer

RESULTS = ROOT / "bench" / "results"
Facts = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """What was asked for."""

    names: Sequence[str]
    scale: Scale
    peers: Sequence[str]
    out: Path


# -- the command line --------------------------------------------------------------------------------------------------


def parse() -> Plan:
    """The workloads, how much of them, beside whom, and where the figures go."""
    parser = _parser()
    given = parser.parse_args()
    _refuse(parser, "workload", given.work, [*WORKLOADS, "all"])
    _refuse(parser, "peer", given.peers or [], peers.NAMES)
    full = given.full or "all" in given.work
    scale = full_scale(Scale()) if full else Scale()
    stated = {f.name: getattr(given, f.name) for f in fields(Scale) if getattr(given, f.name) is not None}
    names = [name for name in given.work if name != "all"] or list(FULL if full else QUICK)
    beside = [] if given.peers is None else given.peers or list(peers.DEFAULT)
    return Plan(names, replace(scale, **stated), beside, given.out)


def _parser() -> argparse.ArgumentParser:
    lines = [f"{name}: {(work.__doc__ or '').splitlines()[0].split(': ', 1)[1]}" for name, work in WORKLOADS.items()]
    parser = argparse.ArgumentParser(
        prog="python -m bench", epilog="\n".join(lines), formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("work", nargs="*", metavar="W", help=f"workloads, or all (default: {' '.join(QUICK)})")
    parser.add_argument("--full", action="store_true", help="all workloads (or those named) at full size")
    parser.add_argument("--peers", nargs="*", metavar="NAME", help=f"other systems too; without a name: all of {' '.join(peers.NAMES)}")  # fmt: skip
    parser.add_argument("--out", type=Path, default=RESULTS / time.strftime("%Y%m%d-%H%M%S.json"), help="JSON file")
    quick, full = Scale(), full_scale(Scale())
    for item in fields(Scale):
        value, large = getattr(quick, item.name), getattr(full, item.name)
        note = f"default {value}" + (f", full {large}" if large != value else "")
        parser.add_argument(f"--{item.name.replace('_', '-')}", type=type(value), help=note)
    return parser


def _refuse(parser: argparse.ArgumentParser, what: str, given: Sequence[str], known: Sequence[str]) -> None:
    unknown = [name for name in given if name not in known]
    if unknown:
        parser.error(f"unknown {what}: {' '.join(unknown)}; there are {' '.join(known)}")


# -- the run -----------------------------------------------------------------------------------------------------------


def measure(console: Console, plan: Plan, results: dict[str, Results], about: Facts) -> None:
    """Run these workloads on a server of their own. Fills `results` and `about` as it goes, so that nothing is lost."""
    with console.status("starting PostgreSQL") as status, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        found = stack.enter_context(server())
        about |= {**facts(found.dsn()), "failed": {}}
        ours = [_enter(stack, Contender(found, kind, folder)) for kind in (Reference, SkiplockSystem)]
        beside = _peers(stack, found, folder, plan, about, status.update)
        bench = Bench(ours[0], ours[1], plan.scale, status.update, beside)
        bench = replace(bench, **_calibrated(bench, about))
        for name in plan.names:
            began = time.monotonic()
            try:
                results[name] = WORKLOADS[name](replace(bench, say=_named(status, name)))
            except (BenchError, psycopg.Error, SkiplockError) as error:
                about["failed"][name] = str(error).strip()
                _clean(bench)
            took = time.monotonic() - began
            about["load"].append(os.getloadavg()[0])
            about["took"][name] = round(took, 1)
            console.print(f"{name} took {took:.0f} s", style="dim", highlight=False)


def _enter(stack: ExitStack, contender: Contender) -> Contender:
    stack.callback(contender.close)
    return contender


def _peers(
    stack: ExitStack, found: EmbeddedServer, folder: Path, plan: Plan, about: Facts, say: Say
) -> list[Contender]:
    """Those that can be measured; about the others it is noted why not."""
    if not plan.peers:
        return []
    usable, missing = peers.prepare(plan.peers, say)
    about["missing"] = dict(missing)
    contenders = []
    for kind in usable:
        say(f"preparing {kind.name}")
        try:
            contenders.append(_enter(stack, Contender(found, kind, folder)))
            about["peers"][kind.name] = {"version": kind.version(), "settings": kind.settings, "store": kind.kind_of_store}  # fmt: skip
        except Exception as error:  # whatever a peer does must not end the run
            about["missing"][kind.name] = f"{type(error).__name__}: {str(error).strip()[-200:]}"
    return [c for c in contenders if c.kind.name not in about["missing"]]


def _calibrated(bench: Bench, about: Facts) -> dict[str, Any]:
    """How fast each peer is; without those that cannot even drain a little."""
    speeds: dict[str, float] = {}
    for peer in bench.peers:
        bench.say(f"calibrating {peer.label}")
        figures = calibrate(bench, peer)
        if "error" in figures:
            about["missing"][peer.label] = figures["error"]
        else:
            speeds[peer.label] = figures["jobs_s"]
    return {"peers": [p for p in bench.peers if p.label in speeds], "speeds": speeds}


def _clean(bench: Bench) -> None:
    """After a workload that failed: no worker may disturb the next one."""
    for contender in bench.everybody:
        try:
            contender.stop()
        except BenchError:
            pass


def _named(status: Status, name: str) -> Say:
    return lambda text: status.update(f"{name}: {text}")


def main() -> int:
    """The exit code: 0, or 1 if not everything could be measured."""
    plan = parse()
    console = Console() if sys.stdout.isatty() else Console(width=140)
    minutes = estimate(plan.names, plan.scale, len(plan.peers)) / 60
    console.print(f"{' '.join(plan.names)}: about {minutes:.0f} minutes", style="dim", highlight=False)
    results: dict[str, Results] = {}
    about: Facts = {"cores": os.cpu_count(), "load": [os.getloadavg()[0]], "took": {}, "peers": {}, "missing": {}}
    about["at"] = time.strftime("%Y-%m-%d %H:%M")
    whole = False
    try:
        measure(console, plan, results, about)
        whole = not about["failed"]
    except KeyboardInterrupt:
        console.print("interrupted: what is there", style="red")
    finally:
        if results:
            save(plan.out, results, about, asdict(plan.scale))
    show(console, results, about)
    console.print(f"Every repetition: {plan.out}", style="dim", highlight=False)
    return 0 if whole else 1


if __name__ == "__main__":
    raise SystemExit(main())
