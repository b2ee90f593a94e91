"""Schedules in code and at run time: what `@app.cron`, `@app.every` and `app.schedules` do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypedDict, TypeVar, Unpack, overload

from skiplock.core.codec import check_name, plain_json
from skiplock.core.errors import OptionError, TaskDefinitionError
from skiplock.core.inspect_value import shown
from skiplock.core.job import NewJob
from skiplock.core.outcome import Duration
from skiplock.core.schedule_record import DEFAULTS, Policy, ScheduleRecord, Spec, job_spec, merged, rule_spec
from skiplock.desk.schedules import (
    add_schedule_call,
    change_schedule_call,
    delete_schedule_call,
    get_schedule_call,
    list_schedules_call,
    pause_schedule_call,
    reset_schedule_call,
    resume_schedule_call,
    run_schedule_call,
)
from skiplock.store.call import Call
from skiplock.task import Task
from skiplock.work.context import JobContext

if TYPE_CHECKING:
    from skiplock.app import Skiplock

P = ParamSpec("P")
R = TypeVar("R")


class PolicyOptions(TypedDict, total=False):
    """How a schedule fires.

    `start`, `end`: in force from then on, until before then. `missed`: what becomes of fires that no worker was there for, "none",
    "latest" (the default) or "all", at most `missed_most` (100) of them. `overlap`: what becomes of a fire while the job of the last
    one has not ended: "allow" (the default), "skip", "queue" (at most `waiting_most`, 1, wait for its end) or "cancel" (the old one).
    `jitter`: each job runs up to so much later than its fire.
    """

    start: datetime | None
    end: datetime | None
    missed: str | None
    missed_most: int | None
    overlap: str | None
    waiting_most: int | None
    jitter: Duration | None


class DeclareOptions(PolicyOptions, total=False):
    """Beside that, in code: `name` (default: the task's) and the `args` of its jobs."""

    name: str | None
    args: Mapping[str, Any] | None


class ScheduleDecorator(Protocol):
    """What `@app.cron(…)` and `@app.every(…)` return: for tasks, and for functions that become one."""

    @overload
    def __call__(self, task: Task[P, R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, task: Callable[Concatenate[JobContext, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, task: Callable[P, R], /) -> Task[P, R]: ...


class Schedules:
    """The schedules of an app's database. Every method answers a call, which `app.run` or `await app.arun` runs:

    app.run(app.schedules.add("nightly", report, cron="0 3 * * *", tz="Europe/Berlin"))
    await app.arun(app.schedules.pause("nightly"))
    """

    def __init__(self, app: Skiplock) -> None:
        self._app = app
        self.declared: dict[str, Spec] = {}  # by the code of this process

    def declare(self, rule: Spec, **options: Unpack[DeclareOptions]) -> Any:
        """The decorator that declares a schedule of its task. Raises OptionError, TaskDefinitionError or ArgumentError."""
        name, args = options.get("name"), options.get("args")
        policy = Policy(**{key: value for key, value in options.items() if key not in ("name", "args")}).spec()  # type: ignore[arg-type]

        def decorate(function: Any) -> Task[..., Any]:
            task: Task[..., Any] = function if isinstance(function, Task) else self._app.task(function)
            called = check_name(task.name if name is None else name, "schedule")
            if called in self.declared:
                raise TaskDefinitionError(f"schedule {called!r} is declared twice; give one of them another name=")
            self.declared[called] = merged({"zone": "UTC"}, rule, DEFAULTS, policy, job_spec(task.job(**(args or {}))))
            return task

        return decorate

    def all(self) -> Call[list[ScheduleRecord]]:
        """All of them, by name."""
        return list_schedules_call(self._app.schema)

    def get(self, name: str) -> Call[ScheduleRecord]:
        """One. Raises ScheduleNotFoundError."""
        return get_schedule_call(name, self._app.schema)

    def add(
        self,
        name: str,
        task: Task[..., Any] | str,
        *,
        args: Mapping[str, Any] | None = None,
        cron: str | None = None,
        tz: str | None = None,
        every: Duration | None = None,
        anchor: datetime | None = None,
        **policy: Unpack[PolicyOptions],
    ) -> Call[None]:
        """Make one, with `cron` (in the zone `tz`, default UTC) or `every`. A task of this app checks the arguments; of another
        one, named by its name, nothing is known. Raises ArgumentError or OptionError before anything is stored."""
        rule = rule_spec(cron, tz, every, anchor)
        if "cron" not in rule:
            raise OptionError(f"schedule {shown(name)}: give cron= or every=")
        job = self._job(task, args or {})
        spec = merged({"zone": "UTC"}, rule, DEFAULTS, Policy(**policy).spec(), job_spec(job))
        return add_schedule_call(name, spec, self._app.schema)

    def change(
        self,
        name: str,
        *,
        task: Task[..., Any] | str | None = None,
        args: Mapping[str, Any] | None = None,
        cron: str | None = None,
        tz: str | None = None,
        every: Duration | None = None,
        anchor: datetime | None = None,
        **policy: Unpack[PolicyOptions],
    ) -> Call[None]:
        """Change what is given. Of one declared in code, that stays over restarts until `reset`. With another rule or zone it
        counts from now and never fires the past. `args` need the task. Raises as `add`, and ScheduleNotFoundError."""
        if task is None and args is not None:
            raise OptionError(f"schedule {shown(name)}: args= without task=: only the task can check them")
        job = {} if task is None else job_spec(self._job(task, args or {}))
        spec = merged(rule_spec(cron, tz, every, anchor), Policy(**policy).spec(), job)
        if not spec:
            raise OptionError(f"schedule {shown(name)}: say what to change")
        return change_schedule_call(name, spec, self._app.schema)

    def pause(self, name: str) -> Call[None]:
        """It fires no more until it is resumed, whatever restarts."""
        return pause_schedule_call(name, self._app.schema)

    def resume(self, name: str) -> Call[None]:
        """It goes on from now; what it would have fired meanwhile is not made up for."""
        return resume_schedule_call(name, self._app.schema)

    def reset(self, name: str) -> Call[None]:
        """As its code says again, and not paused."""
        return reset_schedule_call(name, self._app.schema)

    def run(self, name: str) -> Call[int]:
        """A job of it now, beside its fires, be it paused or not; answers the job's id."""
        return run_schedule_call(name, self._app.schema)

    def delete(self, name: str) -> Call[None]:
        """Delete it; its jobs stay. OptionError if the code of a living worker declares it."""
        return delete_schedule_call(name, self._app.schema)

    def _job(self, task: Task[..., Any] | str, args: Mapping[str, Any]) -> NewJob:
        found = self._app.tasks.get(task) if isinstance(task, str) else task
        if found is not None:
            return found.job(**args)
        return NewJob(check_name(task, "task name"), plain_json(dict(args), "args", self._app.settings.max_args_bytes))
