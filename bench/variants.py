"""skiplock with other queues, handlers and arguments than the plain no-op: W9 to W13, W16."""

from __future__ import annotations

import asyncio
import base64
import random
import time
from typing import Any, ClassVar

from bench.adapter import SkiplockSystem
from bench.marks import Marks, payload
from skiplock import Skiplock
from skiplock.core.flow import Concurrency
from skiplock.core.job import NewJob
from skiplock.core.retry import Backoff
from skiplock.core.settings import WorkerSettings
from skiplock.task import Task
from skiplock.work.context import JobContext

QUEUES, PRIORITIES, SLOTS = 20, 3, 100
KEYS = 1_000


class ManyQueues(SkiplockSystem):
    """20 queues of 5 slots, each with jobs of 3 priorities, dealt out evenly."""

    name = "skiplock 20 queues"
    _tasks: list[Task[..., Any]]

    async def open(self) -> None:
        await super().open()
        pairs = [(queue, priority) for priority in range(PRIORITIES) for queue in range(QUEUES)]
        self._tasks = [self._task.using(queue=f"q{queue}", priority=priority) for queue, priority in pairs]

    def job(self, n: int) -> NewJob:
        return self._tasks[n % len(self._tasks)].job(**payload(n))

    def worker_settings(self) -> WorkerSettings:
        return WorkerSettings(queues={f"q{queue}": SLOTS // QUEUES for queue in range(QUEUES)})


class OneQueue(SkiplockSystem):
    """As many slots, in one queue: what ManyQueues is compared with."""

    name = "skiplock one queue"

    def worker_settings(self) -> WorkerSettings:
        return WorkerSettings(queues={"default": SLOTS})


class AsyncSleep(SkiplockSystem):
    """An `async def` that waits, as for a web service."""

    seconds: ClassVar[float]
    slots: ClassVar[int] = 500

    def declare(self, app: Skiplock, marks: Marks | None) -> Task[..., Any]:
        seconds = self.seconds

        @app.task(name="bench.sleep")
        async def sleep(to: str, subject: str, n: int) -> None:
            if marks is not None:
                marks.start(n)
            await asyncio.sleep(seconds)

        return sleep

    def worker_settings(self) -> WorkerSettings:
        return WorkerSettings(queues={"default": self.slots})


class AsyncSleep1(AsyncSleep):
    name, seconds = "skiplock async 1 ms", 0.001


class AsyncSleep10(AsyncSleep):
    name, seconds = "skiplock async 10 ms", 0.01


class Threads(SkiplockSystem):
    """A `def`, which runs in a thread."""

    seconds: ClassVar[float]
    slots: ClassVar[int] = 50

    def declare(self, app: Skiplock, marks: Marks | None) -> Task[..., Any]:
        seconds = self.seconds

        @app.task(name="bench.thread")
        def block(to: str, subject: str, n: int) -> None:
            if marks is not None:
                marks.start(n)
            if seconds:
                time.sleep(seconds)

        return block


class ThreadsNoop(Threads):
    name, seconds = "skiplock def no-op", 0.0


class ThreadsSleep1(Threads):
    name, seconds = "skiplock def 1 ms", 0.001


class Payload(SkiplockSystem):
    """A longer argument, which compression cannot shorten much."""

    kibibytes: ClassVar[int]

    def declare(self, app: Skiplock, marks: Marks | None) -> Task[..., Any]:
        @app.task(name="bench.payload")
        async def take(to: str, subject: str, n: int, body: str) -> None:
            if marks is not None:
                marks.start(n)

        return take

    def job(self, n: int) -> NewJob:
        body = base64.b64encode(random.Random(n).randbytes(self.kibibytes * 768)).decode()
        return self._task.job(**payload(n), body=body)


class Payload1(Payload):
    name, kibibytes = "skiplock 1 KiB", 1


class Payload100(Payload):
    name, kibibytes = "skiplock 100 KiB", 100


class Limited(SkiplockSystem):
    """Every job under a limit of one at a time by key; the jobs of the keys lie mixed."""

    name = "skiplock 1,000 keys of limit 1"

    def declare(self, app: Skiplock, marks: Marks | None) -> Task[..., Any]:
        @app.task(name="bench.limited", limits=[Concurrency(lambda n, **_: str(n % KEYS), 1, name="key")])
        async def limited(to: str, subject: str, n: int) -> None:
            if marks is not None:
                marks.start(n)

        return limited


class Failing(SkiplockSystem):
    """Every tenth job fails at its first attempt; the start that counts is the one that succeeds."""

    name = "skiplock 10 percent failing"

    def declare(self, app: Skiplock, marks: Marks | None) -> Task[..., Any]:
        @app.task(name="bench.failing", backoff=Backoff(base=0.2, factor=1.0))
        async def fail_once(ctx: JobContext, to: str, subject: str, n: int) -> None:
            if n % 10 == 0 and ctx.attempt == 1:
                raise RuntimeError("fails once, as every tenth job does")
            if marks is not None:
                marks.start(n)

        return fail_once


_ALL: tuple[type[SkiplockSystem], ...] = (
    SkiplockSystem,
    ManyQueues,
    OneQueue,
    AsyncSleep1,
    AsyncSleep10,
    ThreadsNoop,
    ThreadsSleep1,
    Payload1,
    Payload100,
    Limited,
    Failing,
)
VARIANTS = {kind.name: kind for kind in _ALL}
