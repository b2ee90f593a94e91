"""`skiplock enqueue`: one job, typed by its task if the app is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import click
import msgspec

from skiplock.cli import arguments
from skiplock.cli.database import run_once
from skiplock.cli.look import emit, say
from skiplock.cli.options import Moment, Place, database_options, json_option, option
from skiplock.cli.target import load_app
from skiplock.core.codec import check_name, plain_json
from skiplock.core.depth import DEEP_REASON, too_deep
from skiplock.core.job import NewJob
from skiplock.core.outcome import MAX_DELAY, seconds
from skiplock.core.settings import Settings
from skiplock.produce.enqueue import enqueue_call
from skiplock.task import MAX_META_BYTES, Task, check_max_attempts, check_priority, check_tags


@click.command(short_help="Enqueue one job.")
@click.argument("task")
@click.argument("words", nargs=-1, metavar="[NAME=VALUE]...")
@option("--app", metavar="MODULE:APP", help="Where the task is defined: its signature checks the arguments.")
@option("--json-args", metavar="JSON", help="Arguments as one JSON object.")
@option("--queue", help="Instead of the task's own (without --app: default).")
@option("--priority", type=int, help="Larger runs sooner.")
@option("--delay", metavar="TIME", help="Run after that time: 90s, 5m, 1h30m, 2d.")
@option("--at", type=Moment(), help="Run at that time, as in 2027-03-01T09:00+01:00.")
@option("--max-attempts", type=int, help="Instead of the task's own (without --app: 10).")
@option("--tag", multiple=True, help="In addition to the task's own. Repeatable.")
@option("--meta", metavar="NAME=VALUE", multiple=True, help="Metadata, read as arguments are. Repeatable.")
@json_option
@database_options
def enqueue(
    place: Place,
    task: str,
    words: tuple[str, ...],
    app: str | None,
    json_args: str | None,
    json: bool,
    **how: Any,
) -> None:
    """Enqueue one job of TASK with these arguments.

    A VALUE that parses as JSON is JSON, any other is text. With --app, it is turned into what the task's signature
    says, or refused; a text parameter takes it as it stands. Without --app nothing is known of the task: the job is
    stored under that name, and its worker will see.
    """
    job, dsn, schema = job_as_typed(place, app, task, json_args, words)
    job = _adjusted(job, **how)
    (job_id,) = run_once(dsn, enqueue_call([job], schema))
    if json:
        emit({"id": job_id, "task": job.task, "queue": job.queue})
    else:
        say(f"job {job_id}: enqueued ({job.task}, queue {job.queue})", "green")


def job_as_typed(
    place: Place, app: str | None, task: str, json_args: str | None, words: Sequence[str]
) -> tuple[NewJob, str, str]:
    """The job that these words mean, and the DSN and schema to store it in. Raises SkiplockErrors and UsageErrors."""
    given, typed = arguments.whole(json_args), arguments.split(words, "argument")
    if app is None:
        return _untyped(task, given, typed), place.require(), place.schema
    found = place.turn(load_app(app))
    return _typed(found.find_task(task), given, typed), found.dsn, found.schema


def _typed(task: Task[..., Any], given: arguments.Texts, words: dict[str, str]) -> NewJob:
    return task.job(**arguments.typed(task.spec, given, words))


def _untyped(task: str, given: arguments.Texts, words: dict[str, str]) -> NewJob:
    texts = {name: arguments.as_json(value) for name, value in words.items()}
    args = arguments.document(arguments.merged(given, texts))
    size, limit = len(args.encode()), Settings().max_args_bytes
    if size > limit:
        raise click.UsageError(f"the arguments are {size:,} bytes of JSON, at most {limit:,} are allowed")
    if too_deep(args):
        raise click.UsageError(f"the arguments: what they hold {DEEP_REASON}")
    return NewJob(check_name(task, "task name"), args)


def _adjusted(
    job: NewJob,
    *,
    queue: str | None,
    priority: int | None,
    delay: str | None,
    at: datetime | None,
    max_attempts: int | None,
    tag: Sequence[str],
    meta: Sequence[str],
) -> NewJob:
    """The job with what the options say, checked as `task.using(…)` would."""
    if delay is not None and at is not None:
        raise click.UsageError("--delay and --at: give one of them")
    return replace(
        job,
        queue=job.queue if queue is None else check_name(queue, "queue"),
        priority=job.priority if priority is None else check_priority(priority),
        delay=None if delay is None else _delay(delay),
        run_at=at,
        max_attempts=job.max_attempts if max_attempts is None else check_max_attempts(max_attempts),
        tags=check_tags([*job.tags, *tag]),
        meta=_meta(meta) if meta else job.meta,
    )


def _delay(text: str) -> float:
    found = seconds(text, "--delay")
    if found > MAX_DELAY:
        raise click.UsageError(f"--delay {text}: more than 100 years away")
    return found


def _meta(words: Sequence[str]) -> str:
    texts = {name: arguments.as_json(value) for name, value in arguments.split(words, "--meta").items()}
    return plain_json(msgspec.json.decode(arguments.document(texts)), "--meta", MAX_META_BYTES)
