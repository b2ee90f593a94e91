"""skiplock: background jobs for Python on PostgreSQL.

from skiplock import Skiplock

app = Skiplock()

@app.task(queue="mail", max_attempts=5, timeout=30)
async def send_welcome(to: str, name: str) -> None: ...

send_welcome.enqueue(to="ann@example.org", name="Ann")
"""

from skiplock._version import __version__
from skiplock.app import Skiplock
from skiplock.core.errors import (
    ArgumentError,
    BlockingCallError,
    ChildDiedError,
    ChildStartError,
    ConfigurationError,
    DatabaseUnavailableError,
    JobLostError,
    JobNotFoundError,
    JobStateError,
    LeaseLostError,
    MigrationBlockedError,
    OptionError,
    PayloadTooLargeError,
    QueueFullError,
    ScheduleNotFoundError,
    SchemaError,
    SkiplockError,
    TaskDefinitionError,
    UniqueConflictError,
    UnknownTaskError,
    UnsupportedConnectionError,
)
from skiplock.core.flow import Concurrency, Rate, Unique
from skiplock.core.job import AttemptRecord, Job, JobRecord, JobState, NewJob
from skiplock.core.outcome import Cancel, Dead, Retry, Snooze
from skiplock.core.retry import Backoff
from skiplock.core.schedule_record import ScheduleRecord
from skiplock.handle import JobHandle
from skiplock.task import Task
from skiplock.work.context import JobContext
from skiplock.work.resources import Resource

__all__ = [
    "ArgumentError",
    "AttemptRecord",
    "Backoff",
    "BlockingCallError",
    "Cancel",
    "ChildDiedError",
    "ChildStartError",
    "Concurrency",
    "ConfigurationError",
    "DatabaseUnavailableError",
    "Dead",
    "Job",
    "JobContext",
    "JobHandle",
    "JobLostError",
    "JobNotFoundError",
    "JobRecord",
    "JobState",
    "JobStateError",
    "LeaseLostError",
    "MigrationBlockedError",
    "NewJob",
    "OptionError",
    "PayloadTooLargeError",
    "QueueFullError",
    "Rate",
    "Resource",
    "Retry",
    "ScheduleNotFoundError",
    "ScheduleRecord",
    "SchemaError",
    "Skiplock",
    "SkiplockError",
    "Snooze",
    "Task",
    "TaskDefinitionError",
    "Unique",
    "UniqueConflictError",
    "UnknownTaskError",
    "UnsupportedConnectionError",
    "__version__",
]
