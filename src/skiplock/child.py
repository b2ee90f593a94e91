"""A child process of a worker: runs attempts of tasks with executor="process", one after the other.

Started by `work/children.py`, which is the other side of the talk. It imports the application as its worker did, opens
connections of its own if a handler asks for one, and makes the whole outcome of an attempt; hooks and events stay with the
worker. It ends when told to, and at once when its worker is gone.
"""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import faulthandler
import logging
import os
import runpy
import select
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from skiplock.app import Skiplock
from skiplock.core.decide import broken, completed, completed_itself
from skiplock.core.failure import describe
from skiplock.core.settings import WorkerSettings
from skiplock.core.task import PROCESS
from skiplock.signals import stop_signals
from skiplock.task import Task
from skiplock.work.attempt import Body, whole_attempt
from skiplock.work.children import TOLD_TO_STOP, Children
from skiplock.work.context import JobContext, Reach
from skiplock.work.memory import memory_cap, resident
from skiplock.work.prepared import Prepared
from skiplock.work.resources import WorkerResources
from skiplock.work.talk import Began, Completing, Ended, Frames, Hello, Main, Refused, ToChild, ToWorker, Work, frame

LOOK_EVERY = 1.0  # seconds
_PR_SET_PDEATHSIG = 1
_VICTIM = "500"  # of 1,000: among the processes of a host short of memory, the system should choose a child


def main(fd: int, parent: int) -> NoReturn:
    """The whole life of the process. `fd`: its socket; `parent`: its worker's process id."""
    code = 1
    try:
        _prepare_process(parent)
        line = _Line(socket.socket(fileno=fd))
        application = _Application(line.hello())
        with asyncio.Runner() as runner:
            runner.run(_serve(line, application))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        logging.shutdown()
        _flush()
        os._exit(code)  # a thread that a handler left behind would keep the interpreter alive


def _prepare_process(parent: int) -> None:
    if sys.stderr is not None:
        faulthandler.enable()
    # Whoever stops the worker may signal all its processes; what becomes of the children is the worker's decision. Handlers
    # rather than SIG_IGN, which programs that a handler starts would inherit; and forks of it are ordinary processes again.
    told_to_stop = stop_signals()
    for number in told_to_stop:
        signal.signal(number, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, TOLD_TO_STOP)
    forking = _Forking(told_to_stop)
    os.register_at_fork(before=forking.before, after_in_parent=forking.in_parent, after_in_child=forking.in_child)
    if sys.platform == "linux":
        # The end of the worker is seen as the end of the socket, by a thread. This works even while C code holds the GIL.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with suppress(OSError):  # only a preference
            Path("/proc/self/oom_score_adj").write_text(_VICTIM)
    if os.getppid() != parent:
        os._exit(1)  # it ended before we had asked to be told


class _Forking:
    """Makes forks of a handler's own (multiprocessing) heed signals again; one that comes at once waits until they do."""

    def __init__(self, told_to_stop: Iterable[signal.Signals]) -> None:
        self._told_to_stop = told_to_stop
        self._mask = threading.local()  # of the thread that forks

    def before(self) -> None:
        self._mask.old = signal.pthread_sigmask(signal.SIG_BLOCK, TOLD_TO_STOP)

    def in_parent(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask.old)

    def in_child(self) -> None:
        for number in self._told_to_stop:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask.old)


def _end_if_forked(pid: int) -> None:
    if os.getpid() != pid:
        os._exit(0)  # a fork that the handler made came back from it; it must not speak for the child


class _Line:
    """The socket to the worker. A thread reads it all the time, so that its end is noticed while a handler runs."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._frames: Frames[ToChild] = Frames(ToChild)
        self._early: list[ToChild] = []
        self._sending = threading.Lock()
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.inbox: asyncio.Queue[ToChild] = asyncio.Queue()

    def hello(self) -> Hello:
        """The first message."""
        while not self._early:
            self._early += self._frames.feed(self._socket.recv(65_536) or _orphaned())
        first = self._early.pop(0)
        assert isinstance(first, Hello)
        return first

    def say(self, message: ToWorker) -> None:
        """From any thread."""
        _end_if_forked(self._pid)
        with self._sending:
            self._socket.sendall(frame(message))

    def listen(self) -> None:
        """From now on messages come into the inbox, on the running loop."""
        self._loop = asyncio.get_running_loop()
        for message in self._early:
            self.inbox.put_nowait(message)
        threading.Thread(target=self._read, name="skiplock-worker", daemon=True).start()

    def _read(self) -> None:
        assert self._loop is not None
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        try:
            while True:
                # A read that is under way would not notice that a handler has closed the socket: look now and then.
                if poll.poll(LOOK_EVERY * 1000):
                    for message in self._frames.feed(self._socket.recv(1_048_576) or _orphaned()):
                        self._loop.call_soon_threadsafe(self.inbox.put_nowait, message)
        except ConnectionError:
            _orphaned()
        except BaseException as error:
            print(
                f"skiplock: child process {self._pid} has lost its connection to the worker: {error!r}", file=sys.stderr
            )
            os._exit(1)


def _orphaned() -> NoReturn:
    """The worker is gone: nobody waits for what we do, and its job may be given to another worker any moment."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def children_for(app: Skiplock, settings: WorkerSettings) -> Children | None:
    """For a worker: its children to come. None if none of the app's tasks needs them."""
    functions = [task.spec.function for task in app.tasks.values() if task.spec.executor == PROCESS]
    if not functions:
        return None
    return Children(_hello_of(app, functions), settings.children, settings.wear(), app.events)


def _hello_of(app: Skiplock, functions: list[Callable[..., Any]]) -> Hello:
    found = _place_of(app)
    modules = dict.fromkeys([*([found[0]] if found else []), *(function.__module__ for function in functions)])
    return Hello(
        path=[os.fsencode(path) for path in sys.path],
        argv=[os.fsencode(word) for word in sys.argv],
        modules=list(modules),
        app_at=found,
        main=_main_module() if "__main__" in modules else None,
        settings=replace(app.settings, dsn=app.dsn),
    )


def _place_of(app: Skiplock) -> tuple[str, str] | None:
    """The first module imported that holds the app, and its name there: importing it declares most."""
    names = [name for name in sys.modules if name != "__main__"]
    for module in [*names, "__main__"]:  # the last resort, as importing it anew may do more than declare
        for attribute, value in list(getattr(sys.modules.get(module), "__dict__", {}).items()):
            if value is app:
                return module, attribute
    return None


def _main_module() -> Main:
    module = sys.modules["__main__"]
    spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    if spec is not None:
        return Main(name=spec.name)
    return Main(path=os.fsencode(Path(file).absolute()) if file else None)


class _Application:
    """The application's modules and the tasks in them. `trouble`: why they could not be imported."""

    def __init__(self, hello: Hello) -> None:
        self.settings = hello.settings
        self.trouble: str | None = None
        self._apps: list[Skiplock] = []
        sys.path[:] = [os.fsdecode(path) for path in hello.path]
        sys.argv[:] = [os.fsdecode(word) for word in hello.argv]
        try:
            if hello.main is not None:
                _run_main(hello.main)
            modules = [import_module(name) for name in hello.modules]
            if hello.app_at is not None:
                module, attribute = hello.app_at
                self._apps.append(getattr(sys.modules[module], attribute))
            self._apps += _apps_in(modules)
        except BaseException as error:  # sys.exit() in a module too
            failure = describe(error)
            where = f"the application cannot be imported in a child process: {failure.error_class}: {failure.message}"
            self.trouble = f"{where}\n{failure.traceback}"

    def find(self, name: str) -> tuple[Skiplock, Prepared]:
        """A task and its app. Raises LookupError with what to do about it."""
        if self.trouble is not None:
            raise LookupError(self.trouble)
        for app in self._apps:
            task = app.tasks.get(name)
            if task is not None and task.spec.executor == PROCESS:
                app.settings = self.settings  # as the worker was told to, by its command line for one
                return app, Prepared(task.spec)
        raise LookupError(
            f"task {name!r} is unknown in the child process: importing the modules of the application did not declare it "
            'as one with executor="process". Declare it at module level, not in code that only the worker runs'
        )


def _apps_in(modules: list[ModuleType]) -> list[Skiplock]:
    found: dict[int, Skiplock] = {}
    for module in modules:
        for value in list(vars(module).values()):
            app = value.app if isinstance(value, Task) else value
            if isinstance(app, Skiplock):
                found[id(app)] = app
    return list(found.values())


def _run_main(main: Main) -> None:
    """Import the worker's `__main__` under the name that multiprocessing gives it, so that its
    `if __name__ == "__main__":` part is not run."""
    name = "__mp_main__"
    if main.name is not None:
        content = runpy.run_module(main.name, run_name=name, alter_sys=True)
    elif main.path is not None:
        content = runpy.run_path(os.fsdecode(main.path), run_name=name)
    else:
        raise ImportError("the task's function is defined in a __main__ that is no file; move it to a module")
    module = ModuleType(name)
    vars(module).update(content)
    sys.modules["__main__"] = sys.modules[name] = module


class _Context(JobContext):
    """Tells the worker that the job is about to be completed: from then on it may be gone from the running ones."""

    __slots__ = ("_line",)

    def __init__(self, line: _Line, job: Any, reach: Reach) -> None:
        super().__init__(job, reach)
        self._line = line

    def complete(self, *, connection: object, result: Any = None) -> Any:
        self._line.say(Completing(self.id))
        return super().complete(connection=connection, result=result)


async def _serve(line: _Line, application: _Application) -> None:
    """One job after the other, until told to leave."""
    attempts = _Attempts(line)
    line.listen()
    while isinstance(work := await line.inbox.get(), Work):
        try:
            app, task = application.find(work.job.task)
        except LookupError as error:
            line.say(Refused(work.job.id, str(error)))
            continue
        await attempts.run(work, app, task)
    await attempts.close()


class _Attempts:
    """Runs them, and holds what they share: resources with scope="worker", which live as long as the process."""

    def __init__(self, line: _Line) -> None:
        self._line = line
        self._resources = WorkerResources()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="skiplock-job")
        self._apps: set[Skiplock] = set()

    async def run(self, work: Work, app: Skiplock, task: Prepared) -> None:
        """One attempt. Whatever the handler does, as long as the process lives, its outcome is told."""
        self._apps.add(app)
        job, reach = work.job, app.reach()
        context = _Context(self._line, job, reach)
        self._line.say(Began(job.id))
        started, spent = time.perf_counter(), False
        try:
            with memory_cap(work.memory):
                arguments = task.decode(job.args)
                value = await whole_attempt(task, context, arguments, self._resources, self._in_thread)
        except BaseException as error:  # SystemExit, KeyboardInterrupt and their like end this job only
            outcome = broken(job, task.spec, error, time.perf_counter() - started)
            spent = issubclass(type(error), MemoryError)
        else:
            took = time.perf_counter() - started
            if context.completing:
                outcome = completed_itself(job, task.spec, took)
            else:
                outcome = completed(job, value, took, limit=reach.max_result_bytes)
        _flush()
        self._line.say(Ended(outcome, resident(), spent))

    async def _in_thread(self, body: Body) -> tuple[bool, Any]:
        # Not on the loop's own thread: a `def` handler may run a loop of its own, or call `enqueue`.
        context, pid = contextvars.copy_context(), os.getpid()

        def run() -> tuple[bool, Any]:
            answer = context.run(body)
            _end_if_forked(pid)
            return answer

        return await asyncio.get_running_loop().run_in_executor(self._thread, run)

    async def close(self) -> None:
        """Close what is shared."""
        await self._resources.close()
        for app in self._apps:
            await app.aclose()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # a handler may have closed or replaced it
            stream.flush()
