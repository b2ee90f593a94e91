"""`skiplock workers`: list."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.table import Table
from rich.text import Text

from skiplock.cli.database import run_once
from skiplock.cli.look import age, cell, console, emit, say, span, table
from skiplock.cli.options import Place, database_options, json_option
from skiplock.desk.find import WorkerRecord, workers_call


@click.group()
def workers() -> None:
    """See the worker processes."""


@workers.command("list")
@json_option
@database_options
def list_workers(place: Place, json: bool) -> None:
    """List the worker processes that are registered, lost ones in red."""
    found = run_once(place.require(), workers_call(place.schema))
    if json:
        emit({"workers": found})
    elif not found:
        say("no workers are registered", "dim")
    else:
        console().print(_worker_table(found))


def _worker_table(workers: Sequence[WorkerRecord]) -> Table:
    right = ("id", "pid", "running", "up", "silent for")
    found = table(
        "id", "state", "name", "pid", "running", "up", "silent for", "queues", right=right, flexible=("name", "queues")
    )
    for worker in workers:
        style = "red" if worker.lost else ""
        found.add_row(
            cell(worker.id, style),
            Text("lost", style="bold red") if worker.lost else cell(worker.state, _state_style(worker.state)),
            cell(_name(worker), style),
            cell(worker.pid, style),
            cell(worker.running, style),
            cell(age(worker.started_at), style),
            cell(span(worker.silent_for), style),
            cell(" ".join(f"{name}={room}" for name, room in worker.queues.items()), style or "dim"),
        )
    return found


def _state_style(state: str) -> str:
    return "green" if state == "running" else "yellow"


def _name(worker: WorkerRecord) -> str:
    """The name; with the host where it does not say so itself."""
    if worker.name == f"{worker.host}:{worker.pid}":
        return worker.host  # the default name: its pid has a column
    return worker.name if worker.host in worker.name else f"{worker.name} @{worker.host}"
