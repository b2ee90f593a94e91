"""Run: one attempt from the claimed job to its outcome.

    job ─▶ decode arguments ─▶ open resources ─▶ middleware ─▶ handler ─▶ close resources ─▶ Outcome ─▶ settler

All of it happens here (`attempt.py`), or, for tasks with executor="process", in a child process (`children.py`).
An attempt can be broken off from outside (`interrupt`): by its timeout, a cancel request, the shutdown, or because its
lease is gone. A handler that does not end then is left behind: its job is settled, its slot stays taken until it ends.
A child process is killed instead.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from skiplock.core.decide import (
    CANCEL,
    LOST,
    SHUTDOWN,
    TIMEOUT,
    broken,
    completed,
    completed_itself,
    interrupted,
    timeout_of,
)
from skiplock.core.events import Event, Events, name_of
from skiplock.core.job import Job
from skiplock.core.outcome import Outcome, Verdict
from skiplock.work.attempt import Body, whole_attempt
from skiplock.work.children import Children
from skiplock.work.context import JobContext, Reach
from skiplock.work.lines import Line, Lines
from skiplock.work.prepared import Prepared
from skiplock.work.resources import WorkerResources
from skiplock.work.settle import Settler
from skiplock.work.stacks import stack_of_task, stack_of_thread
from skiplock.work.startmap import StartMap
from skiplock.work.talk import Began, Completing, Work

STUCK_AFTER = 5.0  # seconds that a handler may take to end after it was interrupted


class Running:
    """One attempt in progress."""

    __slots__ = (
        "aio",
        "context",
        "ident",
        "job",
        "line",
        "settled",
        "slot",
        "started",
        "task",
        "thread",
        "timeout",
        "timer",
        "why",
    )

    def __init__(self, job: Job, line: Line, task: Prepared) -> None:
        self.job = job
        self.line = line
        self.task = task
        self.started = 0.0  # 0: not yet, it waits for its first step, or for a child process
        self.aio: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.timeout: float | None = None
        self.thread: Future[Any] | None = None
        self.ident: int | None = None  # of the thread itself, once it has begun
        self.context: JobContext | None = None
        self.slot = -1
        self.why: str | None = None  # it was interrupted, and why
        self.settled = False  # its outcome is out although it still runs


class Runner:
    """Starts attempts in free slots and hands their outcomes to the settler. Lives on the worker's loop."""

    def __init__(
        self,
        tasks: Mapping[str, Prepared],
        lines: Lines,
        settler: Settler,
        events: Events,
        reach: Reach,
        *,
        startmap: StartMap | None = None,
        children: Children | None = None,
        on_space: Callable[[], None] = lambda: None,
        on_delay: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.running: dict[tuple[int, int], Running] = {}
        self.stopped = False  # nothing is started any more
        self.stuck: set[Running] = set()  # settled, but their handlers run on
        self.resources = WorkerResources()
        self._tasks, self._lines, self._settler, self._events, self._reach = tasks, lines, settler, events, reach
        self._startmap, self._children, self._on_space, self._on_delay = startmap, children, on_space, on_delay
        self._loop = asyncio.get_running_loop()
        slots = sum(line.concurrency for line in lines.by_name.values())
        self._threads = ThreadPoolExecutor(max_workers=min(slots, 1000), thread_name_prefix="skiplock-job")
        self._quiet = asyncio.Event()
        self._quiet.set()

    # -- starting ----------------------------------------------------------------------------------------------------

    def accept(self, jobs: list[Job]) -> None:
        """Start these claimed jobs, or keep them until a slot is free."""
        for job in jobs:
            line = self._lines.by_name[job.queue]
            if line.running < line.concurrency and not line.buffer and not self.stopped:
                self.start(job, line)
            else:
                line.buffer.append(job)

    def start(self, job: Job, line: Line) -> None:
        """Start one attempt now."""
        entry = Running(job, line, self._tasks[job.task])
        self.running[job.id, job.lease] = entry
        self._quiet.clear()
        line.running += 1
        line.starts += 1
        if entry.task.in_child:
            entry.aio = self._loop.create_task(self._attempt_in_child(entry))
            return
        if self._startmap is not None:
            entry.slot = self._startmap.begin(job.id)
        entry.aio = self._loop.create_task(self._attempt(entry))

    async def quiet(self) -> None:
        """Wait until no attempt is in progress."""
        await self._quiet.wait()

    # -- one attempt -------------------------------------------------------------------------------------------------

    async def _attempt(self, entry: Running) -> None:
        job, task = entry.job, entry.task
        entry.started = started = time.perf_counter()
        if self._events.wants("attempt_started") or task.hooks:
            self._tell(task, "attempt_started", job)
        try:
            entry.timeout = timeout = task.timeout if job.options is None else timeout_of(job, task.spec)
            if timeout is not None:
                entry.timer = self._loop.call_later(timeout, self.interrupt, entry, TIMEOUT)
            arguments = task.decode(job.args)
            if task.plain:
                value = await task.function(**arguments)
            else:
                value = await self._whole(entry, arguments)
        except BaseException as error:  # SystemExit, KeyboardInterrupt and their like end this job only
            outcome = self._broken(entry, error, time.perf_counter() - started)
        else:
            took = time.perf_counter() - started
            if entry.context is not None and entry.context.completing:
                outcome = completed_itself(job, task.spec, took)
            else:
                outcome = completed(job, value, took, limit=self._reach.max_result_bytes)
        if entry.timer is not None:
            entry.timer.cancel()
        if entry.thread is not None and not entry.thread.done():
            self._leave_behind(entry, outcome)
            return
        self._end(entry, outcome)

    async def _whole(self, entry: Running, arguments: dict[str, Any]) -> Any:
        entry.context = context = JobContext(entry.job, self._reach)

        def in_thread(body: Body) -> Awaitable[tuple[bool, Any]]:
            def known() -> tuple[bool, Any]:
                entry.ident = threading.get_ident()
                return body()

            entry.thread = self._threads.submit(contextvars.copy_context().run, known)
            return asyncio.wrap_future(entry.thread)

        return await whole_attempt(entry.task, context, arguments, self.resources, in_thread)

    async def _attempt_in_child(self, entry: Running) -> None:
        job, spec = entry.job, entry.task.spec
        entry.context = context = JobContext(job, self._reach)

        def heard(message: Began | Completing) -> None:
            if isinstance(message, Began):
                self._begin_in_child(entry)
            else:
                context.completing = True

        try:
            assert self._children is not None
            entry.timeout = timeout_of(job, spec)
            outcome = await self._children.run(Work(job, spec.memory), heard)
        except BaseException as error:
            took = time.perf_counter() - entry.started if entry.started else 0.0
            outcome = self._broken(entry, error, took)
        if entry.timer is not None:
            entry.timer.cancel()
        self._end(entry, outcome)

    def _begin_in_child(self, entry: Running) -> None:
        """Until now the job has only waited: it has spent nothing, and its time does not run."""
        entry.started = time.perf_counter()
        if self._startmap is not None:
            entry.slot = self._startmap.begin(entry.job.id)
        self._tell(entry.task, "attempt_started", entry.job)
        if entry.timeout is not None:
            entry.timer = self._loop.call_later(entry.timeout, self.interrupt, entry, TIMEOUT)

    def _broken(self, entry: Running, error: BaseException, took: float) -> Outcome:
        job, spec = entry.job, entry.task.spec
        # A cancel wins over whatever the handler makes of its interruption, and a shutdown is not the handler's failure; one
        # that raises an error of its own at its timeout has told more than the timeout does.
        if entry.why in (CANCEL, SHUTDOWN) or (
            entry.why is not None and issubclass(type(error), asyncio.CancelledError)
        ):
            return interrupted(job, spec, str(entry.why), took, entry.timeout)
        return broken(job, spec, error, took)

    # -- ending ------------------------------------------------------------------------------------------------------

    def _end(self, entry: Running, outcome: Outcome) -> None:
        if not entry.settled:
            self._settle(entry, outcome)
        else:
            self._unstuck(entry, outcome.took)
        self._free(entry, outcome.took)

    def _settle(self, entry: Running, outcome: Outcome) -> None:
        job = entry.job
        entry.settled = True
        if entry.why == LOST:
            if self._startmap is not None:
                self._startmap.end(entry.slot)
            return  # someone else has the job; there is nothing to say
        self._settler.add(outcome, entry.slot)
        if outcome.delay is not None:
            self._on_delay(outcome.delay)
        if outcome.verdict == Verdict.DEAD and not outcome.in_transaction:
            self._tell(entry.task, "job_dead", job, failure=outcome.failure)
        completed = outcome.in_transaction or outcome.verdict == Verdict.COMPLETED
        if not completed or self._events.wants("attempt_ended") or entry.task.hooks:
            verdict = Verdict.COMPLETED if completed else outcome.verdict
            failure = None if completed else outcome.failure
            fields = {"verdict": verdict, "took": outcome.took, "failure": failure, "delay": outcome.delay}
            self._tell(entry.task, "attempt_ended", job, **fields)
            if not completed:
                self._tell(entry.task, "attempt_failed", job, **fields)

    def _free(self, entry: Running, took: float) -> None:
        line = entry.line
        line.running -= 1
        line.measured(took)
        del self.running[entry.job.id, entry.job.lease]
        if not self.stopped:
            if line.buffer:
                self.start(line.buffer.popleft(), line)
            self._on_space()
        if not self.running:
            self._quiet.set()

    def _leave_behind(self, entry: Running, outcome: Outcome) -> None:
        """The thread goes on although its attempt is over: settle now, free the slot when it ends."""
        self._settle(entry, outcome)
        self._report_stuck(entry)
        assert entry.thread is not None
        entry.thread.add_done_callback(lambda _: self._loop.call_soon_threadsafe(self._thread_ended, entry))

    def _thread_ended(self, entry: Running) -> None:
        took = time.perf_counter() - entry.started
        self._unstuck(entry, took)
        self._free(entry, took)

    # -- interrupting ------------------------------------------------------------------------------------------------

    def interrupt(self, entry: Running, why: str) -> None:
        """Break an attempt off. Its first reason counts."""
        if entry.why is not None or entry.settled or entry.aio is None:
            return
        if not entry.started and entry.context is None:
            # Its first step is due. Cancelled before, it would never take it: neither its outcome nor its slot came back.
            self._loop.call_soon(self.interrupt, entry, why)
            return
        entry.why = why
        if entry.context is not None:
            entry.context.tell_cancelled()
        entry.aio.cancel()
        if entry.thread is None:
            self._loop.call_later(STUCK_AFTER, self._still_there, entry)

    def _still_there(self, entry: Running) -> None:
        """An `async def` that swallowed its cancellation: its job is settled all the same."""
        if (entry.job.id, entry.job.lease) in self.running and not entry.settled:
            took = time.perf_counter() - entry.started
            self._settle(entry, interrupted(entry.job, entry.task.spec, entry.why or SHUTDOWN, took, entry.timeout))
            self._report_stuck(entry)

    @property
    def stuck_share(self) -> float:
        """The largest share, of any queue, of slots that stuck handlers hold."""
        held = Counter(entry.line for entry in self.stuck)
        return max((number / line.concurrency for line, number in held.items()), default=0.0)

    def _report_stuck(self, entry: Running) -> None:
        self.stuck.add(entry)
        if self._events.wants("handler_stuck"):
            stack = stack_of_thread(entry.ident) if entry.thread is not None else stack_of_task(entry.aio)
            told = {"job": entry.job, "task": entry.job.task, "why": entry.why, "stack": stack}
            self._events.emit("handler_stuck", **told, seconds=time.perf_counter() - entry.started)

    def _unstuck(self, entry: Running, seconds: float) -> None:
        self.stuck.discard(entry)
        self._events.emit("handler_unstuck", job=entry.job, task=entry.job.task, seconds=seconds)

    def cancel(self, job_ids: list[int]) -> None:
        """Someone wants these jobs cancelled."""
        wanted = set(job_ids)
        for entry in list(self.running.values()):
            if entry.job.id in wanted:
                self.interrupt(entry, CANCEL)
        for line in self._lines.by_name.values():
            for job in [job for job in line.buffer if job.id in wanted]:
                line.buffer.remove(job)  # claimed ahead and not started: the settle makes it cancelled
                self._settler.add(Outcome(job.id, job.lease, Verdict.RELEASE))

    def interrupt_all(self, why: str) -> None:
        """Break all attempts off."""
        for entry in list(self.running.values()):
            self.interrupt(entry, why)

    def stop(self) -> None:
        """Start nothing any more. What waits for a child process has not begun, and goes back."""
        self.stopped = True
        for entry in list(self.running.values()):
            if entry.task.in_child and not entry.started:
                self.interrupt(entry, SHUTDOWN)

    def abandon_all(self) -> None:
        """Settle what still runs as released: the process is about to end."""
        for entry in list(self.running.values()):
            if not entry.settled:
                self._settle(entry, Outcome(entry.job.id, entry.job.lease, Verdict.RELEASE))
                self._report_stuck(entry)

    def close(self) -> None:
        """Take no more work into threads. Those that still run are not waited for."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _emit(self, event: Event) -> None:
        self._events.emit(event.name, **event.fields)

    def _tell(self, task: Prepared, moment: str, job: Job, **fields: Any) -> None:
        told = {"job": job, "task": job.task, "queue": job.queue, "attempt": job.attempt, **fields}
        for hook in (self._emit, *task.hooks.get(moment, ())):
            try:
                hook(Event(moment, told))
            except BaseException as error:  # not even SystemExit: a hook never decides the fate of a job or the worker
                self._events.emit("hook_failed", hook=name_of(hook), error=error)
