"""The figures for people (a table) and for machines (JSON)."""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bench.workloads import Figures, Results

TARGET = 0.25  # of the reference: what one worker process must reach with no-op jobs (W3)
WHAT = {
    "W1": "enqueue in bulk",
    "W2": "enqueue one at a time",
    "W3": "one worker drains",
    "W3x2": "two workers drain",
    "W5": "a million queued",
}
FASTER = tuple(WHAT)
REFERENCE, SKIPLOCK, FREE = "reference", "skiplock", "skiplock no snapshot"


def facts_line(facts: dict[str, Any]) -> str:
    """The surroundings in one line."""
    load = ", ".join(f"{x:.1f}" for x in facts["load"])
    return (
        f"PostgreSQL {facts['server_version']}, fsync {facts['fsync']}, synchronous_commit {facts['synchronous_commit']}, "
        f"shared_buffers {facts['shared_buffers']}, {facts['commits_s']} single commits/s; Python {platform.python_version()}, "
        f"{facts['cores']} cores, load {load}"
    )


def throughput(results: dict[str, Results]) -> Table:
    """Jobs a second, beside the reference of the same workload."""
    table = _table("Throughput, jobs/s", "", "", "reference", "skiplock", "ratio")
    for name in (n for n in FASTER if n in results):
        ours, theirs = results[name][SKIPLOCK], results[name][REFERENCE]
        table.add_row(name, WHAT[name], _span(theirs, "jobs_s"), _span(ours, "jobs_s"), _ratios(name, ours, theirs))
    return table


def cost(results: dict[str, Results]) -> Table:
    """Where the CPU time goes while draining."""
    table = _table("CPU time while draining, µs a job", "", "system", "worker", "server", "warm jobs/s", "run twice")
    for name in (n for n in ("W3", "W3x2") if n in results):
        for label, figures in results[name].items():
            row = [_median(figures, key) for key in ("worker_us", "server_us", "warm_jobs_s")]
            table.add_row(name, label, *row, str(sum(f["twice"] for f in figures)))
    return table


def idle(results: dict[str, Results]) -> Table:
    """W4 and W7."""
    table = _table("An idle worker", "", "", "skiplock")
    if "W4" in results:
        figures = results["W4"][SKIPLOCK]
        for key in ("p50", "p95", "p99", "max"):
            table.add_row("W4", f"enqueue to start at 50 jobs/s, {key}, ms", _span(figures, key))
        strays = "{} / {}".format(*(sum(f[key] for f in figures) for key in ("lost", "twice")))
        table.add_row("W4", "jobs lost / run twice", strays)
    if "W7" in results:
        table.add_row("W7", "transactions a second", _span(results["W7"][SKIPLOCK], "transactions_s"))
        table.add_row("W7", "CPU seconds in 30 s", _span(results["W7"][SKIPLOCK], "cpu_s_in_30s"))
    return table


def rounds(found: Results) -> Table:
    """W6: how the rate develops over the rounds."""
    labels = (REFERENCE, SKIPLOCK, FREE)
    table = _table("W6: rounds of 10,000 jobs beside an old snapshot, jobs/s", "round", *labels, "held / not")
    last = len(found[SKIPLOCK])
    for nth in sorted({1, 2, 5, 10, 20, last} & set(range(1, last + 1))):
        row = [found[label][nth - 1]["jobs_s"] for label in labels]
        table.add_row(str(nth), *map(_number, row), f"{row[1] / row[2]:.2f}")
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for nth, column in enumerate(columns):
        table.add_column(column, justify="left" if column in ("", "system") or nth == 0 else "right")
    return table


def show(console: Console, results: dict[str, Results], facts: dict[str, Any]) -> None:
    """All of it."""
    console.print(facts_line(facts), highlight=False)
    if any(n in results for n in FASTER):
        console.print(throughput(results))
    if "W3" in results or "W3x2" in results:
        console.print(cost(results))
    if "W4" in results or "W7" in results:
        console.print(idle(results))
    if "W6" in results:
        console.print(rounds(results["W6"]))
    if "W3" in results:
        ratio = statistics.median(ratios(results["W3"][SKIPLOCK], results["W3"][REFERENCE]))
        verdict = "[green]reached[/]" if ratio >= TARGET else "[red]missed[/]"
        console.print(f"One worker process: {ratio:.3f} of the reference loop; target {TARGET}: {verdict}")


def save(path: Path, results: dict[str, Results], facts: dict[str, Any]) -> None:
    """Every repetition as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"facts": facts, "results": results}, indent=1) + "\n")


def ratios(ours: Sequence[Figures], theirs: Sequence[Figures]) -> list[float]:
    """Repetition by repetition: they ran one right after the other."""
    return [a["jobs_s"] / b["jobs_s"] for a, b in zip(ours, theirs, strict=True)]


def _ratios(name: str, ours: Sequence[Figures], theirs: Sequence[Figures]) -> str:
    found = ratios(ours, theirs)
    median = statistics.median(found)
    text = f"{median:.3f} ({min(found):.3f}–{max(found):.3f})"
    if name != "W3":
        return text
    return f"[{'green' if median >= TARGET else 'red'}]{text}[/]"


def _values(figures: Sequence[Figures], key: str) -> list[float]:
    return [f[key] for f in figures if key in f]


def _median(figures: Sequence[Figures], key: str) -> str:
    values = _values(figures, key)
    return _number(statistics.median(values)) if values else ""


def _span(figures: Sequence[Figures], key: str) -> str:
    values = _values(figures, key)
    if len(set(values)) == 1:
        return _number(values[0])
    return f"{_number(statistics.median(values))} ({_number(min(values))}–{_number(max(values))})"


def _number(value: float) -> str:
    if value == int(value) or value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"
