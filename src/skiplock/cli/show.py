"""Jobs as people see them: the table of many, the page of one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from skiplock.cli.look import (
    STATE_STYLES,
    age,
    cell,
    clock,
    console,
    fields_grid,
    first_line,
    plain,
    plain_json,
    span,
    state,
    table,
)
from skiplock.core.flow import SEPARATOR
from skiplock.core.job import AttemptRecord, JobRecord

_VERDICT_STYLES = {"retry": "yellow", "snooze": "cyan", "dead": "bold red", "cancelled": "dim", "lost": "magenta"}
_MAX_PANEL = 110  # columns; longer lines are hard to read


def job_table(jobs: Sequence[JobRecord]) -> Table:
    """One line for each job."""
    found = table(
        "id",
        "state",
        "task",
        "queue",
        "attempt",
        "age",
        "note",
        right=("id", "attempt", "age"),
        flexible=("task", "queue", "note"),
    )
    for job in jobs:
        found.add_row(
            cell(job.id),
            state(job.state),
            cell(job.task),
            cell(job.queue, "" if job.queue != "default" else "dim"),
            cell(f"{job.attempt}/{job.max_attempts}", "" if job.attempt else "dim"),
            cell(age(job.enqueued_at)),
            _note(job),
        )
    return found


def _note(job: JobRecord) -> Text:
    """When it is due, and what went wrong."""
    parts = []
    if job.state in ("scheduled", "retryable") and job.run_at is not None:
        due = age(job.run_at)
        parts.append(Text(f"due {due}" if due.startswith("in ") else "due now", style="dim"))
    if job.blocked_on is not None:
        parts.append(cell(f"waits for {limit_text(job.blocked_on)}", "dim"))
    if job.expires_at is not None and not job.state.is_final:
        parts.append(Text(f"expires {age(job.expires_at)}", style="dim"))
    if job.error:
        parts.append(cell(first_line(job.error), "red" if job.state == "dead" else "yellow"))
    whole = Text(" · ").join(parts)
    whole.no_wrap, whole.overflow = True, "ellipsis"
    return whole


def print_job(to: Console, job: JobRecord) -> None:
    """Everything there is to know about one job."""
    title = Text.assemble((f"job {job.id}", "bold"), " · ", state(job.state))
    style = STATE_STYLES.get(job.state, "").removeprefix("bold ")
    to.print(Panel(fields_grid(_fields(job)), title=title, title_align="left", border_style=style, width=_width(to)))
    _section(to, "timeline", _timeline(job))
    for name, value in (("args", job.args), ("meta", job.meta), ("options", job.options), ("result", job.result)):
        if value is not None:
            _section(to, name, _pretty(value))
    for attempt in job.attempts:
        _print_attempt(to, attempt)


def _width(to: Console) -> int:
    return min(to.width, _MAX_PANEL)


def limit_text(key: str) -> str:
    """A limit's key as people read it: its name, and the value it has for this job."""
    name, _, value = key.partition(SEPARATOR)
    return f"{name} = {value}" if value else name


def unique_text(key: str) -> str:
    """A unique key: as it was given, or of which task and arguments; and its period."""
    parts = key.split(SEPARATOR)
    text = parts[0] if len(parts) % 2 else f"{parts[0]}, arguments {parts[1]}"
    return f"{text}, one in {span(float(parts[-2]))}" if len(parts) > 2 else text


def _flow_fields(job: JobRecord) -> list[tuple[str, object]]:
    flow = job.flow if isinstance(job.flow, dict) else {}
    rows: list[tuple[str, object]] = []
    if flow.get("unique") is not None:
        rows.append(("unique", unique_text(str(flow["unique"]))))
    if job.blocked_on is not None:
        rows.append(("waits for", limit_text(job.blocked_on)))
    if flow.get("fair") is not None:
        weight = f"  (weight {flow['weight']:g})" if isinstance(flow.get("weight"), int | float) else ""
        rows.append(("fair key", f"{flow['fair']}{weight}"))
    if job.expires_at is not None:
        rows.append(("expires", f"{clock(job.expires_at)}  ({_ago(job.expires_at)})"))
    return rows


def _fields(job: JobRecord) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = [
        ("task", Text(plain(job.task), style="bold")),
        ("queue", job.queue),
        ("priority", job.priority),
        ("attempt", f"{job.attempt} of {job.max_attempts}"),
    ]
    if job.losses:
        rows.append(("losses", f"{job.losses} (its worker vanished)"))
    if job.worker is not None:
        rows.append(("worker", job.worker))
    if job.tags:
        rows.append(("tags", ", ".join(job.tags)))
    rows.append(("enqueued", f"{clock(job.enqueued_at)}  ({_ago(job.enqueued_at)})"))
    if job.run_at is not None and not job.state.is_final and job.state != "running":
        rows.append(("due", f"{clock(job.run_at)}  ({_ago(job.run_at)})"))
    rows += _flow_fields(job)
    if job.error:
        rows.append(("error", Text(plain(job.error), style="red")))
    return rows


def _ago(moment: datetime) -> str:
    text = age(moment)
    return text if text == "now" or text.startswith("in ") else f"{text} ago"


def _timeline(job: JobRecord) -> Text:
    """What happened when, with the time from one point to the next."""
    lines, before = Text(), None
    for moment, text in sorted(_points(job), key=lambda point: point[0]):
        since = "" if before is None else f"+{span((moment - before).total_seconds())}".replace("+<", "<")
        lines.append(f"{clock(moment)}  {since:>8}  ", style="dim").append_text(text).append("\n")
        before = moment
    lines.rstrip()
    return lines


def _points(job: JobRecord) -> list[tuple[datetime, Text]]:
    found: list[tuple[datetime, Text]] = [(job.enqueued_at, Text("enqueued"))]
    for attempt in job.attempts:
        if attempt.started_at is not None:
            found.append((attempt.started_at, Text(f"attempt {attempt.attempt} started", style="blue")))
        text = f"attempt {attempt.attempt} ended: {plain(attempt.verdict)}"
        found.append((attempt.ended_at, Text(text, style=_verdict_style(attempt))))
    last = job.attempts[-1] if job.attempts else None
    # Failed attempts are on record; one that runs or succeeded is known by the job's own times only.
    open_end = job.state == "running" or (job.state.is_final and (last is None or last.verdict != job.state))
    if job.started_at is not None and open_end:
        found.append((job.started_at, Text(f"attempt {job.attempt} started", style="blue")))
    if job.run_at is not None and job.state in ("scheduled", "retryable"):
        found.append((job.run_at, Text("due", style="cyan")))
    if job.finished_at is not None and open_end:
        found.append((job.finished_at, state(job.state)))
    return found


def _verdict_style(attempt: AttemptRecord) -> str:
    return _VERDICT_STYLES.get(attempt.verdict, "yellow")


def _print_attempt(to: Console, attempt: AttemptRecord) -> None:
    error = ": ".join(part for part in (attempt.error_class, attempt.message) if part)
    head = Text.assemble(f"attempt {attempt.attempt} ", (plain(attempt.verdict), _verdict_style(attempt)))
    if error:
        head.append(f"  {plain(first_line(error))}", style=_verdict_style(attempt))
    took = None if attempt.started_at is None else (attempt.ended_at - attempt.started_at).total_seconds()
    where = f"on {plain(attempt.worker)}" if attempt.worker else ""
    details = [_ago(attempt.ended_at), "" if took is None else f"after {span(took)}", where]
    head.append("  " + ", ".join(detail for detail in details if detail), style="dim")
    body = attempt.traceback or (error if "\n" in error else "")
    _section(to, head, Text(plain(body).rstrip(), style="dim"))


def _section(to: Console, title: str | Text, body: Text) -> None:
    """Lines that are long stay whole, so that they can be copied."""
    to.print()
    to.print(Text(title, style="bold") if isinstance(title, str) else title, soft_wrap=True)
    for line in body.split("\n") if body else ():
        to.print(Text("  ").append_text(line), soft_wrap=True)


def _pretty(value: Any) -> Text:
    text = Text(plain_json(json.dumps(value, indent=2, ensure_ascii=False, default=str)), no_wrap=True)
    JSONHighlighter().highlight(text)
    return text


def complain(text: str) -> None:
    """One line of what did not work, on stderr; the command goes on."""
    console(stderr=True).print(Text(f"error: {plain(text)}", style="red"), soft_wrap=True)
