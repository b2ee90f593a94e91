"""Tasks for child processes: handlers that do everything one should not, and some that behave. Imported by the children too."""

from __future__ import annotations

import asyncio
import ctypes
import logging
import math
import mmap
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

from skiplock import Backoff, Cancel, Dead, JobContext, Resource, Retry, Skiplock, Snooze

app = Skiplock()
AT_ONCE = Backoff(base=0, floor=0, jitter=False)


def task(**settings: Any) -> Any:
    """As `app.task`, in a child process."""
    return app.task(executor="process", **settings)


@app.task(name="on the loop")
async def on_the_loop() -> None:
    """So that the default queue has tasks of every kind, and its slots are not limited to the number of children."""


# -- that behave -------------------------------------------------------------------------------------------------------


@task(name="add")
def add(a: int, b: int) -> list[int]:
    return [a + b, os.getpid(), os.getppid()]


@task(name="aadd")
async def aadd(a: int, b: int) -> list[int]:
    await asyncio.sleep(0)
    return [a + b, os.getpid(), os.getppid()]


@task(name="whoami")
def whoami(ctx: JobContext) -> dict[str, Any]:
    """What the handler sees of its process."""
    links = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return {
        "pid": os.getpid(),
        "job": ctx.id,
        "meta": ctx.meta,
        "attempt": ctx.attempt,
        "sockets": [link for link in links if link.startswith("socket:")],
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "group": os.getpgrp(),
        "oom": Path("/proc/self/oom_score_adj").read_text().strip(),
        "name": __name__,
        "stdin": sys.stdin.read(),
    }


@task(name="echo")
def echo(text: str) -> str:
    return text[::-1]


@task(name="note")
def note(path: str, seconds: float = 0.0) -> int:
    """Leave a line in a file, at the begin and at the end."""
    with open(path, "a") as file:
        file.write(f"began {os.getpid()}\n")
        file.flush()
        time.sleep(seconds)
        file.write(f"ended {os.getpid()}\n")
    return os.getpid()


@task(name="once", queue="once", backoff=AT_ONCE)
def once(ctx: JobContext, path: str, seconds: float = 0.0) -> None:
    """Append the job's id to a file, in one write, after a while."""
    time.sleep(seconds)
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(handle, f"{ctx.id}\n".encode())
    os.close(handle)


@task(name="nothing", queue="once")
def nothing() -> None: ...


@task(name="noisy")
def noisy() -> int:
    """Write to every stream there is, by every way."""
    print("noise " * 1000)
    print("noise on stderr", file=sys.stderr)
    os.write(1, b"\x00\xff raw noise\n")
    logging.getLogger("noise").warning("noise in the log")
    subprocess.run(["echo", "noise of a program"], check=True)
    return 7


@task(name="runs_a_loop")
def runs_a_loop() -> int:
    """A `def` handler that runs a loop of its own."""

    async def inner() -> int:
        await asyncio.sleep(0)
        return 5

    return asyncio.run(inner())


# -- around the handler ------------------------------------------------------------------------------------------------

opened: list[str] = []


async def shared() -> AsyncIterator[list[str]]:
    opened.append("shared")
    yield opened


def each() -> Iterator[str]:
    opened.append("each")
    yield "each"
    opened.append("closed")


async def aeach() -> AsyncIterator[str]:
    opened.append("aeach")
    yield "aeach"


async def doubled(ctx: JobContext, call_next: Any) -> Any:
    return [await call_next(), os.getpid()]


@task(name="around", middleware=[doubled])
def around(
    ctx: JobContext,
    x: int,
    log: Any = Resource(shared, scope="worker"),
    a: str = Resource(each),
    b: str = Resource(aeach),
) -> Any:
    return [x, a, b, list(log), threading.current_thread() is threading.main_thread()]


@task(name="in_transaction")
def in_transaction(ctx: JobContext, then: float = 0.0, fail: bool = False) -> None:
    with ctx.transaction() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS made (job bigint)")
        connection.execute("INSERT INTO made VALUES (%s)", [ctx.id])
        if fail:
            raise RuntimeError("rolled back")
    time.sleep(then)


@task(name="ain_transaction")
async def ain_transaction(ctx: JobContext) -> None:
    value = await ctx.once("step", lambda: os.getpid())
    async with ctx.transaction(result=value) as connection:
        await connection.execute("SELECT 1")


@task(name="enqueues")
def enqueues() -> int:
    return echo.enqueue("abc").id


# -- that end otherwise: what is raised and what the job's error says of it; results that cannot be kept ----------------


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__


class TwoArguments(Exception):
    """Pickles, and does not unpickle."""

    def __init__(self, one: object, two: object) -> None:
        super().__init__(f"{one} {two}")

    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


class MyBase(BaseException): ...


RAISED: dict[str, tuple[Callable[[], BaseException], str]] = {
    "an exception": (lambda: ValueError("boom"), "ValueError: boom"),
    "SystemExit": (lambda: SystemExit(1), "SystemExit: 1"),
    "KeyboardInterrupt": (KeyboardInterrupt, "KeyboardInterrupt"),
    "GeneratorExit": (GeneratorExit, "GeneratorExit"),
    "CancelledError": (asyncio.CancelledError, "CancelledError"),
    "StopIteration": (lambda: StopIteration(3), "StopIteration"),
    "a BaseException of its own": (lambda: MyBase("odd"), "MyBase: odd"),
    "a failing __str__": (Unprintable, "Unprintable"),
    "one that cannot be pickled": (lambda: TwoArguments(1, 2), "TwoArguments: 1 2"),
    "one that holds such a one": (lambda: Exception(Unprintable()), "Exception"),
    "one that holds a lock": (lambda: ValueError(threading.Lock()), "ValueError: <unlocked"),
    "NUL and a lone surrogate": (lambda: ValueError("a\0b\ud800"), r"ValueError: a\x00b\ud800"),
    "ten million characters": (lambda: ValueError("x" * 10_000_000), "ValueError: xxx"),
}
UNSTORABLE: dict[str, Callable[[], Any]] = {
    "an object": object,
    "NaN": lambda: math.nan,
    "a lone surrogate": lambda: "a\ud800",
    "too large": lambda: "x" * 2_000_000,
}


@task(name="raises", max_attempts=1)
def raises(name: str) -> None:
    raise RAISED[name][0]()


@task(name="araises", max_attempts=1)
async def araises(name: str) -> None:
    raise RAISED[name][0]()


@task(name="returns", max_attempts=1)
def returns(name: str) -> Any:
    return UNSTORABLE[name]()


@task(name="says", max_attempts=3, backoff=AT_ONCE)
def says(word: str) -> None:
    raise {
        "retry": Retry("later", delay="100s"),
        "snooze": Snooze("100s"),
        "cancel": Cancel("no need"),
        "dead": Dead("enough"),
    }[word]


class Rare(Exception): ...


@task(name="ruled", retry_on={Rare: None})
def ruled() -> None:
    raise Rare("never again")


# -- that die ----------------------------------------------------------------------------------------------------------


@task(name="dies", max_attempts=2, backoff=AT_ONCE)
def dies(how: str, note: str = "") -> None:
    if note:
        Path(note).write_text(str(os.getpid()))
    match how:
        case "SIGKILL":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit 0":
            os._exit(0)
        case "exit 3":
            os._exit(3)
        case "segfault":
            ctypes.string_at(0)
        case "abort":
            os.abort()
        case "closes everything":
            time.sleep(0.3)  # the loop waits by then, and so does the thread that reads: neither notices by itself
            os.closerange(3, 1000)
            time.sleep(60)
        case "talks nonsense":
            for fd in _sockets():
                os.write(fd, b"\x00\x00\x00\x05hello")
            time.sleep(60)


@task(name="adies", max_attempts=2, backoff=AT_ONCE)
async def adies() -> None:
    os._exit(3)


def _sockets() -> list[int]:
    """Among them our end of the talk with the worker."""
    return [int(p.name) for p in Path("/proc/self/fd").iterdir() if _link(p).startswith("socket:")]


def _link(path: Path) -> str:
    try:
        return os.readlink(path)
    except FileNotFoundError:
        return ""


@task(name="forks")
def forks(returns: bool) -> int:
    """Fork, and end in the fork, or come back from it."""
    pid = os.fork()
    if pid == 0:
        if not returns:
            os._exit(0)
        return 0
    os.waitpid(pid, 0)
    return os.getpid()


@task(name="pools", timeout=60)
def pools() -> list[Any]:
    """multiprocessing inside, which ends its processes by SIGTERM."""
    context = multiprocessing.get_context("fork")
    with context.Pool(2) as pool:
        found = pool.map(abs, [-1, -2, -3])
    process = context.Process(target=time.sleep, args=(600,))
    process.start()
    process.terminate()
    process.join(5)
    return [*found, process.exitcode]


@task(name="dies_with_company", max_attempts=1)
def dies_with_company(path: str) -> None:
    """Start a program that holds everything open, write its number down, and die."""
    program = subprocess.Popen(["sleep", "600"], close_fds=False)
    Path(path).write_text(str(program.pid))
    os._exit(5)


# -- that do not end ---------------------------------------------------------------------------------------------------


@task(name="hangs", max_attempts=1)
def hangs(how: str, path: str = "") -> None:
    if path:
        Path(path).write_text(str(os.getpid()))
    match how:
        case "python":
            while True:
                pass
        case "a regular expression":  # holds the GIL all the time
            re.match(r"(a+)+$", "a" * 60 + "b")
        case "a call in C":
            ctypes.PyDLL(None).sleep(600)  # PyDLL: the GIL is held
        case "a call that blocks":
            time.sleep(600)
        case "ignores signals":
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                signal.pthread_sigmask(signal.SIG_BLOCK, [number])
            while True:
                time.sleep(1)


@task(name="ahangs", max_attempts=1)
async def ahangs(swallow: bool = False) -> None:
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            if not swallow:
                raise


# -- that take memory --------------------------------------------------------------------------------------------------


@task(name="takes", max_attempts=1, memory="256MiB")
def takes(mib: int, how: str = "bytes") -> int:
    """Allocate so much, one way or the other. Answers the process."""
    count = mib * 1024**2
    match how:
        case "bytes":
            _keep = b"x" * count
        case "pieces":
            _keep = [bytes(1024**2) for _ in range(mib)]  # type: ignore[assignment]
        case "anonymous mmap":
            mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE)
        case "shared mmap":
            mmap.mmap(-1, count)
        case "malloc":
            libc = ctypes.CDLL(None)
            libc.malloc.restype = ctypes.c_void_p
            if not libc.malloc(ctypes.c_size_t(count)):
                raise MemoryError("malloc said no")
    return os.getpid()


kept: list[bytes] = []


@task(name="leaks")
def leaks(mib: int) -> int:
    """Allocate so much and keep it."""
    kept.append(b"x" * (mib * 1024**2))
    return os.getpid()
