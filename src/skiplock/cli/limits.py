"""`skiplock limits`: list, show, set, unset."""

from __future__ import annotations

from collections.abc import Sequence

import click
from rich.table import Table
from rich.text import Text

from skiplock.cli.database import run_once
from skiplock.cli.look import cell, console, emit, say, span, table
from skiplock.cli.options import Place, database_options, json_option, option
from skiplock.core.outcome import seconds
from skiplock.desk.limits import LimitRecord, limit_keys_call, limits_call, set_limit_call, unset_limit_call

name_argument = click.argument("name")
value_option = option("--value", metavar="KEY", help="Only the key with this value, e.g. customer:42.")


@click.group()
def limits() -> None:
    """Show and change limits on jobs that run at a time, and on rates."""


@limits.command("list")
@json_option
@database_options
def list_limits(place: Place, json: bool) -> None:
    """List the limits, with what they hold and what waits for them."""
    found = run_once(place.require(), limits_call(place.schema))
    if json:
        emit({"limits": found})
    elif not found:
        say("no limits", "dim")
    else:
        console().print(_table(found, "limit"))


@limits.command()
@name_argument
@option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most this many keys.")
@json_option
@database_options
def show(place: Place, name: str, limit: int, json: bool) -> None:
    """Show the keys of a limit, those with the longest lines first."""
    found = run_once(place.require(), limit_keys_call(name, place.schema, most=limit))
    if json:
        emit({"name": name, "keys": found})
    elif not found:
        say(f"limit {name}: no key of it is in use", "dim")
    else:
        console().print(_table(found, "key"))


@limits.command("set")
@name_argument
@value_option
@option("--slots", type=int, metavar="N", help="So many jobs at a time; 0: none.")
@option("--rate", type=float, metavar="N", help="So many starts in each --per; 0: none.")
@option("--per", metavar="TIME", help="As in 1s, 5m, 1h. Default: 1s, or as it was.")
@option("--burst", type=int, metavar="N", help="So many starts at once after a quiet time. Default: 1, or as it was.")
@json_option
@database_options
def set_limit(
    place: Place,
    name: str,
    value: str | None,
    slots: int | None,
    rate: float | None,
    per: str | None,
    burst: int | None,
    json: bool,
) -> None:
    """Change a limit at once, also for the jobs that are queued, whatever the code says."""
    call = set_limit_call(name, place.schema, value=value, slots=slots, rate=rate, per=per, burst=burst)
    run_once(place.require(), call)
    length = None if per is None else seconds(per, "per")
    if json:
        emit({"name": name, "value": value, "slots": slots, "rate": rate, "per": length, "burst": burst})
    else:
        say(f"limit {name if value is None else value}: set", "green")


@limits.command()
@name_argument
@value_option
@json_option
@database_options
def unset(place: Place, name: str, value: str | None, json: bool) -> None:
    """Let what the code says count again."""
    found = run_once(place.require(), unset_limit_call(name, place.schema, value=value))
    if json:
        emit({"name": name, "value": value, "was_set": found})
    else:
        say(
            f"limit {name if value is None else value}: {'as the code says' if found else 'was not set'}",
            "green" if found else "dim",
        )


def _table(limits: Sequence[LimitRecord], first: str) -> Table:
    numbers = ("held", "waiting") if first == "key" else ("keys", "held", "waiting")
    found = table(first, "at most", *numbers, "next start", "", right=(*numbers, "next start"), flexible=(first,))
    for limit in limits:
        found.add_row(
            cell(limit.name if first == "limit" else limit.value or limit.name),
            cell(_rule(limit)),
            *[cell(f"{count:,}", "" if count else "dim") for count in (getattr(limit, name) for name in numbers)],
            cell(None if limit.next_start is None else f"in {span(limit.next_start)}"),
            Text("set by hand", style="yellow") if limit.by_hand else Text(""),
        )
    return found


def _rule(limit: LimitRecord) -> str:
    parts = []
    if limit.slots is not None:
        parts.append(f"{limit.slots:,} at a time")
    if limit.rate is not None and limit.per is not None:
        burst = f", {limit.burst} at once" if (limit.burst or 1) > 1 else ""
        parts.append(f"{limit.rate:g} in {span(limit.per)}{burst}")
    return " · ".join(parts) or "as each job says"
