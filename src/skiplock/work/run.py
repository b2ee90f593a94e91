"""Run: one attempt from the claimed job to its outcome.

    job ─▶ decode arguments ─▶ open resources ─▶ middleware ─▶ handler ─▶ close resources ─▶ Outcome ─▶ settler

An attempt can be broken off from outside (`interrupt`): by its timeout, a cancel request, the shutdown, or because its
lease is gone. A handler that does not end then is left behind: its job is settled, its slot stays taken until it ends.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import msgspec

from skiplock.core.codec import encode_result
from skiplock.core.decide import CANCEL, LOST, SHUTDOWN, TIMEOUT, failed, guarded, interrupted, timeout_of
from skiplock.core.errors import ArgumentError
from skiplock.core.events import Event, Events
from skiplock.core.failure import describe
from skiplock.core.job import Job
from skiplock.core.outcome import Failure, Outcome, Verdict
from skiplock.work.context import JobContext, Reach
from skiplock.work.lines import Line, Lines
from skiplock.work.prepared import Prepared
from skiplock.work.resources import WorkerResources, enter, enter_sync
from skiplock.work.settle import Settler
from skiplock.work.startmap import StartMap

STUCK_AFTER = 5.0  # seconds that a handler may take to end after it was interrupted
_UNCOMMITTED = Failure("CompletionNotCommitted", "ctx.complete() was called, but its transaction did not commit")


class Running:
    """One attempt in progress."""

    __slots__ = (
        "aio",
        "context",
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
        self.started = 0.0
        self.aio: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.timeout: float | None = None
        self.thread: Future[Any] | None = None
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
        on_space: Callable[[], None] = lambda: None,
        on_delay: Callable[[float], None] = lambda _: None,
    ) -> None:
        self.running: dict[tuple[int, int], Running] = {}
        self.stopped = False  # nothing is started any more
        self.resources = WorkerResources()
        self._tasks, self._lines, self._settler, self._events, self._reach = tasks, lines, settler, events, reach
        self._startmap, self._on_space, self._on_delay = startmap, on_space, on_delay
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
            outcome = self._completed(entry, value, time.perf_counter() - started)
        if entry.timer is not None:
            entry.timer.cancel()
        if entry.thread is not None and not entry.thread.done():
            self._leave_behind(entry, outcome)
            return
        self._end(entry, outcome)

    async def _whole(self, entry: Running, arguments: dict[str, Any]) -> Any:
        """The attempt with everything that a task may ask for around it."""
        task, spec = entry.task, entry.task.spec
        entry.context = context = JobContext(entry.job, self._reach)
        async with AsyncExitStack() as stack:
            for name, resource in task.outside.items():
                if resource.scope == "worker":
                    arguments[name] = await self.resources.get(resource)
                else:
                    arguments[name] = await enter(stack, resource)

            async def handler() -> Any:
                first = (context,) if spec.wants_context else ()
                if task.on_loop:
                    return await task.function(*first, **arguments)
                return await self._in_thread(entry, first, arguments)

            call: Callable[[], Awaitable[Any]] = handler
            for middleware in reversed(spec.middleware):
                call = _wrapped(middleware, context, call)
            return await call()

    async def _in_thread(self, entry: Running, first: tuple[Any, ...], arguments: dict[str, Any]) -> Any:
        task = entry.task

        def body() -> tuple[bool, Any]:
            # The error travels as a value: a future would treat StopIteration and SystemExit in ways of its own.
            value = None  # and stays it if a resource swallows the error
            try:
                with ExitStack() as stack:
                    opened = {n: enter_sync(stack, r, n) for n, r in task.inside.items()}
                    value = task.function(*first, **arguments, **opened)
            except BaseException as error:
                return False, error
            return True, value

        entry.thread = self._threads.submit(contextvars.copy_context().run, body)
        ok, value = await asyncio.wrap_future(entry.thread)
        if not ok:
            raise value
        return value

    def _completed(self, entry: Running, value: Any, took: float) -> Outcome:
        job = entry.job
        if entry.context is not None and entry.context.completing:
            # Nothing to settle if that transaction committed; the settle finds out, and retries the job otherwise.
            error = RuntimeError(_UNCOMMITTED.message)
            otherwise = failed(job, entry.task.spec, error, took)
            return msgspec.structs.replace(otherwise, failure=_UNCOMMITTED, in_transaction=True)
        try:
            result = None if value is None else encode_result(value, limit=self._reach.max_result_bytes)
        except ArgumentError as error:
            # The work is done, so running it again would do it twice: dead, with the reason.
            failure = Failure("ResultNotStorable", f"the handler succeeded, but its result cannot be stored: {error}")
            return Outcome(job.id, job.lease, Verdict.DEAD, took, failure=failure)
        return Outcome(job.id, job.lease, Verdict.COMPLETED, took, result)

    def _broken(self, entry: Running, error: BaseException, took: float) -> Outcome:
        job, spec = entry.job, entry.task.spec
        # A cancel wins over whatever the handler makes of its interruption, and a shutdown is not the handler's failure; one
        # that raises an error of its own at its timeout has told more than the timeout does.
        if entry.why in (CANCEL, SHUTDOWN) or (entry.why is not None and isinstance(error, asyncio.CancelledError)):
            return interrupted(job, spec, str(entry.why), took, entry.timeout)
        found = guarded(lambda: failed(job, spec, error, took))
        if isinstance(found, Outcome):
            return found
        # A retry rule that raises must not lose the job.
        return Outcome(job.id, job.lease, Verdict.RETRY, took, delay=60.0, failure=describe(error))

    # -- ending ------------------------------------------------------------------------------------------------------

    def _end(self, entry: Running, outcome: Outcome) -> None:
        if not entry.settled:
            self._settle(entry, outcome)
        elif self._events.wants("handler_unstuck"):
            self._events.emit("handler_unstuck", job=entry.job, task=entry.job.task, seconds=outcome.took)
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
        self._events.emit("handler_unstuck", job=entry.job, task=entry.job.task, seconds=took)
        self._free(entry, took)

    # -- interrupting ------------------------------------------------------------------------------------------------

    def interrupt(self, entry: Running, why: str) -> None:
        """Break an attempt off. Its first reason counts."""
        if entry.why is not None or entry.settled or entry.aio is None:
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

    def _report_stuck(self, entry: Running) -> None:
        if self._events.wants("handler_stuck"):
            stack = _stack_of(entry)
            self._events.emit("handler_stuck", job=entry.job, task=entry.job.task, why=entry.why, stack=stack)

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

    def abandon_all(self) -> None:
        """Settle what still runs as released: the process is about to end."""
        for entry in list(self.running.values()):
            if not entry.settled:
                self._settle(entry, Outcome(entry.job.id, entry.job.lease, Verdict.RELEASE))

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
                self._events.emit("hook_failed", hook=getattr(hook, "__qualname__", repr(hook)), error=error)


def _wrapped(
    middleware: Callable[..., Any], context: JobContext, inner: Callable[[], Awaitable[Any]]
) -> Callable[[], Awaitable[Any]]:
    async def call() -> Any:
        return await middleware(context, inner)

    return call


def _stack_of(entry: Running) -> str:
    """Where the handler is now, as text."""
    if entry.thread is not None:
        for frame in sys._current_frames().values():
            lines = traceback.format_stack(frame)
            if any(
                entry.task.function.__code__.co_filename in line and entry.task.function.__name__ in line
                for line in lines
            ):
                return "".join(lines[-8:])
        return ""
    return "".join(
        line for f in (entry.aio.get_stack(limit=8) if entry.aio else []) for line in traceback.format_stack(f)[-1:]
    )
