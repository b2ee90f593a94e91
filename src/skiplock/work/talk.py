"""What a worker and its child processes say to each other: messages in frames, over a pair of sockets.

    worker ─▶ child   Hello, then for each job Work; Leave
    child ─▶ worker   for each job Began, then Ended; or Refused. Completing, in between

A frame is four bytes of length and one message in msgpack.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

import msgspec

from skiplock.core.job import Job
from skiplock.core.outcome import Outcome
from skiplock.core.settings import Settings

T = TypeVar("T")
_LENGTH = 4


class Main(msgspec.Struct, frozen=True):
    """The worker's `__main__`, as a module's name or a file."""

    name: str | None = None
    path: bytes | None = None


class Hello(msgspec.Struct, frozen=True, tag=True):
    """What a child must know to see the application as its worker does.

    `modules` are imported in that order. `app_at`: module and attribute where the worker found its app. `main`: given if
    one of the modules is `__main__`. Paths are bytes, as the file system has them.
    """

    path: list[bytes]
    argv: list[bytes]
    modules: list[str]
    app_at: tuple[str, str] | None
    main: Main | None
    settings: Settings


class Work(msgspec.Struct, frozen=True, tag=True):
    """Run this attempt. `memory`: bytes the child may have meanwhile."""

    job: Job
    memory: int | None = None


class Leave(msgspec.Struct, frozen=True, tag=True):
    """End in good order."""


class Began(msgspec.Struct, frozen=True, tag=True):
    """The attempt begins."""

    job: int


class Completing(msgspec.Struct, frozen=True, tag=True):
    """The handler is about to complete its job in a transaction of its own."""

    job: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The attempt has ended like that. `resident`: bytes of RAM the child holds. `spent`: it should not run another."""

    outcome: Outcome
    resident: int
    spent: bool = False


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The attempt did not begin: the task could not be imported."""

    job: int
    reason: str


ToChild = Hello | Work | Leave
ToWorker = Began | Completing | Ended | Refused
_encode = msgspec.msgpack.Encoder().encode


def frame(message: ToChild | ToWorker) -> bytes:
    """The message as it goes over the socket."""
    body = _encode(message)
    return len(body).to_bytes(_LENGTH, "big") + body


class Frames(Generic[T]):
    """Cuts what arrives into messages. `Frames(ToChild)` on the one side, `Frames(ToWorker)` on the other."""

    def __init__(self, messages: Any) -> None:
        self._decode: Callable[[bytes], T] = msgspec.msgpack.Decoder(messages).decode
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[T]:
        """The messages that are complete now. Raises msgspec.MsgspecError for what is none."""
        buffer = self._buffer
        buffer += data
        while len(buffer) >= _LENGTH:
            end = _LENGTH + int.from_bytes(buffer[:_LENGTH], "big")
            if len(buffer) < end:
                return
            body = bytes(buffer[_LENGTH:end])
            del buffer[:end]
            yield self._decode(body)
