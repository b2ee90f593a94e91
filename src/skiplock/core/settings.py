"""Settings, each with what it does, what goes wrong when it is set badly, and its default."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from skiplock.core.codec import check_name
from skiplock.core.errors import ConfigurationError, OptionError

DSN_VARIABLES = ("SKIPLOCK_DATABASE_URL", "DATABASE_URL")


@dataclass(frozen=True, slots=True)
class Settings:
    """What an app needs to know. See `resolve_dsn` for where the DSN comes from."""

    dsn: str | None = None
    schema: str = "skiplock"  # PostgreSQL schema of skiplock's tables; env SKIPLOCK_SCHEMA
    max_args_bytes: int = 1_048_576  # larger arguments are refused; keep big data elsewhere and pass a reference
    max_result_bytes: int = 1_048_576  # larger results end the job dead, with that reason
    pool_size: int = 10  # connections for enqueue, handlers' transactions and the desk, per process and kind


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

    def __post_init__(self) -> None:
        if not self.queues:
            raise ConfigurationError("queues: name at least one, as in --queue default=50")
        for name, concurrency in self.queues.items():
            _check_queue(name)
            if not isinstance(concurrency, int) or isinstance(concurrency, bool) or not 1 <= concurrency <= 10_000:
                raise ConfigurationError(
                    f"queue {name!r}: concurrency {concurrency!r} must be a whole number from 1 to 10000"
                )
        for key in ("grace", "beat_every", "lost_after", "poll_every"):
            value = getattr(self, key)
            if not math.isfinite(value) or value < 0 or (value == 0 and key != "grace"):
                raise ConfigurationError(f"{key}={value!r}: must be a positive number of seconds")
        for key, least in (("max_ahead", 0), ("max_claim", 1)):
            value = getattr(self, key)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigurationError(f"{key}={value!r}: must be a whole number of at least {least}")
        if self.lost_after < 3 * self.beat_every * 0.999:
            raise ConfigurationError(
                f"lost_after={self.lost_after} must be at least 3 times beat_every={self.beat_every}: "
                "else one late beat makes a living worker look dead"
            )


def _check_queue(name: str) -> None:
    try:
        check_name(name, "queue")
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
