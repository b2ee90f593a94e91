"""A task: a function that can be enqueued. Typed by its signature, without the context and the resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from skiplock.core.codec import check_name, plain_json
from skiplock.core.errors import OptionError
from skiplock.core.flow import NO_RULES, Flow, Key, Limit, Unique, check_parameters, flow_json, flow_of
from skiplock.core.inspect_value import shown
from skiplock.core.job import MAX_PRIORITY, MIN_PRIORITY, NewJob
from skiplock.core.outcome import MAX_DELAY, Duration, as_json, seconds
from skiplock.core.retry import Backoff
from skiplock.core.room import room_wait
from skiplock.core.task import TaskSpec
from skiplock.handle import JobHandle
from skiplock.work.inline import run_inline

if TYPE_CHECKING:
    from skiplock.app import Skiplock

P = ParamSpec("P")
R = TypeVar("R")
MAX_META_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class Options:
    """What `using(…)` may set for the jobs it makes; None: as the task says."""

    connection: object = None
    queue: str | None = None
    priority: int | None = None
    delay: float | None = None
    at: datetime | None = None
    max_attempts: int | None = None
    timeout: float | None = None
    backoff: Backoff | None = None
    tags: tuple[str, ...] | None = None
    meta: str | None = None
    flow: Flow = NO_RULES
    wait: float | None = None


class Task(Generic[P, R]):
    """A registered function. Calling it runs it, here and now, with nothing queued.

    @app.task(queue="mail")
    async def send_welcome(to: str, name: str) -> None: ...

    send_welcome.enqueue(to="ann@example.org", name="Ann")
    await send_welcome.aenqueue(to="ann@example.org", name="Ann")
    send_welcome.using(delay="5m", priority=2).enqueue(to="ann@example.org", name="Ann")
    await send_welcome(to="ann@example.org", name="Ann")
    """

    def __init__(self, app: Skiplock, spec: TaskSpec, options: Options | None = None) -> None:
        self._app = app
        self.spec = spec
        self._options = options or Options()
        flow = spec.flow if self._options.flow is NO_RULES else self._options.flow.over(spec.flow)
        self._flow = None if flow is NO_RULES or flow == NO_RULES else flow
        self.__doc__ = spec.function.__doc__
        self.__name__ = getattr(spec.function, "__name__", spec.name)
        self.__wrapped__ = spec.function

    @property
    def app(self) -> Skiplock:
        """The app it is registered in."""
        return self._app

    @property
    def name(self) -> str:
        """The name under which its jobs are stored."""
        return self.spec.name

    def __repr__(self) -> str:
        return f"<Task {self.spec.name}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function now. Resources are opened around it; the context, if wanted, belongs to no stored job."""
        result: R = run_inline(self.spec, args, kwargs)
        return result

    def job(self, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """A job to give to `app.enqueue_many`: checked and encoded, not stored. Raises ArgumentError."""
        return self._job(args, kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        """Store a job, in the transaction of `using(connection=…)` or in one of its own.

        Raises ArgumentError or OptionError before anything is stored, BlockingCallError inside a running event loop
        (use `aenqueue`), QueueFullError if the queue is bounded and full (after `using(wait=…)`), DatabaseUnavailableError.
        """
        job = self._job(args, kwargs)
        return self._app.enqueue_many([job], connection=self._options.connection, wait=self._options.wait)[0]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        """The async twin of `enqueue`."""
        job = self._job(args, kwargs)
        options = self._options
        return (await self._app.aenqueue_many([job], connection=options.connection, wait=options.wait))[0]

    def using(
        self,
        *,
        connection: object = None,
        queue: str | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        max_attempts: int | None = None,
        timeout: Duration | None = None,
        backoff: Backoff | None = None,
        tags: Sequence[str] | None = None,
        meta: Mapping[str, Any] | None = None,
        unique: Unique | bool | None = None,
        limits: Sequence[Limit] | None = None,
        fair_key: Key | None = None,
        weight: float | None = None,
        expires: Duration | datetime | None = None,
        wait: Duration | None = None,
    ) -> Task[P, R]:
        """This task with other settings for the jobs it makes. Repeated calls add up.

        `connection`: join its transaction (psycopg, asyncpg, SQLAlchemy, Django). `delay` (seconds, timedelta or text
        like "5m", counted by the database's clock) and `at` (an aware datetime) exclude each other; a time that has
        passed means now. `unique`, `limits`, `fair_key`, `weight`, `expires`: see docs/guides/flow.md; `limits=[]` and
        `unique=False` lift what the task says. `wait`: for room in a bounded queue (see `enqueue`), not with `connection`.
        Raises OptionError naming the value.
        """
        flow = self._options.flow
        if not (unique is None and limits is None and fair_key is None and weight is None and expires is None):
            rules = flow_of(unique, limits, fair_key, weight, expires)
            check_parameters(rules, self.spec.codec.names, self.spec.name)
            flow = rules.over(flow)
        given = Options(
            connection,
            None if queue is None else check_name(queue, "queue"),
            None if priority is None else check_priority(priority),
            None if delay is None else _delay(delay),
            None if at is None else check_time(at),
            None if max_attempts is None else check_max_attempts(max_attempts),
            None if timeout is None else check_timeout(timeout),
            backoff,
            None if tags is None else check_tags(tags),
            None if meta is None else plain_json(dict(meta), "meta", MAX_META_BYTES),
            flow,
            None if wait is None else seconds(wait, "wait"),
        )
        changed = {f.name: getattr(given, f.name) for f in fields(Options) if getattr(given, f.name) is not None}
        options = replace(self._options, **changed)
        if options.delay is not None and options.at is not None:
            raise OptionError(f"delay={options.delay!r} and at={options.at.isoformat()}: give one of them")
        room_wait(options.wait, options.connection)  # refuses the two together
        return Task(self._app, self.spec, options)

    def _job(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> NewJob:
        spec, options = self.spec, self._options
        stored = spec.codec.encode(args, kwargs, limit=self._app.settings.max_args_bytes)
        queue = spec.queue if options.queue is None else options.queue
        return NewJob(
            spec.name,
            stored,
            queue,
            spec.priority if options.priority is None else options.priority,
            options.delay,
            options.at,
            spec.max_attempts if options.max_attempts is None else options.max_attempts,
            spec.tags if options.tags is None else options.tags,
            options.meta,
            _rare(options),
            None if self._flow is None else flow_json(self._flow, spec.name, queue, spec.codec.named(stored)),
        )


def _rare(options: Options) -> str | None:
    if options.timeout is None and options.backoff is None:
        return None
    rare: dict[str, Any] = {}
    if options.timeout is not None:
        rare["timeout"] = options.timeout
    if options.backoff is not None:
        rare["backoff"] = {f.name: getattr(options.backoff, f.name) for f in fields(Backoff)}
    return as_json(rare)


def _delay(delay: Duration) -> float:
    found = seconds(delay, "delay")
    if found > MAX_DELAY:
        raise OptionError(f"delay={shown(delay)}: more than 100 years away")
    return found


def check_time(at: datetime) -> datetime:
    """An aware datetime that PostgreSQL and Python can both hold. Raises OptionError."""
    if not isinstance(at, datetime):
        raise OptionError(f"at={shown(at)}: give a datetime")
    if at.tzinfo is None or at.utcoffset() is None:
        raise OptionError(f"at={shown(at)}: has no time zone; use e.g. datetime(…, tzinfo=UTC) or .astimezone()")
    if not 1 < at.year < 9999:
        raise OptionError(f"at={shown(at)}: must lie between the years 2 and 9998")
    return at.astimezone(UTC)


def check_priority(priority: int) -> int:
    """A smallint; larger runs sooner. Raises OptionError."""
    if not isinstance(priority, int) or isinstance(priority, bool) or not MIN_PRIORITY <= priority <= MAX_PRIORITY:
        raise OptionError(f"priority={shown(priority)}: must be a whole number from {MIN_PRIORITY} to {MAX_PRIORITY}")
    return priority


def check_max_attempts(value: int) -> int:
    """At least 1. Raises OptionError."""
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 1_000_000_000:
        raise OptionError(f"max_attempts={shown(value)}: must be a whole number of at least 1")
    return value


def check_timeout(timeout: Duration) -> float:
    """Positive seconds. Raises OptionError."""
    found = seconds(timeout, "timeout")
    if found <= 0:
        raise OptionError(f"timeout={shown(timeout)}: must be more than 0 seconds")
    return found


def check_tags(tags: Sequence[str]) -> tuple[str, ...]:
    """Up to 50 names. Raises OptionError."""
    if isinstance(tags, str) or len(tags) > 50:
        raise OptionError(f"tags={shown(tags)}: give a list of at most 50 texts")
    return tuple(check_name(tag, "tag") for tag in tags)
