"""A proxy in front of PostgreSQL that fails on demand, down to a single statement.

    with fault_proxy(dsn) as proxy:
        app = Skiplock(proxy.dsn)
        trap = proxy.trap("skiplock.settle(", Moment.AFTER, Way.RESET)
        ...                                     # the next settle is committed, and its answer never arrives
        trap.wait()
        proxy.cut(Way.FIN, "skiplock heart")    # connections there are now, by application_name; without one: all
        proxy.weather = Weather.SILENT          # for connections to come
        proxy.delay = 0.1                       # seconds, for whatever passes, both ways

`Way.SILENCE` is a half-open connection: whatever comes is taken and acknowledged, nothing is ever answered, and neither side
is told. `Way.STALL` takes nothing either, so that the sender's data stays unacknowledged.

It runs in a thread of its own and speaks just enough of the protocol
(https://www.postgresql.org/docs/current/protocol-message-formats.html) to know which statement is about to be executed and
when its answer is complete. One statement at a time and no TLS, as our own connections are.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from psycopg.conninfo import conninfo_to_dict

T = TypeVar("T")
_CANCEL, _SSL, _GSS = 80877102, 80877103, 80877104  # codes in place of a protocol version
_SENT_ON = b"SQXHpdcfF"  # messages after which the client may wait for something: passed on up to here
_AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset


class Way(Enum):
    """How a connection ends."""

    FIN = "closed in good order"
    RESET = "reset"
    SILENCE = "half-open"
    STALL = "half-open and full"


class Moment(Enum):
    """When a trap springs: before the statement reaches the server, or after its answer (so after its commit) left it."""

    BEFORE = "before"
    AFTER = "after"


class Weather(Enum):
    """What happens to new connections."""

    FAIR = "fair"
    REFUSED = "refused"
    SILENT = "silent"  # accepted, never answered


@dataclass
class Trap:
    """Waits for the `nth` execution of a statement with this text in it (on connections of that application_name).

    `keep`: of an answer that is withheld, so many bytes are delivered all the same, but never a whole one.
    """

    text: str
    moment: Moment
    way: Way
    name: str = ""
    nth: int = 1
    keep: int = 0
    seen: int = 0
    sprung: threading.Event = field(default_factory=threading.Event)

    def wait(self, seconds: float = 20.0) -> None:
        assert self.sprung.wait(seconds), f"{self.text}: executed {self.seen} times in {seconds} s"

    def matches(self, name: str, text: str) -> bool:
        return self.text in text and self.name in ("", name)


def take_messages(buffer: bytearray) -> list[bytes]:
    """Remove the complete messages from the front of the buffer: a letter, a length that counts itself, a body."""
    found, at = [], 0
    while len(buffer) - at >= 5:
        end = at + 1 + int.from_bytes(buffer[at + 1 : at + 5], "big")
        if len(buffer) < end:
            break
        found.append(bytes(buffer[at:end]))
        at = end
    del buffer[:at]
    return found


class Wire:
    """One connection through the proxy."""

    def __init__(self, proxy: FaultProxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.proxy = proxy
        self.name = ""  # application_name
        self.reader, self.writer = reader, writer
        self.up: asyncio.StreamWriter | None = None
        self.way: Way | None = None  # how it ended
        self._texts: dict[bytes, str] = {}  # of prepared statements, by name
        self._armed: Trap | None = None  # its answer is to be withheld

    async def run(self) -> None:
        """Until either side has closed."""
        try:
            hello, code = await self._hello()
            if self.proxy.weather is Weather.SILENT:
                self.way = Way.SILENCE
                await self._swallow()
                return
            down, self.up = await self.proxy.connect()
            self.up.write(hello)
            passing = [asyncio.create_task(self._pass_answers(down))]
            if code != _CANCEL:
                passing.append(asyncio.create_task(self._pass_statements()))
            _, left = await asyncio.wait(passing, return_when=asyncio.FIRST_COMPLETED)
            if left and self.way in (Way.SILENCE, Way.STALL):
                await asyncio.wait(left)  # the server has gone: the client does not learn it
            for task in left:
                task.cancel()
            await asyncio.gather(*passing, return_exceptions=True)
        except (OSError, asyncio.IncompleteReadError):
            self.way = self.way or Way.RESET
        finally:
            self.end(Way.FIN)

    async def _hello(self) -> tuple[bytes, int]:
        while True:
            head = await self.reader.readexactly(8)
            length, code = struct.unpack("!II", head)
            body = await self.reader.readexactly(length - 8)
            if code not in (_SSL, _GSS):
                break
            if self.proxy.weather is not Weather.SILENT:
                self.writer.write(b"N")
        words = body.split(b"\0")
        if b"application_name" in words:
            self.name = words[words.index(b"application_name") + 1].decode()
        return head + body, code

    async def _swallow(self) -> None:
        while await self.reader.read(65536):
            pass

    # -- from the client to the server -----------------------------------------------------------------------------

    async def _pass_statements(self) -> None:
        buffer, group, texts = bytearray(), bytearray(), list[str]()
        while chunk := await self.reader.read(65536):
            if self.way is Way.STALL:
                await asyncio.Event().wait()  # and read no more
            buffer += chunk
            for message in take_messages(buffer):
                group += message
                texts += self._executed(message)
                if message[0] in _SENT_ON:
                    await self._send(bytes(group), texts)
                    group.clear()
                    texts = []

    def _executed(self, message: bytes) -> list[str]:
        """The text of the statement that this message has executed, if it does: Q(uery), or B(ind) of a P(arsed) one."""
        words = message[5:].split(b"\0", 2)
        if message[:1] == b"Q":
            return [words[0].decode()]
        if message[:1] == b"P":
            self._texts[words[0]] = words[1].decode()
        return [self._texts[words[1]]] if message[:1] == b"B" else []

    async def _send(self, group: bytes, texts: list[str]) -> None:
        if self.way is not None or self.up is None:
            return
        await asyncio.sleep(self.proxy.delay)
        self.proxy.sent += [(self.name, text) for text in texts]
        trap = self.proxy.sprung(self.name, texts)
        if trap is not None and trap.moment is Moment.BEFORE:
            self.end(trap.way)
            trap.sprung.set()
            return
        self._armed = trap
        self.up.write(group)
        await self.up.drain()

    # -- from the server to the client -----------------------------------------------------------------------------

    async def _pass_answers(self, down: asyncio.StreamReader) -> None:
        buffer, withheld = bytearray(), bytearray()
        while chunk := await down.read(65536):
            await asyncio.sleep(self.proxy.delay)
            if self.way is not None:
                continue
            if self._armed is None:
                self.writer.write(chunk)
                await self.writer.drain()
                continue
            buffer += chunk
            for message in take_messages(buffer):
                withheld += message
                if message[:1] == b"Z":  # ready for the next query: it is committed
                    trap, self._armed = self._armed, None
                    self.writer.write(withheld[: min(trap.keep, len(withheld) - len(message) - 1)])
                    self.end(trap.way)
                    trap.sprung.set()
                    return

    # -- ending ----------------------------------------------------------------------------------------------------

    def end(self, way: Way) -> None:
        """End it like that. What is half-open can still be closed."""
        self.way = way
        if way in (Way.SILENCE, Way.STALL):
            return
        if way is Way.RESET:
            with suppress(OSError):  # closed by the client meanwhile
                self.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
            self.writer.transport.abort()
        self.writer.close()
        if self.up is not None:
            self.up.close()


class FaultProxy:
    """See the module. Its methods may be called from any thread."""

    def __init__(self, dsn: str, *, receive_buffer: int | None = None) -> None:
        target = conninfo_to_dict(dsn)
        self._host, self._port = str(target["host"]), int(target.get("port") or 5432)
        self._user, self._database = str(target.get("user") or "postgres"), str(target["dbname"])
        self._receive_buffer = receive_buffer
        self.delay = 0.0
        self.weather = Weather.FAIR
        self.sent: list[tuple[str, str]] = []  # (application_name, text) of every statement that came
        self.wires: list[Wire] = []
        self._traps: list[Trap] = []
        self._loop = asyncio.new_event_loop()
        self._listening: asyncio.Server | None = None
        self._address = ("127.0.0.1", 0)
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy", daemon=True)

    # -- what tests say --------------------------------------------------------------------------------------------

    @property
    def dsn(self) -> str:
        """The same database, through the proxy, over TCP."""
        return self.dsn_with()

    def dsn_with(self, **settings: object) -> str:
        """The DSN with these parameters of libpq."""
        host, port = self._address
        more = f"?{urlencode(settings)}" if settings else ""
        return f"postgresql://{quote(self._user)}@{host}:{port}/{quote(self._database)}{more}"

    def trap(self, text: str, moment: Moment, way: Way, **more: Any) -> Trap:
        """Spring once, at the next (or `nth`) execution of a statement with that text in it."""
        found = Trap(text, moment, way, **more)
        self._traps.append(found)
        return found

    def cut(self, way: Way, name: str = "") -> int:
        """End the connections there are now (of that application_name); answers how many."""

        def act() -> int:
            chosen = [wire for wire in self.wires if wire.way is None and name in ("", wire.name)]
            for wire in chosen:
                wire.end(way)
            return len(chosen)

        return self._do(act)

    def refuse(self) -> None:
        """From now on new connections are refused."""
        self.weather = Weather.REFUSED
        self._do(self._stop_listening)

    def accept(self) -> None:
        """The weather is fair again."""
        self.weather = Weather.FAIR
        if self._listening is None:
            asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def names(self) -> list[str]:
        """application_name of the connections that work."""
        return self._do(lambda: sorted(wire.name for wire in self.wires if wire.way is None and wire.up is not None))

    def count(self, text: str) -> int:
        """How many statements with that text in it have come."""
        return sum(text in statement for _, statement in list(self.sent))

    # -- its own life ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result(10)

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _do(self, act: Callable[[], T]) -> T:
        async def there() -> T:
            return act()

        return asyncio.run_coroutine_threadsafe(there(), self._loop).result(10)

    async def _listen(self) -> None:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self._receive_buffer is not None:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self._receive_buffer)
        listening.bind(self._address)
        self._address = listening.getsockname()
        self._listening = await asyncio.start_server(self._accepted, sock=listening, backlog=200)

    def _stop_listening(self) -> None:
        if self._listening is not None:
            self._listening.close()
            self._listening = None

    async def _end(self) -> None:
        self._stop_listening()
        for wire in self.wires:
            wire.end(Way.FIN)
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wire = Wire(self, reader, writer)
        self.wires.append(wire)
        try:
            await wire.run()
        except asyncio.CancelledError:
            return  # by `_end`; asyncio.streams would report it as an error of ours
        finally:
            self.wires.remove(wire)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """To the server."""
        if self._host.startswith("/"):
            return await asyncio.open_unix_connection(str(Path(self._host) / f".s.PGSQL.{self._port}"))
        return await asyncio.open_connection(self._host, self._port)

    def sprung(self, name: str, texts: list[str]) -> Trap | None:
        """The trap that these statements spring."""
        for trap in self._traps:
            trap.seen += sum(trap.matches(name, text) for text in texts)
            if trap.seen >= trap.nth:
                self._traps.remove(trap)
                return trap
        return None


@contextmanager
def fault_proxy(dsn: str, *, receive_buffer: int | None = None) -> Iterator[FaultProxy]:
    """One in front of that server. `receive_buffer`: bytes its sockets take before they are full."""
    proxy = FaultProxy(dsn, receive_buffer=receive_buffer)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()
