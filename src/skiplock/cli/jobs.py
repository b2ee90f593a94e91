"""`skiplock jobs`: list, show, retry, cancel, delete."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from skiplock.cli import show
from skiplock.cli.database import connected, run_once
from skiplock.cli.failures import PROBLEM, error_document
from skiplock.cli.look import console, emit, say
from skiplock.cli.options import JobId, Place, confirm, database_options, json_option, option, yes_option
from skiplock.core.errors import JobNotFoundError, JobStateError, UniqueConflictError
from skiplock.core.job import JobState
from skiplock.desk.act import cancel_call, delete_call, retry_call
from skiplock.desk.find import get_call, list_call
from skiplock.store.call import Call

Act = Callable[[int, str], Call[JobState]]
ids_argument = click.argument("ids", type=JobId(), nargs=-1, required=True, metavar="ID...")


@click.group()
def jobs() -> None:
    """Find, show and act on jobs."""


@jobs.command("list")
@option("--state", type=click.Choice([s.value for s in JobState]), multiple=True, help="Repeatable.")
@option("--queue", help="Only this queue.")
@option("--task", help="Only this task.")
@option("--tag", help="Only jobs with this tag.")
@option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="At most so many.")
@option("--before", type=JobId(), help="Only ids below this one: the next page.")
@json_option
@database_options
def list_jobs(place: Place, json: bool, limit: int, state: tuple[str, ...], **filters: Any) -> None:
    """List jobs, newest first."""
    found = run_once(place.require(), list_call(place.schema, limit=limit, states=state, **filters))
    more = len(found) == limit
    if json:
        emit({"jobs": found, "before": found[-1].id if more else None})
        return
    if not found:
        say("no jobs" + (" match" if state or any(filters.values()) else ""), "dim")
        return
    console().print(show.job_table(found))
    if more:
        say(f"there may be more: --before {found[-1].id}", "dim")


@jobs.command("show")
@click.argument("job_id", type=JobId(), metavar="ID")
@json_option
@database_options
def show_job(place: Place, job_id: int, json: bool) -> None:
    """Show one job: its fields, timeline, arguments and failed attempts."""
    job = run_once(place.require(), get_call(job_id, place.schema))
    if json:
        emit(job)
    else:
        show.print_job(console(), job)


@jobs.command()
@ids_argument
@json_option
@database_options
def retry(place: Place, ids: tuple[int, ...], json: bool) -> int:
    """Run dead, cancelled, retryable or scheduled jobs again now."""
    return _act_on_all(place, ids, "retried", retry_call, json)


@jobs.command()
@ids_argument
@json_option
@database_options
def cancel(place: Place, ids: tuple[int, ...], json: bool) -> int:
    """Cancel jobs that wait; ask workers to stop those that run. `retry` brings them back."""
    return _act_on_all(place, ids, "cancelled", cancel_call, json)


@jobs.command()
@ids_argument
@yes_option
@json_option
@database_options
def delete(place: Place, ids: tuple[int, ...], yes: bool, json: bool) -> int:
    """Delete jobs with their attempts, for good."""
    dsn, what = place.require(), f"job {ids[0]}" if len(ids) == 1 else f"these {len(ids)} jobs"
    if not confirm(f"Delete {what} from schema {place.schema} for good?", yes=yes):
        say("nothing deleted", "dim")
        return PROBLEM
    return _act_on_all(Place(dsn, place.schema, None, None), ids, "deleted", delete_call, json)


def _act_on_all(place: Place, ids: tuple[int, ...], done: str, act: Act, json: bool) -> int:
    """Each in a transaction of its own: one that cannot be acted on does not stop the others."""
    results: list[dict[str, Any]] = []
    with connected(place.require()) as run:
        for job_id in dict.fromkeys(ids):
            try:
                was = run(act(job_id, place.schema))
            except (JobNotFoundError, JobStateError, UniqueConflictError) as error:
                results.append({"id": job_id, "done": False, "error": error_document(error)})
            else:
                results.append({"id": job_id, "done": True, "was": was.value})
    if json:
        emit({"results": results})
    else:
        for result in results:
            _tell(result, done)
    return 0 if all(result["done"] for result in results) else PROBLEM


def _tell(result: dict[str, Any], done: str) -> None:
    if not result["done"]:
        show.complain(result["error"]["message"])
    elif result["was"] == "running":
        say(f"job {result['id']}: its worker has been asked to stop it", "yellow")
    else:
        say(f"job {result['id']}: {done} (was {result['was']})", "green")
