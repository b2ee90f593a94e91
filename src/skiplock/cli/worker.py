"""`skiplock worker`: run jobs. The parent supervises; each child is this command again, with --child."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

import click

from skiplock.app import Skiplock
from skiplock.cli import logs
from skiplock.cli.failures import database_errors, exit_code
from skiplock.cli.options import (
    DEFAULT_CONCURRENCY,
    MemorySize,
    Place,
    QueueRoom,
    database_options,
    internal,
    option,
    typed,
)
from skiplock.cli.session import session
from skiplock.cli.target import load_app
from skiplock.core.errors import SkiplockError
from skiplock.core.settings import LISTEN_VARIABLE, WorkerSettings
from skiplock.fleet import supervise
from skiplock.process import run_worker
from skiplock.work.startmap import StartMap

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


def wear_options(of: str, what: str) -> Callable[[F], F]:
    """When one of these processes is replaced."""
    jobs, age = click.IntRange(min=1), click.FloatRange(min=0.0, min_open=True)
    decorators = (
        option(f"{of}max-age", type=age, metavar="SECONDS", help=f"Replace {what} that has lived so long."),
        option(
            f"{of}max-memory", type=MemorySize(), metavar="SIZE", help=f"Replace {what} that holds more, as in 1GiB."
        ),
        option(f"{of}max-jobs", type=jobs, metavar="N", help=f"Replace {what} that has run so many jobs."),
    )

    def decorate(function: F) -> F:
        for decorator in decorators:
            function = decorator(function)
        return function

    return decorate


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
@option(
    "--listen-dsn",
    envvar=LISTEN_VARIABLE,
    metavar="DSN",
    help="A direct connection for notifications, where --dsn is a pooler in transaction mode.",
)
@wear_options("--", "a worker process")
@seconds_option("--vouch-for", _DEFAULTS.vouch_for, "Beat so long for a process that cannot itself; then kill it.")
@option(
    "--children",
    type=click.IntRange(1, 10_000),
    metavar="N",
    help='Child processes for tasks with executor="process".  [default: one a processor]',
)
@wear_options("--child-", "a child process")
@log_options
@internal("--child", is_flag=True)
@internal("--startmap", type=int)
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
        # An address in the environment, or in the app, goes with the database named there and not with one that is typed.
        if typed("listen_dsn") or typed("dsn"):
            listen_dsn = options["listen_dsn"] if typed("listen_dsn") else place.dsn
            app.settings = replace(app.settings, listen_dsn=listen_dsn)
        settings = _settings(app, **options)
        logs.subscribe(app.events)
        if not child:
            _warn_of_unserved(app, settings)
        if child or no_supervisor:
            _run(app, settings, options["startmap"], options["parent_pipe"])
        _supervise(app, settings, processes)
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
    keys = ("name", "grace", "beat_every", "lost_after", "drain", "poll_every", "vouch_for")
    wear = ("max_jobs", "max_memory", "max_age")
    if_given = ("children", *wear, *[f"child_{key}" for key in wear])
    given = {key: options[key] for key in if_given if options[key] is not None}
    return WorkerSettings(queues=served, **{key: options[key] for key in keys}, **given)


def _warn_of_unserved(app: Skiplock, settings: WorkerSettings) -> None:
    unserved: dict[str, list[str]] = {}
    for task in app.tasks.values():
        if task.spec.queue not in settings.queues:
            unserved.setdefault(task.spec.queue, []).append(task.name)
    for queue, tasks in unserved.items():
        app.events.emit("queue_not_served", queue=queue, tasks=tasks)


def _supervise(app: Skiplock, settings: WorkerSettings, processes: int) -> NoReturn:
    command = [sys.executable, "-m", "skiplock", *session().argv]
    _end(supervise(command, settings, processes=processes, dsn=app.dsn, schema=app.schema, events=app.events))


def _run(app: Skiplock, settings: WorkerSettings, startmap: int | None, parent_pipe: int | None) -> NoReturn:
    shared = None if startmap is None else StartMap(startmap)
    with database_errors():
        code = run_worker(app, settings, startmap=shared, parent_pipe=parent_pipe)
    _end(code)


def _end(code: int) -> NoReturn:
    """At once: a thread that never ends would keep the interpreter alive, and one that is being torn down heeds signals again, so
    that the echo of one would change the exit code."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
