"""Settings, each with what it does, what goes wrong when it is set badly, and its default."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from skiplock.core.codec import check_name
from skiplock.core.errors import ConfigurationError, OptionError
from skiplock.core.inspect_value import shown
from skiplock.core.size import Size, size_in_bytes
from skiplock.core.wear import Wear

MAX_PAYLOAD = 67_108_864  # bytes: what the database takes of arguments (`_most_args` in sql/produce/payload.sql)
DSN_VARIABLES = ("SKIPLOCK_DATABASE_URL", "DATABASE_URL")
LISTEN_VARIABLE = "SKIPLOCK_LISTEN_URL"


def usable_cores() -> int:
    """Processors that this process may use: fewer than the machine has, in a container pinned to some."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Settings:
    """What an app needs to know. See `resolve_dsn` for where the DSN comes from."""

    dsn: str | None = None
    schema: str = "skiplock"  # PostgreSQL schema of skiplock's tables; env SKIPLOCK_SCHEMA
    max_args_bytes: int = 1_048_576  # larger arguments are refused; keep big data elsewhere and pass a reference
    max_result_bytes: int = 1_048_576  # larger results end the job dead, with that reason
    pool_size: int = 10  # connections for enqueue, handlers' transactions and the desk, per process and kind
    # A worker's connection for notifications; default: the DSN. Set it to a direct connection where the DSN leads to a pooler in
    # transaction mode, through which none arrive: without them an idle worker looks for work twice a second. Env SKIPLOCK_LISTEN_URL.
    listen_dsn: str | None = None

    def __post_init__(self) -> None:
        for key in ("max_args_bytes", "max_result_bytes"):
            value = getattr(self, key)
            if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_PAYLOAD:
                raise ConfigurationError(f"{key}={shown(value)}: must be a number of bytes from 1 to {MAX_PAYLOAD:,}")


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """What a worker process needs to know. Times in seconds."""

    queues: Mapping[str, int] = field(default_factory=lambda: {"default": 50})  # concurrency by queue
    name: str = ""  # shown to people; default host:pid
    grace: float = (
        25.0  # after SIGTERM, for running handlers; keep it under your platform's kill timeout (Kubernetes: 30)
    )
    beat_every: float = 3.0  # heartbeat; shorter finds the dead sooner and costs one small statement each
    lost_after: float = 9.0  # no beat for so long: other workers take its jobs; must be at least 3 beats
    max_ahead: int = 1000  # jobs claimed ahead of free slots at most, per queue; the real number follows measured speed
    max_claim: int = 1000  # jobs in one claim at most
    drain: bool = False  # stop when the queues are empty
    # An idle worker claims at least so often. Every beat looks for ready jobs too, so this need not be short; while
    # notifications do not arrive (a pooler in transaction mode) it looks twice a second anyway.
    poll_every: float = 30.0
    # The process makes way for a fresh one once it has started so many attempts, holds more RAM, or has lived for so many
    # seconds; with a supervisor its successor works before it ends, without one it ends with exit code 0. What runs is finished
    # first, however long it takes, so these are no exact limits. None: never. For handlers that leak memory, threads or files.
    max_jobs: int | None = None
    max_memory: Size | None = None  # bytes, or text like "1GiB"; well above what the application takes without jobs
    max_age: float | None = None
    # A process whose handler holds the interpreter cannot beat. Its supervisor does so for it, at most so long; then it kills it.
    vouch_for: float = 3600.0
    # Child processes, for tasks with executor="process". So many at a time; a worker without such tasks starts none.
    children: int = field(default_factory=usable_cores)
    # A child is replaced between two jobs once it has run so many, holds more RAM, or has lived for so many seconds.
    # None: never. For handlers that leak memory or threads; each replacement imports the application anew.
    child_max_jobs: int | None = None
    child_max_memory: Size | None = None  # bytes, or text like "1GiB"
    child_max_age: float | None = None

    def __post_init__(self) -> None:
        if not self.queues:
            raise ConfigurationError("queues: name at least one, as in --queue default=50")
        if self.name:
            _check_name(self.name, "name")
        for name, concurrency in self.queues.items():
            _check_name(name, "queue")
            if not isinstance(concurrency, int) or isinstance(concurrency, bool) or not 1 <= concurrency <= 10_000:
                raise ConfigurationError(
                    f"queue {name!r}: concurrency {concurrency!r} must be a whole number from 1 to 10000"
                )
        for key in ("grace", "beat_every", "lost_after", "poll_every", "vouch_for"):
            value = getattr(self, key)
            if not math.isfinite(value) or value < 0 or (value == 0 and key != "grace"):
                raise ConfigurationError(f"{key}={value!r}: must be a positive number of seconds")
        for key, least in (("max_ahead", 0), ("max_claim", 1)):
            value = getattr(self, key)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigurationError(f"{key}={value!r}: must be a whole number of at least {least}")
        self._check_children()
        if self.lost_after < 3 * self.beat_every * 0.999:
            raise ConfigurationError(
                f"lost_after={self.lost_after} must be at least 3 times beat_every={self.beat_every}: "
                "else one late beat makes a living worker look dead"
            )

    def _check_children(self) -> None:
        _check_count("children", self.children)
        self.wear()
        self.own_wear()

    def wear(self) -> Wear:
        """The limits of a child's service. Raises ConfigurationError."""
        return _wear("child_", self.child_max_jobs, self.child_max_memory, self.child_max_age)

    def own_wear(self) -> Wear:
        """The limits of the worker process's own service. Raises ConfigurationError."""
        return _wear("", self.max_jobs, self.max_memory, self.max_age)


def _wear(of: str, jobs: int | None, memory: Size | None, age: float | None) -> Wear:
    if jobs is not None:
        _check_count(f"{of}max_jobs", jobs)
    is_number = isinstance(age, int | float) and not isinstance(age, bool)
    if age is not None and not (is_number and math.isfinite(age) and age > 0):
        raise ConfigurationError(f"{of}max_age={age!r}: must be a positive number of seconds")
    try:
        most = None if memory is None else size_in_bytes(memory, f"{of}max_memory")
    except OptionError as error:
        raise ConfigurationError(str(error)) from None
    return Wear(jobs, most, age)


def _check_count(key: str, value: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConfigurationError(f"{key}={value!r}: must be a whole number of at least 1")


def _check_name(name: str, what: str) -> None:
    try:
        check_name(name, what)
    except OptionError as error:
        raise ConfigurationError(str(error)) from None


def resolve_dsn(explicit: str | None, environ: Mapping[str, str] = os.environ) -> str:
    """The DSN: explicit, else SKIPLOCK_DATABASE_URL, else DATABASE_URL. Raises ConfigurationError naming all three."""
    if explicit:
        return explicit
    for name in DSN_VARIABLES:
        if environ.get(name):
            return environ[name]
    raise ConfigurationError(
        "no database: pass one, as in Skiplock('postgresql://user@host/database'), "
        "or set SKIPLOCK_DATABASE_URL or DATABASE_URL"
    )


def resolve_listen_dsn(explicit: str | None, dsn: str, environ: Mapping[str, str] = os.environ) -> str:
    """Where a worker listens for notifications: explicit, else SKIPLOCK_LISTEN_URL, else `dsn`."""
    return explicit or environ.get(LISTEN_VARIABLE) or dsn
