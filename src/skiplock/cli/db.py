"""`skiplock db`: migrate, plan, sql, status, verify."""

from __future__ import annotations

import click
from rich.text import Text

from skiplock.cli.failures import PROBLEM, database_errors
from skiplock.cli.look import cell, console, emit, plain, say, table
from skiplock.cli.options import Place, database_options, json_option, option, schema_option
from skiplock.cli.show import complain
from skiplock.store import migrate as migrations
from skiplock.store.schema import check_schema


@click.group()
def db() -> None:
    """Set up and check skiplock's part of the database."""


@db.command()
@option("--force", is_flag=True, help="Put back functions that were changed by hand.")
@option(
    "--wait",
    type=click.FloatRange(min=0),
    default=migrations.WAIT,
    show_default=True,
    metavar="SECONDS",
    help="For locks that others hold; then give up.",
)
@json_option
@database_options
def migrate(place: Place, force: bool, wait: float, json: bool) -> None:
    """Bring the schema up to date. Safe to repeat, to run from several places at once, and while workers run.

    What others hold is waited for in short tries, so that nobody has to wait for long behind this.
    """
    dsn = place.require()
    with database_errors():
        done = migrations.migrate(dsn, place.schema, force=force, wait=wait, tell=_ignore if json else _tell)
    if json:
        emit({"schema": place.schema, "done": done})
    elif not done:
        say(f"schema {place.schema}: up to date")
    else:
        for name in done:
            say(f"  {name}")
        say(f"schema {place.schema}: migrated", "green")


def _tell(text: str) -> None:
    console(stderr=True).print(Text(plain(text), style="yellow"), soft_wrap=True)


def _ignore(text: str) -> None:
    """For programs there is one document, at the end."""


@db.command()
@option("--sql", is_flag=True, help="As one script for psql, which migrates if you run it.")
@json_option
@database_options
def plan(place: Place, sql: bool, json: bool) -> None:
    """Show what `migrate` would do now. Changes nothing."""
    if sql and json:
        raise click.UsageError("give --sql or --json")
    with database_errors():
        if sql:
            click.echo(migrations.upgrade_script(place.require(), place.schema), nl=False)
            return
        steps = migrations.plan(place.require(), place.schema)
    if json:
        emit({"schema": place.schema, "steps": steps})
    elif not steps:
        say(f"schema {place.schema}: nothing to do")
    else:
        found = table("step", "lines of SQL", right=("lines of SQL",))
        for step in steps:
            found.add_row(cell(step.name), cell(len(step.sql.splitlines())))
        console().print(found)
        say("the SQL itself: --sql", "dim")


@db.command()
@schema_option
def sql(schema: str) -> None:
    """Print the whole schema as one script for psql. Needs no database."""
    click.echo(migrations.script(check_schema(schema)), nl=False)


@db.command()
@json_option
@database_options
def status(place: Place, json: bool) -> None:
    """Show what is installed and what is not."""
    with database_errors():
        found = migrations.status(place.require(), place.schema)
    if json:
        emit(found)
        return
    rows = [(name, "installed", "green") for name in found.applied if name not in (*found.pending, *found.unknown)]
    rows += [(name, "to be done", "yellow") for name in found.pending]
    rows += [(name, "unknown: from a newer skiplock", "red") for name in found.unknown]
    listing = table("step", "state")
    for name, text, style in rows:
        listing.add_row(cell(name), cell(text, style))
    console().print(listing)
    if found.pending:
        say(f"schema {found.schema}: run `skiplock db migrate`", "yellow")


@db.command()
@json_option
@database_options
def verify(place: Place, json: bool) -> int:
    """Check that the schema is what it should be; exit code 1 if it is not."""
    with database_errors():
        problems = migrations.verify(place.require(), place.schema)
    if json:
        emit({"schema": place.schema, "ok": not problems, "problems": problems})
    elif not problems:
        say(f"schema {place.schema}: as it should be", "green")
    else:
        for problem in problems:
            complain(problem)
    return PROBLEM if problems else 0
