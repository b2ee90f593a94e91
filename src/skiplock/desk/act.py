"""Act on jobs: retry, cancel, delete. Each is one call and one transaction."""

from __future__ import annotations

from collections.abc import Sequence

from skiplock.core.errors import JobNotFoundError, JobStateError
from skiplock.core.job import JobState
from skiplock.desk.find import check_id
from skiplock.store.call import Call, Row
from skiplock.store.schema import render

_WHY_NOT = {
    "retry": "only dead, cancelled, retryable and scheduled jobs can be retried",
    "cancel": "it has already ended",
    "delete": "a running job cannot be deleted; cancel it first",
}


def retry_call(job_id: int, schema: str) -> Call[JobState]:
    """Make the job ready again, with at least one attempt; answers the state it was in.

    Raises JobNotFoundError, or JobStateError if it is ready, running or completed.
    """
    return _act("retry", job_id, schema)


def cancel_call(job_id: int, schema: str) -> Call[JobState]:
    """Cancel the job; answers the state it was in. `running` means: its worker has been asked to stop it.

    Cancelling a cancelled job is no error. Raises JobNotFoundError, or JobStateError if it is completed or dead.
    """
    return _act("cancel", job_id, schema)


def delete_call(job_id: int, schema: str) -> Call[JobState]:
    """Delete the job with its attempts and steps, for good. Raises JobNotFoundError, or JobStateError if it runs."""
    return _act("delete", job_id, schema)


def _act(verb: str, job_id: int, schema: str) -> Call[JobState]:
    def read(rows: Sequence[Row]) -> JobState:
        done, was = rows[0]
        if was is None:
            raise JobNotFoundError(f"job {job_id}: there is no job with that id")
        if not done:
            raise JobStateError(f"job {job_id} is {was}: {_WHY_NOT[verb]}")
        return JobState(was)

    return Call(
        render(f"SELECT done, was FROM skiplock.{verb}($1::text::bigint)", schema), (str(check_id(job_id)),), read
    )
