"""The command `skiplock`: finds the command, runs it, and turns whatever happens into an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from skiplock._version import __version__
from skiplock.cli.failures import CODES, INTERRUPTED, show_error, show_usage_error
from skiplock.cli.options import json_option, option
from skiplock.cli.session import Session
from skiplock.core.errors import SkiplockError

# Modules are imported when their command is used, so that a worker does not carry what draws tables.
_COMMANDS = {
    "dev": "dev:dev",
    "worker": "worker:worker",
    "enqueue": "enqueue:enqueue",
    "jobs": "jobs:jobs",
    "queues": "queues:queues",
    "limits": "limits:limits",
    "tasks": "tasks:tasks",
    "workers": "workers:workers",
    "schedules": "schedules:schedules",
    "db": "db:db",
}
_EPILOG = "\b\nExit codes:\n" + "\n".join(f"  {code:>3}  {text}" for code, text in CODES.items())


class Root(click.Group):
    """The group of all commands. Every way out leads through `main`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return ["demo", *_COMMANDS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _COMMANDS:
            module, _, name = _COMMANDS[cmd_name].partition(":")
            found: click.Command = getattr(import_module(f"skiplock.cli.{module}"), name)
            return found
        return super().get_command(ctx, cmd_name)

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        """Run and exit, whatever the mode: the codes are ours."""
        argv = tuple(sys.argv[1:] if args is None else args)
        session = Session(argv, json="--json" in argv)
        try:
            code = super().main(list(argv), "skiplock", complete_var, standalone_mode=False, obj=session, **extra)
        except SkiplockError as error:
            code = show_error(error, as_json=session.json)
        except click.ClickException as error:
            code = show_usage_error(error, as_json=session.json)
        except click.Abort:
            code = INTERRUPTED
        sys.exit(code if isinstance(code, int) else 0)


@click.group(
    cls=Root,
    invoke_without_command=True,
    epilog=_EPILOG,
    context_settings={
        "auto_envvar_prefix": "SKIPLOCK",
        "max_content_width": 100,
        "help_option_names": ["-h", "--help"],
    },
)
@click.version_option(__version__, message="skiplock %(version)s")
@click.pass_context
def cli(context: click.Context) -> None:
    """Background jobs for Python on PostgreSQL.

    Every option can be set by an environment variable; each command's --help names them.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


@cli.command(short_help="Watch it at work, without a database.")
@option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    default="demo-output",
    show_default=True,
    help="Folder for the files the demo makes.",
)
@option("--seconds", type=click.FloatRange(min=20), default=110, show_default=True, help="Time limit.")
@option("--dsn", metavar="DSN", help="Use this database, which no demo was in, instead of a temporary one.")
@json_option
def demo(dsn: str | None, output: Path, seconds: float, json: bool) -> int:
    """Watch skiplock at work: mails, invoices, webhooks, and a worker that is killed on the way.

    Starts a temporary PostgreSQL of its own. The database in the environment is left alone.
    """
    from skiplock.cli.demo.story import run_demo

    return run_demo(json_output=json, output=output, dsn=dsn, seconds_limit=seconds)
