"""`skiplock queues`: list, pause, resume, limit, bound, age."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click
from rich.table import Table
from rich.text import Text

from skiplock.cli.database import run_once
from skiplock.cli.look import cell, clock, console, emit, say, span, table
from skiplock.cli.options import Place, database_options, json_option
from skiplock.cli.pauses import act_on, pause_options, tell_pauses
from skiplock.core.codec import check_name
from skiplock.core.outcome import seconds
from skiplock.desk.find import QueueRecord, queues_call
from skiplock.desk.limits import limit_queue_call
from skiplock.desk.queues import age_call, bound_call, pause_call, resume_call

names_argument = click.argument("names", nargs=-1, required=True, metavar="QUEUE...")


@click.group()
def queues() -> None:
    """List, pause, resume, limit and bound queues."""


@queues.command("list")
@json_option
@database_options
def list_queues(place: Place, json: bool) -> None:
    """List the queues that hold jobs, are paused or have rules."""
    found = run_once(place.require(), queues_call(place.schema))
    if json:
        emit({"queues": found})
    elif not found:
        say("no queues hold jobs", "dim")
    else:
        console().print(_queue_table(found))


@queues.command()
@names_argument
@pause_options
@json_option
@database_options
def pause(place: Place, names: tuple[str, ...], length: str | None, until: datetime | None, json: bool) -> None:
    """Let no worker claim from these queues until they are resumed. Running jobs go on."""
    found = act_on(place, names, "queue", lambda name: pause_call(name, place.schema, length=length, until=until))
    tell_pauses("queues", found, paused=True, json=json)


@queues.command()
@names_argument
@json_option
@database_options
def resume(place: Place, names: tuple[str, ...], json: bool) -> None:
    """Let workers claim from these queues again."""
    found = act_on(place, names, "queue", lambda name: resume_call(name, place.schema))
    tell_pauses("queues", found, paused=False, json=json)


@queues.command()
@click.argument("name", metavar="QUEUE")
@click.argument("slots", metavar="SLOTS|none")
@json_option
@database_options
def limit(place: Place, name: str, slots: str, json: bool) -> None:
    """Let at most SLOTS jobs of a queue run at a time, over all workers; none: as many as they have room for."""
    if slots != "none" and not (slots.isascii() and slots.isdigit() and len(slots) < 8):
        raise click.UsageError(f"{slots!r}: give a whole number, or none")
    number = None if slots == "none" else int(slots)
    run_once(place.require(), limit_queue_call(check_name(name, "queue"), number, place.schema))
    if json:
        emit({"queues": [{"name": name, "slots": number}]})
    else:
        say(f"queue {name}: {'no limit' if number is None else f'{number:,} at a time'}", "green")


@queues.command()
@click.argument("name", metavar="QUEUE")
@click.argument("most", metavar="JOBS|none")
@json_option
@database_options
def bound(place: Place, name: str, most: str, json: bool) -> None:
    """Refuse enqueues that would make a queue hold more than JOBS ready and waiting jobs; none: refuse none."""
    if most != "none" and not (most.isascii() and most.isdigit() and len(most) < 8):
        raise click.UsageError(f"{most!r}: give a whole number, or none")
    number = None if most == "none" else int(most)
    run_once(place.require(), bound_call(check_name(name, "queue"), number, place.schema))
    if json:
        emit({"queues": [{"name": name, "max_depth": number}]})
    else:
        say(f"queue {name}: {'no bound' if number is None else f'at most {number:,} jobs'}", "green")


@queues.command()
@click.argument("name", metavar="QUEUE")
@click.argument("every", metavar="TIME|none")
@json_option
@database_options
def age(place: Place, name: str, every: str, json: bool) -> None:
    """Let a queue's ready jobs rise by one in priority for each TIME (5m) that they wait; none: no longer."""
    length = None if every == "none" else seconds(every, "age")
    run_once(place.require(), age_call(check_name(name, "queue"), length, place.schema))
    if json:
        emit({"queues": [{"name": name, "age_every": length}]})
    else:
        say(f"queue {name}: {'no ageing' if length is None else f'+1 in priority for each {span(length)}'}", "green")


def _note(queue: QueueRecord) -> Text:
    parts = []
    if queue.paused:
        until = "" if queue.resume_at is None else f" until {clock(queue.resume_at)}"
        parts.append(Text(f"paused{until}", style="yellow"))
    if queue.slots is not None:
        parts.append(Text(f"{queue.slots:,} at a time", style="dim"))
    if queue.max_depth is not None:
        parts.append(Text(f"at most {queue.max_depth:,}", style="dim"))
    if queue.age_every is not None:
        parts.append(Text(f"+1 each {span(queue.age_every)}", style="dim"))
    return Text(" · ").join(parts)


def _queue_table(queues: Sequence[QueueRecord]) -> Table:
    numbers = ("waiting", "ready", "running", "dead")
    found = table("queue", *numbers, "oldest ready", "", right=(*numbers, "oldest ready"), flexible=("queue", ""))
    styles = {"running": "blue", "dead": "red"}
    for queue in queues:
        counts = [(getattr(queue, name), styles.get(name, "")) for name in numbers]
        found.add_row(
            cell(queue.name),
            *[cell(f"{count:,}", style if count else "dim") for count, style in counts],
            cell(None if queue.oldest_ready is None else span(queue.oldest_ready)),
            _note(queue),
        )
    return found
