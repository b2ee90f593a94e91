"""Every error skiplock raises.

    SkiplockError
    ├── ConfigurationError          a setting is missing or wrong; says which and how to set it
    ├── TaskDefinitionError         a task cannot be declared like this
    ├── ArgumentError               an argument of an enqueue was refused; names task and path
    │   └── PayloadTooLargeError
    ├── OptionError                 an option of an enqueue (queue, priority, delay …) was refused
    ├── UniqueConflictError         another live job has the unique key of this one
    ├── QueueFullError              the queue is bounded, and full
    ├── UnknownTaskError            no task of that name in the app
    ├── JobNotFoundError            no job with that id
    ├── ScheduleNotFoundError       no schedule of that name
    ├── JobStateError               the job's state does not allow that act
    ├── LeaseLostError              this attempt no longer owns its job
    ├── BlockingCallError           a sync call inside a running event loop
    ├── UnsupportedConnectionError  `connection=` is of a kind skiplock does not know
    ├── SchemaError                 the database lacks skiplock's schema, or has another version of it
    ├── DatabaseUnavailableError    no connection could be had in time, it was lost, or the database refuses for now
    │   └── MigrationBlockedError   something in the database stands in the way of a migration
    ├── JobLostError                recorded as the error of an attempt whose worker vanished (never raised)
    ├── ChildDiedError              the same for an attempt whose child process died (executor="process")
    └── ChildStartError             the same where the child process could not even begin the attempt

What a handler raises to say how its job goes on is not an error: see `skiplock.core.outcome`.
"""

from __future__ import annotations


class SkiplockError(Exception):
    """Base of all errors skiplock raises."""


class ConfigurationError(SkiplockError):
    """A setting is missing or wrong."""


class TaskDefinitionError(SkiplockError):
    """A function cannot be a task as it is declared."""


class ArgumentError(SkiplockError, ValueError):
    """An argument was refused before anything was stored.

    `task` is the task's name, `path` where the value sits, e.g. ``$.items[3].price``.
    """

    def __init__(self, message: str, *, task: str = "", path: str = "$") -> None:
        super().__init__(message)
        self.task = task
        self.path = path


class PayloadTooLargeError(ArgumentError):
    """The encoded arguments are larger than `Settings.max_args_bytes`."""


class OptionError(SkiplockError, ValueError):
    """An option of an enqueue (queue, priority, delay, tags …) was refused before anything was stored."""


class UniqueConflictError(SkiplockError):
    """Another live job has the unique key; the message names it. Raised with `on_conflict="raise"`, before anything is stored,
    and when a job that has ended is to be retried while another one has its key."""


class QueueFullError(SkiplockError):
    """A bounded queue has no room for these jobs; nothing was stored.

    `queue`, how many jobs it holds (`depth`, never counted further than the bound), how many were to be added (`wanted`),
    and its `bound`.
    """

    def __init__(self, message: str, *, queue: str = "", depth: int = 0, wanted: int = 0, bound: int = 0) -> None:
        super().__init__(message)
        self.queue, self.depth, self.wanted, self.bound = queue, depth, wanted, bound

    @property
    def can_pass(self) -> bool:
        """Whether it is worth waiting: so many jobs at once can ever fit."""
        return self.wanted <= self.bound


class UnknownTaskError(SkiplockError, LookupError):
    """No task of that name is registered in the app."""


class JobNotFoundError(SkiplockError, LookupError):
    """There is no job with that id (it never was, or was deleted or archived)."""


class ScheduleNotFoundError(SkiplockError, LookupError):
    """There is no schedule of that name."""


class JobStateError(SkiplockError):
    """The job's state does not allow that act (say: retrying a job that is running)."""


class LeaseLostError(SkiplockError):
    """This attempt no longer owns its job: another worker was given it, or it was cancelled or deleted.

    Raised inside a handler's own transaction so that the transaction is rolled back.
    """


class BlockingCallError(SkiplockError, RuntimeError):
    """A blocking call was made inside a running event loop; use the method with the `a` prefix."""


class UnsupportedConnectionError(SkiplockError, TypeError):
    """`connection=` is of a kind skiplock does not know, or cannot be used in this (sync or async) call."""


class SchemaError(SkiplockError):
    """The database has no skiplock schema, or one this version cannot work with."""


class DatabaseUnavailableError(SkiplockError):
    """No connection to the database could be had in time, it was lost during the call, or the database refuses for now. Its
    text says whether the call may have been done."""


class MigrationBlockedError(DatabaseUnavailableError):
    """Something in the database stands in the way of a migration: who holds a lock, or what depends on us. Nothing changed."""


class JobLostError(SkiplockError):
    """The worker that ran the job vanished. Only recorded, never raised."""


class ChildDiedError(SkiplockError):
    """The child process that ran the attempt died. Only recorded, never raised; `retry_on` may name it."""


class ChildStartError(SkiplockError):
    """No child process could begin the attempt: it did not start, or could not import the task. Only recorded."""
