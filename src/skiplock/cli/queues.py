"""`skiplock queues`: list, pause, resume, limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import click
from rich.table import Table
from rich.text import Text

from skiplock.cli.database import connected, run_once
from skiplock.cli.look import cell, console, emit, say, span, table
from skiplock.cli.options import Place, database_options, json_option
from skiplock.core.codec import check_name
from skiplock.desk.act import pause_call, resume_call
from skiplock.desk.find import QueueRecord, queues_call
from skiplock.desk.limits import limit_queue_call
from skiplock.store.call import Call

names_argument = click.argument("names", nargs=-1, required=True, metavar="QUEUE...")


@click.group()
def queues() -> None:
    """List, pause, resume and limit queues."""


@queues.command("list")
@json_option
@database_options
def list_queues(place: Place, json: bool) -> None:
    """List the queues that hold jobs or are paused."""
    found = run_once(place.require(), queues_call(place.schema))
    if json:
        emit({"queues": found})
    elif not found:
        say("no queues hold jobs", "dim")
    else:
        console().print(_queue_table(found))


@queues.command()
@names_argument
@json_option
@database_options
def pause(place: Place, names: tuple[str, ...], json: bool) -> None:
    """Let no worker claim from these queues until they are resumed. Running jobs go on."""
    _set(place, names, pause_call, paused=True, json=json)


@queues.command()
@names_argument
@json_option
@database_options
def resume(place: Place, names: tuple[str, ...], json: bool) -> None:
    """Let workers claim from these queues again."""
    _set(place, names, resume_call, paused=False, json=json)


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


def _set(
    place: Place, names: tuple[str, ...], act: Callable[[str, str], Call[None]], *, paused: bool, json: bool
) -> None:
    wanted = [check_name(name, "queue") for name in dict.fromkeys(names)]
    with connected(place.require()) as run:
        for name in wanted:
            run(act(name, place.schema))
    if json:
        emit({"queues": [{"name": name, "paused": paused} for name in wanted]})
        return
    for name in wanted:
        say(f"queue {name}: {'paused' if paused else 'resumed'}", "yellow" if paused else "green")


def _note(queue: QueueRecord) -> Text:
    parts = [Text("paused", style="yellow")] if queue.paused else []
    if queue.slots is not None:
        parts.append(Text(f"{queue.slots:,} at a time", style="dim"))
    return Text(" · ").join(parts)


def _queue_table(queues: Sequence[QueueRecord]) -> Table:
    numbers = ("waiting", "ready", "running", "dead")
    found = table("queue", *numbers, "oldest ready", "", right=(*numbers, "oldest ready"), flexible=("queue",))
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
