"""An app's queues and tasks at run time: pausing, bounding, ageing."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from skiplock.core.outcome import Duration
from skiplock.desk.queues import (
    PausedTask,
    age_call,
    bound_call,
    pause_call,
    pause_task_call,
    paused_tasks_call,
    resume_call,
    resume_task_call,
)

if TYPE_CHECKING:
    from skiplock.app import Skiplock

Pauses = list[PausedTask]
Until = datetime | None


class Queues:
    """`app.queues`. Every change counts at once, for all workers, and lasts over restarts.

    app.queues.pause("mail", length="1h")
    app.queues.pause_task("shop.send_welcome", until=datetime(2027, 1, 2, 9, tzinfo=UTC))
    app.queues.bound("mail", 10_000)
    await app.queues.aage("mail", "5m")
    """

    def __init__(self, app: Skiplock) -> None:
        self._app = app

    def pause(self, queue: str, *, length: Duration | None = None, until: Until = None) -> Until:
        """Start no job of the queue for that long, or until then, or until it is resumed. Running ones go on.

        What an earlier pause said is forgotten. Answers until when, by the database's clock. Raises OptionError.
        """
        return self._app.run(pause_call(queue, self._app.schema, length=length, until=until))

    async def apause(self, queue: str, *, length: Duration | None = None, until: Until = None) -> Until:
        """The async twin of `pause`."""
        return await self._app.arun(pause_call(queue, self._app.schema, length=length, until=until))

    def resume(self, queue: str) -> None:
        """Go on at once."""
        self._app.run(resume_call(queue, self._app.schema))

    async def aresume(self, queue: str) -> None:
        """The async twin of `resume`."""
        await self._app.arun(resume_call(queue, self._app.schema))

    def pause_task(self, task: str, *, length: Duration | None = None, until: Until = None) -> Until:
        """The same as `pause` for the jobs of one task, by its name, in whatever queue they are."""
        return self._app.run(pause_task_call(task, self._app.schema, length=length, until=until))

    async def apause_task(self, task: str, *, length: Duration | None = None, until: Until = None) -> Until:
        """The async twin of `pause_task`."""
        return await self._app.arun(pause_task_call(task, self._app.schema, length=length, until=until))

    def resume_task(self, task: str) -> None:
        """Go on at once."""
        self._app.run(resume_task_call(task, self._app.schema))

    async def aresume_task(self, task: str) -> None:
        """The async twin of `resume_task`."""
        await self._app.arun(resume_task_call(task, self._app.schema))

    def paused_tasks(self) -> Pauses:
        """The tasks that are paused now, by name."""
        return self._app.run(paused_tasks_call(self._app.schema))

    async def apaused_tasks(self) -> Pauses:
        """The async twin of `paused_tasks`."""
        return await self._app.arun(paused_tasks_call(self._app.schema))

    def bound(self, queue: str, most: int | None) -> None:
        """Refuse enqueues (QueueFullError) that would make the queue hold more ready and waiting jobs; None: none.

        Raises OptionError.
        """
        self._app.run(bound_call(queue, most, self._app.schema))

    async def abound(self, queue: str, most: int | None) -> None:
        """The async twin of `bound`."""
        await self._app.arun(bound_call(queue, most, self._app.schema))

    def age(self, queue: str, every: Duration | None) -> None:
        """Raise the priority of the queue's ready jobs by one for each such time that they wait; None: no longer.

        Raises OptionError.
        """
        self._app.run(age_call(queue, every, self._app.schema))

    async def aage(self, queue: str, every: Duration | None) -> None:
        """The async twin of `age`."""
        await self._app.arun(age_call(queue, every, self._app.schema))
