"""A job's handle: its id, and what one can do with that one job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skiplock.core.job import JobRecord, JobState
from skiplock.desk.act import cancel_call, delete_call, retry_call
from skiplock.desk.find import get_call

if TYPE_CHECKING:
    from skiplock.app import Skiplock


class JobHandle:
    """What an enqueue returns. Holds no state of the job: every method asks the database.

    job = send_welcome.enqueue(to="ann@example.org", name="Ann")
    job.id              # 42
    job.get().state     # "ready"
    job.cancel()
    """

    __slots__ = ("_app", "id", "is_new")

    def __init__(self, app: Skiplock, job_id: int, is_new: bool = True) -> None:
        self._app = app
        self.id = job_id
        self.is_new = is_new  # False: another job has its unique key, and this is that one's handle

    def __repr__(self) -> str:
        return f"<Job {self.id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobHandle) and other.id == self.id

    def __hash__(self) -> int:
        return hash(self.id)

    def get(self) -> JobRecord:
        """The job as it is now, with its failed attempts. Raises JobNotFoundError."""
        return self._app.run(get_call(self.id, self._app.schema))

    async def aget(self) -> JobRecord:
        """The async twin of `get`."""
        return await self._app.arun(get_call(self.id, self._app.schema))

    def retry(self) -> JobState:
        """Run it again now; answers the state it was in. Raises JobNotFoundError, JobStateError."""
        return self._app.run(retry_call(self.id, self._app.schema))

    async def aretry(self) -> JobState:
        """The async twin of `retry`."""
        return await self._app.arun(retry_call(self.id, self._app.schema))

    def cancel(self) -> JobState:
        """Cancel it; answers the state it was in (`running`: its worker has been asked). Raises as `retry`."""
        return self._app.run(cancel_call(self.id, self._app.schema))

    async def acancel(self) -> JobState:
        """The async twin of `cancel`."""
        return await self._app.arun(cancel_call(self.id, self._app.schema))

    def delete(self) -> JobState:
        """Delete it for good; answers the state it was in. Raises as `retry`; a running job must be cancelled first."""
        return self._app.run(delete_call(self.id, self._app.schema))

    async def adelete(self) -> JobState:
        """The async twin of `delete`."""
        return await self._app.arun(delete_call(self.id, self._app.schema))
