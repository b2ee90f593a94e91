"""`skiplock tasks`: list the paused ones, pause, resume."""

from __future__ import annotations

from datetime import datetime

import click

from skiplock.cli.database import run_once
from skiplock.cli.look import cell, clock, console, emit, say, table
from skiplock.cli.options import Place, database_options, json_option
from skiplock.cli.pauses import act_on, pause_options, tell_pauses
from skiplock.desk.queues import pause_task_call, paused_tasks_call, resume_task_call

names_argument = click.argument("names", nargs=-1, required=True, metavar="TASK...")


@click.group()
def tasks() -> None:
    """Pause and resume tasks, whatever queues their jobs are in."""


@tasks.command("list")
@json_option
@database_options
def list_tasks(place: Place, json: bool) -> None:
    """List the tasks that are paused."""
    found = run_once(place.require(), paused_tasks_call(place.schema))
    if json:
        emit({"tasks": found})
    elif not found:
        say("no task is paused", "dim")
    else:
        shown = table("task", "paused since", "until", flexible=("task",))
        for task in found:
            until = "resumed" if task.resume_at is None else clock(task.resume_at)
            shown.add_row(cell(task.name), cell(clock(task.paused_at)), cell(until))
        console().print(shown)


@tasks.command()
@names_argument
@pause_options
@json_option
@database_options
def pause(place: Place, names: tuple[str, ...], length: str | None, until: datetime | None, json: bool) -> None:
    """Let no worker start jobs of these tasks until they are resumed. Running jobs go on.

    The names need not be known: a job of a paused task waits in its queue, and others pass it by.
    """
    found = act_on(place, names, "task", lambda name: pause_task_call(name, place.schema, length=length, until=until))
    tell_pauses("tasks", found, paused=True, json=json)


@tasks.command()
@names_argument
@json_option
@database_options
def resume(place: Place, names: tuple[str, ...], json: bool) -> None:
    """Let workers start jobs of these tasks again."""
    found = act_on(place, names, "task", lambda name: resume_task_call(name, place.schema))
    tell_pauses("tasks", found, paused=False, json=json)
