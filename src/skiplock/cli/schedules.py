"""`skiplock schedules`: list, show, add, change, pause, resume, reset, run, delete, explain."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

import click
from rich.table import Table
from rich.text import Text

from skiplock.cli.database import connected, run_once
from skiplock.cli.enqueue import job_as_typed
from skiplock.cli.look import age, cell, console, emit, fields_grid, plain_json, say, table
from skiplock.cli.options import Moment, Place, confirm, database_options, json_option, option, yes_option
from skiplock.core.codec import check_name
from skiplock.core.job import NewJob
from skiplock.core.schedule import MISSED, OVERLAP, Cron, Window, every, fires
from skiplock.core.schedule_record import DEFAULTS, Policy, ScheduleRecord, Spec, job_spec, merged, rule_spec
from skiplock.desk.schedules import (
    add_schedule_call,
    change_schedule_call,
    delete_schedule_call,
    get_schedule_call,
    list_schedules_call,
    pause_schedule_call,
    reset_schedule_call,
    resume_schedule_call,
    run_schedule_call,
)
from skiplock.store.call import Call
from skiplock.task import check_max_attempts, check_priority

F = TypeVar("F", bound=Callable[..., Any])
name_argument = click.argument("name")
words_argument = click.argument("words", nargs=-1, metavar="[NAME=VALUE]...")
_STYLES = {"active": "green", "paused": "yellow", "orphaned": "red", "failing": "bold red", "ended": "dim"}


def _rule_options(function: F) -> F:
    for decorate in (
        option("--every", metavar="TIME", help="Instead of --cron: an interval, as in 10m or 1h30m."),
        option("--tz", metavar="ZONE", help="The zone of --cron, as in Europe/Berlin. Default: UTC."),
        option("--cron", metavar="EXPRESSION", help='As in "30 2 * * 1-5"; six fields begin with seconds.'),
    ):
        function = decorate(function)
    return function


def _how_options(function: F) -> F:
    """Everything else, handed over as `policy` and `job`."""

    @option("--app", metavar="MODULE:APP", help="Where the task is defined: its signature checks the arguments.")
    @option("--json-args", metavar="JSON", help="Arguments as one JSON object.")
    @option("--queue", help="Instead of the task's own (without --app: default).")
    @option("--priority", type=int, help="Larger runs sooner.")
    @option("--max-attempts", type=int, help="Instead of the task's own (without --app: 10).")
    @option("--start", type=Moment(), help="Fires from then on, as in 2027-03-01T09:00+01:00.")
    @option("--end", type=Moment(), help="Fires until before then.")
    @option("--missed", type=click.Choice(MISSED), help="Fires that no worker was there for. Default: latest.")
    @option("--missed-most", type=int, help="So many of them at most, with --missed all. Default: 100.")
    @option("--overlap", type=click.Choice(OVERLAP), help="While the last job has not ended. Default: allow.")
    @option("--waiting-most", type=int, help="So many fires wait, with --overlap queue. Default: 1.")
    @option("--jitter", metavar="TIME", help="Each job runs up to so much later.")
    @functools.wraps(function)
    def wrapper(
        *args: Any,
        start: datetime | None,
        end: datetime | None,
        missed: str | None,
        missed_most: int | None,
        overlap: str | None,
        waiting_most: int | None,
        jitter: str | None,
        **kwargs: Any,
    ) -> Any:
        policy = Policy(start, end, missed, missed_most, overlap, waiting_most, jitter).spec()
        return function(*args, policy=policy, **kwargs)

    return wrapper  # type: ignore[return-value]


@click.group()
def schedules() -> None:
    """See, make and change what runs by the clock."""


@schedules.command("list")
@json_option
@database_options
def list_schedules(place: Place, json: bool) -> None:
    """List the schedules with their last and next fires, in their own zones."""
    found = run_once(place.require(), list_schedules_call(place.schema))
    if json:
        emit({"schedules": [schedule.document() for schedule in found]})
    elif not found:
        say("there are no schedules", "dim")
    else:
        console().print(_table(found))


@schedules.command()
@name_argument
@json_option
@database_options
def show(place: Place, name: str, json: bool) -> None:
    """Show one schedule: rule, policies, fires in its zone and in UTC."""
    found = run_once(place.require(), get_schedule_call(name, place.schema))
    if json:
        emit(found.document())
    else:
        console().print(fields_grid(_page(found)))


@schedules.command()
@name_argument
@click.argument("task")
@words_argument
@_rule_options
@_how_options
@json_option
@database_options
def add(
    place: Place, name: str, task: str, words: tuple[str, ...], cron: str | None, tz: str | None, every: str | None,
    policy: Spec, app: str | None, json_args: str | None, json: bool, **how: Any,
) -> None:  # fmt: skip
    """Make a schedule NAME that enqueues TASK with these arguments, by --cron or --every.

    Arguments are read as by `skiplock enqueue`.
    """
    rule = rule_spec(cron, tz, every)
    if "cron" not in rule:
        raise click.UsageError("say when: give --cron or --every")
    job, dsn, schema = job_as_typed(place, app, task, json_args, words)
    spec = merged({"zone": "UTC"}, rule, DEFAULTS, policy, job_spec(_adjusted(job, **how)))
    with connected(dsn) as run:
        run(add_schedule_call(name, spec, schema))
        _answer(run(get_schedule_call(name, schema)), "made", json)


@schedules.command()
@name_argument
@words_argument
@_rule_options
@_how_options
@json_option
@database_options
def change(
    place: Place, name: str, words: tuple[str, ...], cron: str | None, tz: str | None, every: str | None,
    policy: Spec, app: str | None, json_args: str | None, json: bool, **how: Any,
) -> None:  # fmt: skip
    """Change what is given, of one declared in code until `reset`.

    With another rule or zone it counts from now and never fires the past. Arguments replace all that it has.
    """
    spec = merged(rule_spec(cron, tz, every), policy, _checked(**how))
    dsn, schema = place.require(), place.schema
    with connected(dsn) as run:
        if words or json_args is not None:
            job, _, _ = job_as_typed(place, app, run(get_schedule_call(name, schema)).task, json_args, words)
            spec["args"] = job.args
        if not spec:
            raise click.UsageError("say what to change")
        run(change_schedule_call(name, spec, schema))
        _answer(run(get_schedule_call(name, schema)), "changed", json)


@schedules.command()
@name_argument
@json_option
@database_options
def pause(place: Place, name: str, json: bool) -> None:
    """Let it fire no more until it is resumed, whatever restarts."""
    _act(place, name, pause_schedule_call, "paused", json)


@schedules.command()
@name_argument
@json_option
@database_options
def resume(place: Place, name: str, json: bool) -> None:
    """Let it fire again, from now on."""
    _act(place, name, resume_schedule_call, "resumed", json)


@schedules.command()
@name_argument
@json_option
@database_options
def reset(place: Place, name: str, json: bool) -> None:
    """Undo what was changed or paused by hand: as its code says again."""
    _act(place, name, reset_schedule_call, "reset", json)


@schedules.command()
@name_argument
@json_option
@database_options
def run(place: Place, name: str, json: bool) -> None:
    """Enqueue a job of it now, beside its fires."""
    job = run_once(place.require(), run_schedule_call(name, place.schema))
    if json:
        emit({"id": job, "schedule": name})
    else:
        say(f"job {job}: enqueued (schedule {name})", "green")


@schedules.command()
@name_argument
@yes_option
@json_option
@database_options
def delete(place: Place, name: str, yes: bool, json: bool) -> int:
    """Delete it, for good. Its jobs stay."""
    dsn = place.require()
    if not confirm(f"Delete schedule {name} from schema {place.schema} for good?", yes=yes):
        say("nothing deleted", "dim")
        return 1
    run_once(dsn, delete_schedule_call(name, place.schema))
    if json:
        emit({"name": name, "deleted": True})
    else:
        say(f"schedule {name}: deleted", "green")
    return 0


@schedules.command()
@click.argument("expression", required=False)
@option("--tz", metavar="ZONE", default="UTC", show_default=True, help="The zone of the expression.")
@option(
    "--every",
    "interval",
    envvar="SKIPLOCK_SCHEDULES_EXPLAIN_EVERY",
    metavar="TIME",
    help="Instead of an expression: an interval.",
)
@option("--after", type=Moment(), help="Show the fires after that time. Default: now.")
@option("--count", type=click.IntRange(1, 1000), default=5, show_default=True, help="So many fires.")
@json_option
def explain(
    expression: str | None, tz: str, interval: str | None, after: datetime | None, count: int, json: bool
) -> None:
    """Say in words when a cron EXPRESSION fires, and show its next fires. Needs no database."""
    if (expression is None) == (interval is None):
        raise click.UsageError("give an EXPRESSION or --every")
    rule = every(interval) if expression is None and interval is not None else Cron(expression or "", tz)
    zone = ZoneInfo(rule.zone) if isinstance(rule, Cron) else UTC
    found = list(islice(fires(rule, Window(), after or datetime.now(UTC)), count))
    if json:
        told = [{"utc": fire, "local": fire.astimezone(zone)} for fire in found]
        emit({"words": rule.words(), "zone": str(zone), "fires": told})
        return
    say(rule.words(), "bold")
    for fire in found:
        say(_both(fire, fire.astimezone(zone)))


def _checked(queue: str | None, priority: int | None, max_attempts: int | None) -> Spec:
    found: Spec = {}
    if queue is not None:
        found["queue"] = check_name(queue, "queue")
    if priority is not None:
        found["priority"] = check_priority(priority)
    if max_attempts is not None:
        found["max_attempts"] = check_max_attempts(max_attempts)
    return found


def _adjusted(job: NewJob, **how: Any) -> NewJob:
    return replace(job, **_checked(**how))


def _act(place: Place, name: str, act: Callable[[str, str], Call[None]], done: str, json: bool) -> None:
    with connected(place.require()) as run:
        run(act(name, place.schema))
        _answer(run(get_schedule_call(name, place.schema)), done, json)


def _answer(schedule: ScheduleRecord, done: str, json: bool) -> None:
    if json:
        emit(schedule.document())
        return
    coming = schedule.next()
    told = "" if coming is None or schedule.state != "active" else f"; next {_both(coming, schedule.local(coming))}"
    say(f"schedule {schedule.name}: {done}{told}", "green")


def _both(moment: datetime, local: datetime) -> str:
    """A fire in its zone and, if that is another time, in UTC."""
    told = f"{local:%Y-%m-%d %H:%M:%S %Z}"
    return (
        told if local.utcoffset() == UTC.utcoffset(None) else f"{told} = {moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    )


def _rule(schedule: ScheduleRecord) -> str:
    if schedule.cron is not None:
        return f"{schedule.cron} {schedule.zone}"
    return f"every {schedule.every:g} s"


def _marks(schedule: ScheduleRecord) -> str:
    """Where it comes from, and what was done to it by hand."""
    if not schedule.is_declared:
        return "by hand"
    return "in code, changed" if schedule.is_changed else "in code"


def _table(schedules: Sequence[ScheduleRecord]) -> Table:
    """Times in each one's own zone, which stands beside its rule."""
    found = table("name", "state", "rule", "next", "in", "last", "task", flexible=("name", "rule", "task"))
    for schedule in schedules:
        coming = schedule.next() if schedule.state in ("active", "failing") else None
        changed = ", changed" if schedule.is_changed and schedule.state != "paused" else ""
        found.add_row(
            cell(schedule.name),
            Text(schedule.state + changed, style=_STYLES[schedule.state]),
            cell(_rule(schedule)),
            cell(_short(schedule, coming)),
            cell(age(coming).removeprefix("in ")),
            cell(_short(schedule, schedule.last_fire)),
            cell(schedule.task),
        )
    return found


def _short(schedule: ScheduleRecord, moment: datetime | None) -> str:
    if moment is None:
        return ""
    local = schedule.local(moment)
    return f"{local:%m-%d %H:%M:%S}" if local.second else f"{local:%m-%d %H:%M}"


def _page(schedule: ScheduleRecord) -> list[tuple[str, object]]:
    rows: list[tuple[str, object]] = [
        ("name", schedule.name),
        ("state", Text(schedule.state, style=_STYLES[schedule.state])),
        ("made", _marks(schedule)),
        ("rule", _rule(schedule)),
        ("task", f"{schedule.task} (queue {schedule.queue}, priority {schedule.priority})"),
        ("args", plain_json(bytes(schedule.args).decode())),
    ]
    if schedule.problem is not None:
        rows.append(("problem", Text(schedule.problem, style="red")))
    else:
        rows.append(("in words", schedule.rule.words()))
    if bytes(schedule.changed) != b"null":
        rows.append(("changed by hand", plain_json(bytes(schedule.changed).decode())))
    rows += [
        ("missed", f"{schedule.missed}, at most {schedule.missed_most}"),
        ("overlap", f"queue, at most {schedule.waiting_most}" if schedule.overlap == "queue" else schedule.overlap),
    ]
    moments = {"start": schedule.start_at, "end": schedule.end_at, "last fire": schedule.last_fire}
    rows += [(name, _both(at, schedule.local(at))) for name, at in moments.items() if at is not None]
    if schedule.last_job is not None:
        rows.append(("last job", schedule.last_job))
    rows.append(("fires", f"{schedule.made} made, {schedule.skipped} skipped, {schedule.passed_over} missed"))
    if schedule.waiting:
        rows.append(("waiting", ", ".join(_both(at, schedule.local(at)) for at in schedule.waiting)))
    coming = [_both(at, schedule.local(at)) for at in schedule.upcoming(3, datetime.now(UTC))]
    return [*rows, ("next", "\n".join(coming) or "never")]
