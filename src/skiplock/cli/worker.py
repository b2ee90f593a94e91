"""`skiplock worker`: run jobs. The parent supervises; each child is this command again, with --child."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from skiplock.app import Skiplock
from skiplock.cli import logs
from skiplock.cli.failures import database_errors, exit_code
from skiplock.cli.options import DEFAULT_CONCURRENCY, Place, QueueRoom, database_options, internal, option
from skiplock.cli.session import session
from skiplock.cli.target import load_app
from skiplock.core.errors import SkiplockError
from skiplock.core.settings import WorkerSettings
from skiplock.fleet import run_worker, supervise

F = TypeVar("F", bound=Callable[..., Any])
_DEFAULTS = WorkerSettings()
_LEVELS = ("debug", "info", "warning", "error")

queue_option = option(
    "--queue",
    type=QueueRoom(),
    multiple=True,
    metavar="NAME[=N]",
    help=f"Serve this queue, N jobs at a time ({DEFAULT_CONCURRENCY}). Repeatable. Default: the queues of the app's tasks.",
)


def log_options(function: F) -> F:
    """--log-format and --log-level."""
    formats, levels = click.Choice(["text", "json"]), click.Choice(_LEVELS, case_sensitive=False)
    function = option("--log-level", type=levels, default="info", show_default=True, help="Least level.")(function)
    return option("--log-format", type=formats, default="text", show_default=True, help="Form of the log.")(function)


def seconds_option(name: str, default: float, help: str) -> Callable[[F], F]:
    """An option that takes seconds."""
    kind = click.FloatRange(min=0.0, min_open=name != "--grace")
    return option(name, type=kind, default=default, show_default=True, metavar="SECONDS", help=help)


@click.command(short_help="Run the jobs of an app.")
@click.argument("target", metavar="MODULE:APP")
@queue_option
@option("--processes", type=click.IntRange(1, 1024), default=1, show_default=True, help="Worker processes.")
@option("--no-supervisor", is_flag=True, help="Run in this very process: nobody restarts it.")
@seconds_option("--grace", _DEFAULTS.grace, "For running handlers to finish, once told to stop.")
@option("--drain", is_flag=True, help="Stop when the queues are empty.")
@option("--name", default="", help="Shown to people.  [default: host:pid]")
@seconds_option("--beat-every", _DEFAULTS.beat_every, "Heartbeat.")
@seconds_option("--lost-after", _DEFAULTS.lost_after, "No beat for so long: others take its jobs.")
@seconds_option("--poll-every", _DEFAULTS.poll_every, "Look for work at least so often.")
@log_options
@internal("--child", is_flag=True)
@internal("--startmap", type=click.Path(path_type=Path))
@internal("--parent-pipe", type=int)
@database_options
def worker(target: str, place: Place, processes: int, no_supervisor: bool, child: bool, **options: Any) -> int:
    """Run the jobs of MODULE:APP, as in `skiplock worker myapp.jobs:app --queue mail=20 --processes 2`.

    SIGTERM or Ctrl-C: finish what runs within the grace period and give back the rest. Twice: at once.
    """
    if no_supervisor and processes > 1:
        raise click.UsageError("--no-supervisor runs one process: leave out --processes")
    logs.install(options["log_format"], options["log_level"])
    try:
        app = place.turn(load_app(target))
        settings = _settings(app, **options)
        logs.subscribe(app.events)
        if not child:
            _warn_of_unserved(app, settings)
        if child or no_supervisor:
            _run(app, settings, options["startmap"], options["parent_pipe"])
        return _supervise(app, settings, processes)
    except SkiplockError as error:
        if options["log_format"] == "text":
            raise
        logs.failed(error)
        return exit_code(error)


def _settings(app: Skiplock, *, queue: Sequence[tuple[str, int]], **options: Any) -> WorkerSettings:
    served = dict(queue)
    if len(served) < len(queue):
        names = [name for name, _ in queue]
        twice = next(name for name in names if names.count(name) > 1)
        raise click.UsageError(f"--queue {twice}: given twice")
    if not served:
        named = sorted({"default"} | {task.spec.queue for task in app.tasks.values()})
        served = dict.fromkeys(named, DEFAULT_CONCURRENCY)
    keys = ("name", "grace", "beat_every", "lost_after", "drain", "poll_every")
    return WorkerSettings(queues=served, **{key: options[key] for key in keys})


def _warn_of_unserved(app: Skiplock, settings: WorkerSettings) -> None:
    unserved: dict[str, list[str]] = {}
    for task in app.tasks.values():
        if task.spec.queue not in settings.queues:
            unserved.setdefault(task.spec.queue, []).append(task.name)
    for queue, tasks in unserved.items():
        app.events.emit("queue_not_served", queue=queue, tasks=tasks)


def _supervise(app: Skiplock, settings: WorkerSettings, processes: int) -> int:
    command = [sys.executable, "-m", "skiplock", *session().argv]
    return supervise(
        command, processes=processes, dsn=app.dsn, schema=app.schema, grace=settings.grace, events=app.events
    )


def _run(app: Skiplock, settings: WorkerSettings, startmap: Path | None, parent_pipe: int | None) -> NoReturn:
    with database_errors():
        code = run_worker(app, settings, startmap_path=startmap, parent_pipe=parent_pipe)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # a handler's thread that never ends would keep the interpreter alive
