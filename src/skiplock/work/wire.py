"""The worker's end of the pair of sockets that leads to a child process, on the event loop.

Not a transport of the loop's: when the other side is gone before such a transport is set up, uvloop's closes the descriptor
while Python's socket still holds its number, and closes it again later; by then it may be a connection to the database.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

PIECE = 262_144  # bytes of one read


class Wire:
    """Owns the socket. `on_data(bytes)` for what arrives; `on_end()` once, when the other side is gone or `end` is called."""

    def __init__(self, sock: socket.socket, on_data: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        sock.setblocking(False)
        self.ended = False
        self._socket, self._fd = sock, sock.fileno()
        self._on_data, self._on_end = on_data, on_end
        self._loop = asyncio.get_running_loop()
        self._unsent = bytearray()
        self._writes = False  # the loop tells when there is room
        self._loop.add_reader(self._fd, self._read)

    def send(self, data: bytes) -> None:
        """In time; into the void, if the other side is gone: reading tells."""
        if not self.ended:
            self._unsent += data
            if not self._writes:
                self._write()

    def end(self) -> None:
        """Close it."""
        if self.ended:
            return
        self.ended = True
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._socket.close()
        self._on_end()

    def _read(self) -> None:
        try:
            data = self._socket.recv(PIECE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._on_data(data)
        else:
            self.end()

    def _write(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(self._unsent)
        del self._unsent[:sent]
        if bool(self._unsent) != self._writes:
            self._writes = not self._writes
            if self._writes:
                self._loop.add_writer(self._fd, self._write)
            else:
                self._loop.remove_writer(self._fd)
