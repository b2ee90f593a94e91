"""What the adapters of peers have in common."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from bench.peers import install
from bench.peers.install import Say, Unavailable, Version
from bench.system import System


class Peer(System):
    """A system in a virtual environment of its own. Every adapter's class is called `Adapter`."""

    # What pip installs, the peer itself first. Versions are left open: the newest is measured.
    packages: ClassVar[tuple[str, ...]]
    needs_python: ClassVar[Version] = (3, 11)

    def __init_subclass__(cls) -> None:
        if "name" in vars(cls):
            cls.python = str(install.python_of(cls.name))

    @classmethod
    def install(cls, say: Say) -> None:
        """Make it ready to run, unless it is. Raises Unavailable."""
        install.with_pip(cls.name, cls.packages, cls.needs_python, say)

    @classmethod
    def version(cls) -> str:
        distribution = cls.packages[0].partition("[")[0]
        code = f"from importlib.metadata import version; print(version({distribution!r}))"
        return subprocess.run([cls.python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    async def bulk(self, numbers: Sequence[int]) -> None:
        """Where there is no bulk API: a loop."""
        for n in numbers:
            await self.one(n)

    async def close(self) -> None:
        """Where nothing is open."""


class RedisPeer(Peer):
    """One that keeps its jobs in Redis: `dsn` is its URL, unix://PATH."""

    kind_of_store = "redis"

    @classmethod
    def install(cls, say: Say) -> None:
        if not shutil.which("redis-server"):
            raise Unavailable("redis-server not found")
        super().install(say)


class NodePeer(Peer):
    """One for Node: `NAME.mjs` beside this file is its child process, and does what `bench.child` does."""

    package: ClassVar[str]
    needs_node: ClassVar[int] = 20

    @classmethod
    def command(cls) -> list[str]:
        return ["node", str(Path(__file__).with_name(f"{cls.name}.mjs")), str(install.node_folder(cls.name))]

    @classmethod
    def install(cls, say: Say) -> None:
        install.with_npm(cls.name, cls.package, cls.needs_node, say)

    @classmethod
    def version(cls) -> str:
        folder = install.node_folder(cls.name) / "node_modules" / cls.package.partition("@")[0]
        return str(json.loads((folder / "package.json").read_text())["version"])

    async def open(self) -> None:
        raise NotImplementedError

    async def one(self, n: int) -> None:
        raise NotImplementedError

    def work(self, marks: Any) -> None:
        raise NotImplementedError


async def gathered(enqueue: Any, numbers: Sequence[int], together: int = 100) -> None:
    """For asyncio peers with no bulk API: so many enqueues at once."""
    for k in range(0, len(numbers), together):
        await asyncio.gather(*[enqueue(n) for n in numbers[k : k + together]])


def on_signal(stop: Callable[[], object]) -> None:
    """For workers on the event loop that have no signal handling of their own."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)


async def until_signal() -> None:
    """For those that have no end of their own, either."""
    event = asyncio.Event()
    on_signal(event.set)
    await event.wait()


def wait_for_signal() -> None:
    """The same without an event loop."""
    event = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: event.set())
    event.wait()
