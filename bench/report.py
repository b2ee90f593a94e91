"""The figures for people (tables) and for machines (JSON)."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from bench.figures import (
    EMPTY,
    FREE,
    RAW,
    REFERENCE,
    SKIPLOCK,
    STAYING,
    Figures,
    Results,
    median,
    middle,
    note,
    number,
    ratios,
    settled,
    span,
    spread,
    values,
)
from bench.targets import verdicts

WHAT = {
    "W1": "enqueue in bulk",
    "W2": "enqueue one at a time",
    "W3": "one worker drains",
    "W3x2": "two workers drain",
    "W3x4": "four workers drain",
    "W5": "one worker drains, a million queued",
}
HANDLERS = {
    "W9": "20 queues × 3 priorities",
    "W10": "async handlers that wait, 500 at a time",
    "W11": "handlers in threads, 50 at a time",
    "W12": "larger arguments",
    "W13": "every tenth job fails once",
    "W16": "1,000 keys, one at a time of each",
}
BESIDE = {"W5": "many queued", "W5x10": "ten times as many queued", "W8": "long history"}
OURS = (REFERENCE, RAW, SKIPLOCK, EMPTY, FREE, STAYING)


def facts_line(facts: Mapping[str, Any]) -> str:
    """The surroundings in one line."""
    load = f"{min(facts['load']):.1f} to {max(facts['load']):.1f}"
    return (
        f"PostgreSQL {facts.get('server_version', '?')}, fsync {facts.get('fsync', '?')}, synchronous_commit "
        f"{facts.get('synchronous_commit', '?')}, shared_buffers {facts.get('shared_buffers', '?')}, "
        f"{facts.get('commits_s', '?')} single commits/s; Python {platform.python_version()}, {facts['cores']} cores, load {load}"
    )


def show(console: Console, results: Mapping[str, Results], facts: Mapping[str, Any]) -> None:
    """All of it; what was not measured is left out."""
    console.print(facts_line(facts), highlight=False)
    console.print("Numbers are medians (lowest–highest) of the repetitions.", style="dim", highlight=False)
    tables: list[Table | None] = [
        targets(results),
        *throughput(results),
        cpu(results),
        beside_empty(results),
        latency(results),
    ]
    tables += [idle(results), rounds(results), handlers(results), cost(results), memory(results)]
    for table in tables:
        if table is not None and table.row_count:
            console.print(table)
    for name, peer in facts.get("peers", {}).items():
        line = f"{name} {peer['version']}, {'Redis' if peer['store'] == 'redis' else 'PostgreSQL'}: {peer['settings']}"
        console.print(line, style="dim", markup=False, highlight=False)
    for kind, what in (("failed", "failed"), ("missing", "not measured")):
        for name, why in facts.get(kind, {}).items():
            console.print(f"{name} {what}: {why}", style="red" if kind == "failed" else "dim", markup=False)


def save(path: Path, results: Mapping[str, Results], facts: Mapping[str, Any], scale: Mapping[str, Any]) -> None:
    """Every repetition as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"facts": facts, "scale": scale, "results": results}, indent=1, default=str)
    path.write_text(text + "\n")


# -- the tables --------------------------------------------------------------------------------------------------------


def targets(results: Mapping[str, Results]) -> Table:
    """What skiplock must reach, and whether it did."""
    table = _table("Targets", "", "what", "measured", "target", "verdict")
    for verdict in verdicts(results):
        word = "[green]reached[/]" if verdict.reached else "[red]missed[/]"
        table.add_row(verdict.workload, verdict.what, verdict.measured, verdict.target, word)
    return table


def throughput(results: Mapping[str, Results]) -> list[Table]:
    """Jobs a second; where peers took part, a table a workload, best first."""
    names = [name for name in WHAT if name in results]
    plain = _table("Throughput, jobs/s; ratio: skiplock / reference, repetition by repetition", "", "what", "reference", "skiplock", "ratio")  # fmt: skip
    ranked: list[Table] = []
    for name in names:
        found = results[name]
        if any(label not in OURS for label in found):
            ranked.append(_ranking(name, found))
        else:
            ours, theirs = found.get(SKIPLOCK, []), found.get(REFERENCE, [])
            plain.add_row(name, WHAT[name], span(theirs, "jobs_s"), span(ours, "jobs_s"), spread(ratios(ours, theirs)))
            if RAW in found:
                ratio = spread(ratios(ours, found[RAW]))
                plain.add_row("", "… beside a raw INSERT of the same rows", span(found[RAW], "jobs_s"), "", ratio)
    return [plain, *ranked]


def _ranking(name: str, found: Results) -> Table:
    order = sorted(
        (label for label in found if label != EMPTY), key=lambda label: -(median(found[label], "jobs_s") or 0)
    )
    table = _table(f"{name}: {WHAT[name]}, jobs/s. {_ahead(order)}", "system", "jobs/s", "× reference", "note")
    for label in order:
        figures = found[label]
        row = [span(figures, "jobs_s"), spread(ratios(figures, found[REFERENCE])), note(figures)]
        table.add_row(label, *row, style=_style(label))
    return table


def _ahead(order: Sequence[str]) -> str:
    """`order`: best first. The raw loops are no rivals."""
    rivals = [label for label in order if label == SKIPLOCK or label not in OURS]
    if len(rivals) == 1:
        return ""
    if rivals[0] == SKIPLOCK:
        return "[green]skiplock is ahead of all.[/]"
    return f"[red]skiplock is behind {', '.join(rivals[: rivals.index(SKIPLOCK)])}.[/]"


def cpu(results: Mapping[str, Results]) -> Table:
    """Where the CPU time goes while draining."""
    columns = ("system", "worker", "server", "warm jobs/s", "run twice")
    table = _table("CPU time while draining, µs a job (warm: between the 10 % and the 90 % start)", "", *columns)
    for name in (n for n in ("W3", "W3x2", "W3x4") if n in results):
        for label, figures in results[name].items():
            row = [middle(figures, key) for key in ("worker_us", "server_us", "warm_jobs_s")]
            if any(row):
                table.add_row(name, label, *row, number(sum(values(figures, "twice"))))
    return table


def beside_empty(results: Mapping[str, Results]) -> Table:
    """W5, W5x10, W8."""
    table = _table("Drain beside much else, jobs/s; ratio: to the same drain on an empty system", "", "what", "empty", "full", "ratio")  # fmt: skip
    for name in (n for n in BESIDE if n in results):
        ours, theirs = results[name].get(SKIPLOCK, []), results[name].get(EMPTY, [])
        table.add_row(name, BESIDE[name], span(theirs, "jobs_s"), span(ours, "jobs_s"), spread(ratios(ours, theirs)))
    return table


def latency(results: Mapping[str, Results]) -> Table:
    """W4, W4half."""
    columns = ("system", "jobs/s", "p50", "p95", "p99", "max", "lost", "twice", "note")
    orders = {name: _soonest(results[name]) for name in ("W4", "W4half") if name in results}
    ahead = _ahead(orders["W4"]) if "W4" in orders else ""
    table = _table(f"From enqueue to the handler's start, milliseconds. {ahead}", "", *columns)
    for name, order in orders.items():
        for label in order:
            figures = results[name][label]
            cells = [middle(figures, "sent_s") or "50", *(middle(figures, key) for key in ("p50", "p95", "p99", "max"))]
            strays = [number(sum(values(figures, key))) for key in ("lost", "twice")]
            table.add_row(name, label, *cells, *strays, note(figures) or _late(figures), style=_style(label))
    return table


def _soonest(found: Results) -> list[str]:
    return sorted(found, key=lambda label: median(found[label], "p50") or float("inf"))


def _style(label: str) -> str | None:
    return "bold" if label == SKIPLOCK else None


def _late(figures: Sequence[Figures]) -> str:
    """An open loop that fell behind did not put on the load that was asked for."""
    lag, asked = max(values(figures, "lag_ms"), default=0.0), median(figures, "asked_s")
    full = median(figures, "full_rate")
    told = f"asked for {asked:,.0f}/s of {full:,.0f}/s" if asked and full else ""
    return ", ".join(filter(None, [told, f"enqueued up to {lag:,.0f} ms late" if lag > 100 else ""]))


def idle(results: Mapping[str, Results]) -> Table:
    """W7."""
    columns = ("system", "statements/s", "transactions/s (Redis: commands)", "CPU s in 30 s", "connections", "notifications, saturated", "note")  # fmt: skip
    table = _table("W7: an idle worker; notifications sent while a worker had more than it could do", *columns)
    keys = ("cpu_s_in_30s", "connections", "notifications")
    for label, figures in results.get("W7", {}).items():
        unsure = [f for f in figures if f.get("saturated") is False]
        told = note(figures) or ("not saturated: raise --drain" if unsure else "")
        asked = [middle(figures, "statements_s"), middle(figures, "transactions_s") or middle(figures, "commands_s")]
        table.add_row(label, *asked, *(middle(figures, key) for key in keys), told, style=_style(label))
    return table


def rounds(results: Mapping[str, Results]) -> Table | None:
    """W6: how the rate develops over the rounds."""
    found = {label: figures for label, figures in results.get("W6", {}).items() if figures}
    if not found:
        return None
    most = max(map(len, found.values()))
    shown = sorted({1, 2, 5, 10, 20, 50, 100, 200, most} & set(range(1, most + 1)))
    title = "W6: rounds beside an old snapshot, jobs/s by round; ratio: the last 3 rounds / rounds 2 to 4"
    table = _table(title, "system", *(f"round {nth}" for nth in shown), "rounds", "ratio", "note")
    for label in sorted(found, key=lambda label: -(values(found[label], "jobs_s") or [0.0])[-1]):
        figures, pair = found[label], settled(found[label])
        rates = values(figures, "jobs_s")
        cells = [number(rates[nth - 1]) if nth <= len(rates) else "" for nth in shown]
        ratio = "" if pair is None else f"{pair[1] / pair[0]:.2f}"
        table.add_row(label, *cells, str(len(rates)), ratio, note(figures), style=_style(label))
    return table


def handlers(results: Mapping[str, Results]) -> Table:
    """W9 to W13, W16."""
    table = _table("Other queues, handlers and arguments", "", "what", "system", "jobs/s", "ideal", "MiB/s", "ratio to first")  # fmt: skip
    for name in (n for n in HANDLERS if n in results):
        found = results[name]
        first = next(iter(found.values()))
        for label, figures in found.items():
            ratio = "" if figures is first else spread(ratios(figures, first))
            cells = [span(figures, "jobs_s"), middle(figures, "ideal_s"), middle(figures, "mib_s"), ratio]
            table.add_row(name, HANDLERS[name] if figures is first else "", label, *cells)
    return table


def cost(results: Mapping[str, Results]) -> Table:
    """W14."""
    found = results.get("W14", {})
    table = _table("W14: what a job costs the server, from bulk enqueue to history", "a job", *found)
    for key, what in _COSTS.items():
        thousand = 1_000 if key.endswith("statements") else 1
        cells = [median(figures, key) for figures in found.values()]
        if any(cell is not None for cell in cells):
            table.add_row(what, *("" if cell is None else number(cell * thousand) for cell in cells))
    return table


_COSTS = {
    "wal": "WAL bytes",
    "images": "… of these, full-page images",
    "enqueue_wal": "WAL bytes, enqueue",
    "drain_wal": "WAL bytes, drain",
    "enqueue_statement_wal": "WAL bytes of the statement enqueue_many",
    "claim_statement_wal": "WAL bytes of the statement claim",
    "settle_statement_wal": "WAL bytes of the statement settle",
    "statements": "statements, a thousand jobs",
    "enqueue_statements": "… enqueue_many",
    "claim_statements": "… claim",
    "settle_statements": "… settle",
    "rows": "row versions written",
    "dead_rows": "row versions left dead",
}


def memory(results: Mapping[str, Results]) -> Table:
    """W15."""
    found = results.get("W15", {}).get(SKIPLOCK, [])
    table = _table("W15: memory of one worker, MiB", "jobs", "at 10 %", "at 50 %", "at 100 %", "growth after warm-up", "a million jobs")  # fmt: skip
    for figures in found:
        keys: Sequence[str] = ("mib_at_10", "mib_at_50", "mib_at_100", "growth_mib", "mib_per_million")
        table.add_row(number(figures["jobs"]), *(number(figures[key]) for key in keys))
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for nth, column in enumerate(columns):
        words = column in ("", "system", "what", "note", "target", "verdict") or nth == 0
        table.add_column(column, justify="left" if words else "right")
    return table
