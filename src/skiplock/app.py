"""The app: a registry of tasks, and the way into the database."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, Unpack, overload

from skiplock.client import AsyncFace
from skiplock.core.annotations import signature_of
from skiplock.core.codec import ArgsCodec, check_name
from skiplock.core.errors import OptionError, TaskDefinitionError, UnknownTaskError
from skiplock.core.events import Events, Subscriber
from skiplock.core.flow import Key, Limit, Unique, check_parameters, declared_limits
from skiplock.core.inspect_value import shown
from skiplock.core.job import JobRecord, NewJob
from skiplock.core.outcome import Duration
from skiplock.core.retry import DEFAULT_BACKOFF, Backoff, RetryMap, RetryRule
from skiplock.core.room import room_wait
from skiplock.core.schedule_record import rule_spec
from skiplock.core.settings import Settings, resolve_dsn, resolve_listen_dsn
from skiplock.core.size import Size
from skiplock.core.task import TaskSpec
from skiplock.declaring import (
    check_memory,
    check_rules,
    default_name,
    executor_of,
    hooks_of,
    rules_of,
    wants_context_of,
)
from skiplock.desk.find import get_call
from skiplock.handle import JobHandle
from skiplock.limits import Limits
from skiplock.produce.enqueue import enqueue_call, enqueue_flow_call
from skiplock.queues import Queues
from skiplock.room import arun_with_room, run_with_room
from skiplock.schedules import DeclareOptions, ScheduleDecorator, Schedules
from skiplock.store.call import Call
from skiplock.store.schema import check_schema
from skiplock.sync import SyncFace
from skiplock.task import Task, check_max_attempts, check_priority, check_tags, check_timeout
from skiplock.work.context import JobContext, Reach
from skiplock.work.resources import resources_of

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
ENQUEUE_CHUNK_SIZE = 8_000_000  # characters of arguments: a statement is copied a few times here and in the server
ENQUEUE_CHUNK = 5000  # jobs in one statement of enqueue_many without a connection; larger ones gain nothing


class TaskDecorator(Protocol):
    """What `@app.task(…)` returns."""

    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class Skiplock:
    """Tasks and the database their jobs live in. Connects at first use.

    app = Skiplock()    # explicit DSN → SKIPLOCK_DATABASE_URL → DATABASE_URL
    """

    def __init__(
        self,
        dsn: str | None = None,
        *,
        schema: str | None = None,
        max_args_bytes: int = 1_048_576,
        max_result_bytes: int = 1_048_576,
        pool_size: int = 10,
        listen_dsn: str | None = None,
        middleware: Sequence[Callable[..., Any]] = (),
    ) -> None:
        name = check_schema(schema or os.environ.get("SKIPLOCK_SCHEMA") or "skiplock")
        self.settings = Settings(dsn, name, max_args_bytes, max_result_bytes, pool_size, listen_dsn)
        self.events = Events()
        self.middleware = tuple(middleware)
        self.tasks: dict[str, Task[..., Any]] = {}
        self.schedules = Schedules(self)
        self.limits = Limits(self)
        self.queues = Queues(self)
        self._faces: tuple[SyncFace, AsyncFace] | None = None

    # -- declaring tasks -------------------------------------------------------------------------------------------

    @overload
    def task(self, function: Callable[Concatenate[JobContext, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        max_attempts: int = 10,
        timeout: Duration | None = None,
        backoff: Backoff | None = DEFAULT_BACKOFF,
        retry_on: Mapping[type[BaseException], Backoff | None] | None = None,
        executor: str | None = None,
        memory: Size | None = None,
        middleware: Sequence[Callable[..., Any]] = (),
        hooks: Mapping[str, Callable[..., Any]] | None = None,
        tags: Sequence[str] = (),
        unique: Unique | bool | None = None,
        limits: Sequence[Limit] | None = None,
        fair_key: Key | None = None,
        weight: float | None = None,
        expires: Duration | None = None,
    ) -> TaskDecorator: ...
    def task(self, *function: Any, **settings: Any) -> Any:
        """Register a function as a task: ``@app.task`` or ``@app.task(queue="mail", timeout=30)``.

        An `async def` runs on the worker's event loop, a `def` in a thread; executor="process" runs either in a child
        process of the worker, which is killed at the timeout, with at most `memory` (bytes, or "512MiB") if given.
        `name` defaults to `module.function`; give one if the module may be imported by different paths. `backoff=None`:
        never retried. `retry_on` overrides it by exception class, nearest class first. `hooks`: functions by moment
        (attempt_started, attempt_ended, job_dead). `unique`, `limits`, `fair_key`, `weight`, `expires`: docs/guides/flow.md. Raises TaskDefinitionError or OptionError.
        """
        if not function:
            return lambda f: self._register(f, **settings)
        return self._register(*function, **settings)

    def _register(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 0,
        max_attempts: int = 10,
        timeout: Duration | None = None,
        backoff: RetryRule = DEFAULT_BACKOFF,
        retry_on: RetryMap | None = None,
        executor: str | None = None,
        memory: Size | None = None,
        middleware: Sequence[Callable[..., Any]] = (),
        hooks: Mapping[str, Callable[..., Any]] | None = None,
        tags: Sequence[str] = (),
        **rules: Any,
    ) -> Task[..., Any]:
        if isinstance(function, Task) or not callable(function):
            raise TaskDefinitionError(f"{function!r}: decorate a plain function")
        name = check_name(default_name(function) if name is None else name, "task name")
        if name in self.tasks:
            raise TaskDefinitionError(f"task {name!r} is registered twice; give one of them another name=")
        check_rules(name, backoff, retry_on, (*middleware, *(hooks or {}).values()))
        signature_of(function, name)
        wants_context = wants_context_of(function)
        resources = resources_of(function, name)
        first = {next(iter(inspect.signature(function).parameters))} if wants_context else set()
        spec = TaskSpec(
            name=name,
            function=function,
            codec=ArgsCodec.of(function, task=name, skip=frozenset(first | set(resources))),
            executor=executor_of(function, executor, name),
            queue=check_name(queue, "queue"),
            priority=check_priority(priority),
            max_attempts=check_max_attempts(max_attempts),
            timeout=None if timeout is None else check_timeout(timeout),
            memory=None if memory is None else check_memory(memory, executor, name),
            backoff=backoff,
            retry_on=dict(retry_on) if retry_on else None,
            wants_context=wants_context,
            resources=resources,
            middleware=(*self.middleware, *middleware),
            hooks=hooks_of(hooks, name),
            tags=check_tags(tags),
            flow=rules_of(rules),
        )
        check_parameters(spec.flow, spec.codec.names, name)
        declared_limits([spec.flow, *(task.spec.flow for task in self.tasks.values())])
        task: Task[..., Any] = Task(self, spec)
        self.tasks[name] = task
        return task

    def cron(self, expression: str, *, tz: str = "UTC", **options: Unpack[DeclareOptions]) -> ScheduleDecorator:
        """Run a task by the calendar: ``@app.cron("0 3 * * 1-5", tz="Europe/Berlin")`` above ``@app.task``.

        See docs/guides/schedules.md, and `skiplock.schedules.PolicyOptions`. Raises OptionError, and where it decorates ArgumentError.
        """
        found: ScheduleDecorator = self.schedules.declare(rule_spec(expression, tz), **options)
        return found

    def every(
        self, interval: Duration, *, anchor: datetime | None = None, **options: Unpack[DeclareOptions]
    ) -> ScheduleDecorator:
        """Run a task at intervals, ``@app.every("10m")``, counted from `anchor` (default: 1970-01-01 UTC). Else as `cron`."""
        found: ScheduleDecorator = self.schedules.declare(rule_spec(None, None, interval, anchor), **options)
        return found

    def on(self, moment: str, hook: Subscriber | None = None) -> Any:
        """Call `hook(event)` at a moment of every job: attempt_started, attempt_ended or job_dead (or any event).

        Usable as decorator. A hook that raises is reported and changes nothing.
        """
        if hook is None:
            return lambda f: self.on(moment, f)
        self.events.subscribe(hook, moment)
        return hook

    def find_task(self, name: str) -> Task[..., Any]:
        """The task of that name. Raises UnknownTaskError naming the ones there are."""
        try:
            return self.tasks[name]
        except KeyError:
            known = ", ".join(sorted(self.tasks)) or "none"
            raise UnknownTaskError(f"task {name!r} is not registered; known: {known}") from None

    def reach(self) -> Reach:
        """How handlers get at the database. For workers and their child processes."""
        sync, async_ = self.faces
        return Reach(self.schema, self.settings.max_result_bytes, lambda: sync.database, lambda: async_.database)

    # -- jobs ------------------------------------------------------------------------------------------------------

    def enqueue_many(
        self, jobs: Iterable[NewJob], *, connection: object = None, wait: Duration | None = None
    ) -> list[JobHandle]:
        """Store jobs made with `task.job(…)`; handles in the same order.

        With `connection`: in its transaction. Without: chunks of 5,000 (or 8 MB), each all or nothing, so that a
        huge list does not become one huge transaction; give a connection if all must be one. `wait`: for room in a
        bounded queue, altogether so long (not with a connection). Raises QueueFullError; chunks before it are stored.
        """
        handles: list[JobHandle] = []
        patience = room_wait(wait, connection)
        for chunk in _chunks(jobs):
            call = self._enqueue_call(chunk, connection)
            run = partial(self._sync.run, call, connection, verb="enqueue", instead="….aenqueue(…)")
            handles += run() if patience is None else run_with_room(run, patience)
        return handles

    async def aenqueue_many(
        self, jobs: Iterable[NewJob], *, connection: object = None, wait: Duration | None = None
    ) -> list[JobHandle]:
        """The async twin of `enqueue_many`."""
        handles: list[JobHandle] = []
        patience = room_wait(wait, connection)
        for chunk in _chunks(jobs):
            run = partial(self._async.run, self._enqueue_call(chunk, connection), connection)
            handles += await run() if patience is None else await arun_with_room(run, patience)
        return handles

    def _enqueue_call(self, jobs: Sequence[NewJob], connection: object) -> Call[list[JobHandle]]:
        if any([job.flow is not None for job in jobs]):
            ruled = enqueue_flow_call(jobs, self.schema, admits=connection is None)
            return ruled.then(lambda found: [JobHandle(self, job_id, is_new) for job_id, is_new in found])
        return enqueue_call(jobs, self.schema).then(lambda ids: [JobHandle(self, job_id) for job_id in ids])

    def get(self, job_id: int) -> JobRecord:
        """A job as it is now, with its failed attempts. Raises JobNotFoundError."""
        return self.run(get_call(job_id, self.schema))

    async def aget(self, job_id: int) -> JobRecord:
        """The async twin of `get`."""
        return await self.arun(get_call(job_id, self.schema))

    def job(self, job_id: int) -> JobHandle:
        """The handle of a job known by its id; asks nothing of the database."""
        return JobHandle(self, job_id)

    # -- the database ----------------------------------------------------------------------------------------------

    @property
    def schema(self) -> str:
        """The PostgreSQL schema of skiplock's tables."""
        return self.settings.schema

    @property
    def dsn(self) -> str:
        """The DSN in force. Raises ConfigurationError if there is none."""
        return resolve_dsn(self.settings.dsn)

    @property
    def listen_dsn(self) -> str:
        """Where a worker of this app listens for notifications. Raises ConfigurationError as `dsn` does."""
        return resolve_listen_dsn(self.settings.listen_dsn, self.dsn)

    def run(self, call: Call[T]) -> T:
        """Run any call of the rooms in a transaction of its own, sync."""
        return self._sync.run(call)

    async def arun(self, call: Call[T]) -> T:
        """Run any call of the rooms in a transaction of its own, async."""
        return await self._async.run(call)

    @property
    def _sync(self) -> SyncFace:
        return self.faces[0]

    @property
    def _async(self) -> AsyncFace:
        return self.faces[1]

    @property
    def faces(self) -> tuple[SyncFace, AsyncFace]:
        """The sync and the async way to the database."""
        if self._faces is None:
            dsn, size = self.dsn, self.settings.pool_size
            self._faces = (SyncFace(dsn, size), AsyncFace(dsn, size))
        return self._faces

    def close(self) -> None:
        """Close the sync pool. The app stays usable."""
        if self._faces is not None:
            self._faces[0].close()

    async def aclose(self) -> None:
        """Close the running loop's pool and the sync one."""
        if self._faces is not None:
            await self._faces[1].close()
            self._faces[0].close()

    async def __aenter__(self) -> Skiplock:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __enter__(self) -> Skiplock:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _chunks(jobs: Iterable[NewJob]) -> Iterable[list[NewJob]]:
    chunk: list[NewJob] = []
    size = 0
    for nth, job in enumerate(jobs, 1):
        if not isinstance(job, NewJob):
            raise OptionError(f"enqueue_many: item {nth} is {shown(job)}; make jobs with task.job(…)")
        chunk.append(job)
        size += len(job.args)
        if len(chunk) == ENQUEUE_CHUNK or size >= ENQUEUE_CHUNK_SIZE:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk
