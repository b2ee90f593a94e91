"""Child processes for tasks with executor="process": the worker's side. The other side is `skiplock.child`.

    Runner ─▶ Children.run ─▶ a free child, else a new one ─▶ Child.run ══ socket pair ══ child process

Children are fresh processes, never forks: they inherit no connection, no lock and no thread, and nothing is shared with them
but one pair of sockets each, so that a child can die at any moment without harm to anybody else. Each leads a process group
of its own: a signal to the worker's group passes it by, and what it has started itself is killed with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from skiplock.core.errors import ChildDiedError, ChildStartError
from skiplock.core.events import Events
from skiplock.core.exits import how_it_ended
from skiplock.core.outcome import Outcome
from skiplock.core.task import PROCESS, TaskSpec
from skiplock.core.wear import Wear
from skiplock.work.talk import Began, Completing, Ended, Frames, Hello, Leave, Refused, ToWorker, Work, frame
from skiplock.work.wire import Wire

START_LIMIT = 120.0  # seconds from the start of a child, which imports the application, to the start of its handler
LEAVE_LIMIT = 5.0  # seconds for a child to close its resources; then it is killed
LINGER = 1.0  # seconds that a dead child's socket may stay open: a process it has started may hold it
_CODE = "import sys; sys.path.insert(0, sys.argv[1]); from skiplock.child import main; main(*map(int, sys.argv[2:]))"
_PACKAGE_AT = str(Path(__file__).parents[2])
TOLD_TO_STOP = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


class _Gone(Exception):
    """The child had died before it was given the job: another one will do."""


class Children:
    """At most `most` children at work. A job waits for a free one; a child is started when there is none."""

    def __init__(self, hello: Hello, most: int, wear: Wear, events: Events) -> None:
        self._hello, self._wear, self._events = hello, wear, events
        self._free = asyncio.Semaphore(most)
        self._idle: list[Child] = []
        self._all: set[Child] = set()

    async def run(self, work: Work, heard: Callable[[Began | Completing], None]) -> Outcome:
        """Run an attempt in a child. Cancelled, it returns once that child is dead.

        Raises ChildDiedError or ChildStartError.
        """
        async with self._free:
            while True:
                child = self._take() or self._start()
                try:
                    return await child.run(work, heard)
                except _Gone:
                    continue
                finally:
                    self._put_back(child)

    def pids(self) -> list[int]:
        """Of the children that live."""
        return sorted(child.pid for child in self._all)

    async def close(self) -> None:
        """End all: idle ones in good order, others at once."""
        children = list(self._all)
        for child in children:
            child.end("the worker stops")
        if not children:
            return
        try:
            await asyncio.wait([child.gone for child in children])
        finally:
            for child in children:
                child.kill("the worker stops")  # those that took longer than there was time

    def _take(self) -> Child | None:
        while self._idle:
            child = self._idle.pop()
            if not self._is_worn(child):
                return child
        return None

    def _start(self) -> Child:
        try:
            child = Child(self._hello)
        except OSError as error:  # out of processes, of memory, of files
            raise ChildStartError(f"no child process could be started: {error}") from error
        self._all.add(child)
        child.gone.add_done_callback(lambda _: self._ended(child))
        self._events.emit("task_process_started", pid=child.pid)
        return child

    def _put_back(self, child: Child) -> None:
        if not self._is_worn(child):
            self._idle.append(child)

    def _is_worn(self, child: Child) -> bool:
        if child.ending:
            return True
        reason = child.spent or self._wear.reached(child.jobs, child.resident, time.monotonic() - child.born)
        if reason:
            child.end(reason)
        return reason is not None

    def _ended(self, child: Child) -> None:
        self._all.discard(child)
        if child in self._idle:
            self._idle.remove(child)
        self._events.emit("task_process_ended", pid=child.pid, jobs=child.jobs, reason=child.reason)


class Child:
    """One child process and the talk with it. Everything but `_wait` happens on the loop."""

    def __init__(self, hello: Hello) -> None:
        self.born, self.jobs, self.resident = time.monotonic(), 0, 0
        self.spent: str | None = None  # why it should run no more jobs
        self.ending = False
        self.reason = ""  # for its end
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        self._hello = hello
        self._frames: Frames[ToWorker] = Frames(ToWorker)
        self._work: Work | None = None
        self._answer: asyncio.Future[Outcome] | None = None
        self._begun = False
        self._code: int | None = None
        ours, theirs = socket.socketpair()
        try:
            self._process = _spawn(theirs)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self.pid = self._process.pid
        self._wire = Wire(ours, self._heard_data, self._hung_up)
        threading.Thread(target=self._wait, name=f"skiplock-child-{self.pid}", daemon=True).start()
        self._say(hello)

    async def run(self, work: Work, heard: Callable[[Began | Completing], None]) -> Outcome:
        """See `Children.run`."""
        answer: asyncio.Future[Outcome] = self._loop.create_future()
        self._work, self._heard, self._answer, self._begun = work, heard, answer, False
        self._late = self._loop.call_later(START_LIMIT, self._too_late)
        if self.gone.done():
            answer.set_exception(self._death())
        else:
            self._say(work)
        try:
            await asyncio.wait([answer])
        except asyncio.CancelledError:
            self.kill("its attempt was broken off")
            await asyncio.wait([answer])
            if answer.exception() is not None:
                raise
        finally:
            self._late.cancel()
            self._answer = None
        return answer.result()

    def end(self, reason: str) -> None:
        """Let it end in good order; at once if it is at work."""
        if self._answer is not None:
            self.kill(reason)
        elif not self.ending:
            self.ending, self.reason = True, reason
            self._say(Leave())
            self._loop.call_later(LEAVE_LIMIT, self.kill, reason)

    def kill(self, reason: str) -> None:
        """End it, and whatever it has started, now."""
        self.ending = True
        self.reason = self.reason or reason
        self._kill_group()

    # -- what it says ------------------------------------------------------------------------------------------------

    def _heard_data(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                self._hear(message)
        except msgspec.MsgspecError:
            self.kill("wrote nonsense into its connection to the worker")

    def _hear(self, message: ToWorker) -> None:
        if isinstance(message, Ended):
            self.resident = message.resident
            self.spent = "has run out of memory" if message.spent else None
            self._answered(message.outcome.id, lambda answer: answer.set_result(message.outcome))
            return
        if self._work is None or self._answer is None or self._work.job.id != message.job:
            return  # a thread left behind by an earlier handler
        if isinstance(message, Refused):
            error = ChildStartError(message.reason)
            self.spent = "could not import its task"
            self._answered(message.job, lambda answer: answer.set_exception(error))
            return
        if isinstance(message, Began):
            self._late.cancel()
            self._begun = True
            self.jobs += 1
        self._heard(message)

    def _answered(self, job: int, settle: Callable[[asyncio.Future[Outcome]], None]) -> None:
        answer = self._answer
        if answer is not None and not answer.done() and self._work is not None and self._work.job.id == job:
            settle(answer)

    def _say(self, message: Hello | Work | Leave) -> None:
        self._wire.send(frame(message))

    # -- its end -----------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """In a thread: until it is dead. Its number stays its own until the loop has taken note."""
        with suppress(ChildProcessError):  # someone in this process waits for any child's end, and was faster
            if hasattr(os, "waitid"):
                os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
            else:
                self._process.wait()
        try:
            self._loop.call_soon_threadsafe(self._died)
        except RuntimeError:
            return  # the loop has ended, and with it whoever wanted to know

    def _died(self) -> None:
        self._kill_group()  # what it had started ends with it
        self._code = self._process.wait()
        self.ending = True
        self.reason = self.reason or how_it_ended(self._code)
        if self._wire.ended:
            self._over()
        else:
            self._loop.call_later(LINGER, self._wire.end)

    def _hung_up(self) -> None:
        # What it had said before has been heard by now.
        self.ending = True
        if self._code is None:
            self._loop.call_later(LINGER, self._cut_off)
        else:
            self._over()

    def _cut_off(self) -> None:
        if self._code is None:  # it lives, and is of no use any more
            self.kill("closed its connection to the worker")

    def _over(self) -> None:
        if self.gone.done():
            return
        self.gone.set_result(None)
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(self._death())

    def _death(self) -> Exception:
        """What the death means for the job it was given."""
        code = self._code or 0
        how = how_it_ended(code)
        how = how + _HINTS.get(code, "") if self.reason == how else f"{self.reason} and {how}"
        if self._begun:
            return ChildDiedError(f"the child process {self.pid} that ran it {how}")
        if self.jobs:
            return _Gone()
        modules = ", ".join(self._hello.modules)
        return ChildStartError(f"the child process {self.pid} {how} before it could begin; it imports {modules}")

    def _too_late(self) -> None:
        self.jobs = 0  # so that its death counts against the job: another child would fare no better
        self.kill(f"did not begin within {START_LIMIT:g} s")

    def _kill_group(self) -> None:
        if self._code is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                return  # it has just ended; macOS then says EPERM


_HINTS = {
    -signal.SIGKILL: ", not by skiplock: by a person, or by the system because memory ran out",
    -signal.SIGSEGV: "; where, it has told on the worker's stderr",
    0: "; a handler has to return, not to exit",
}


def _spawn(theirs: socket.socket) -> subprocess.Popen[bytes]:
    # Told to stop together with its worker while it starts, a child would die of it. The mask is passed on; the child
    # lifts it once it knows what to do with these signals.
    old = signal.pthread_sigmask(signal.SIG_BLOCK, TOLD_TO_STOP)
    try:
        return subprocess.Popen(
            [sys.executable, "-c", _CODE, _PACKAGE_AT, str(theirs.fileno()), str(os.getpid())],
            pass_fds=[theirs.fileno()],
            process_group=0,
            stdin=subprocess.DEVNULL,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, old)


def rooms(queues: Mapping[str, int], tasks: Iterable[TaskSpec], children: int) -> dict[str, int]:
    """The queues with their concurrency. One that is home to tasks for children only gets no more slots than there are
    children: jobs that only waited for a child here might run at once elsewhere."""
    executors: dict[str, set[str]] = {}
    for spec in tasks:
        executors.setdefault(spec.queue, set()).add(spec.executor)
    return {name: min(n, children) if executors.get(name) == {PROCESS} else n for name, n in queues.items()}
