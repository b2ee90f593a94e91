"""A POST over HTTP/1.1 with nothing but asyncio: as much of a client as a webhook needs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress


async def post(host: str, port: int, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
    """Send `body` and return the answer's status and body. Waits as long as it takes: the task's timeout decides."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_head(host, port, path, len(body), headers) + body)
        await writer.drain()
        status = await reader.readline()
        parts = status.split(None, 2)
        if len(parts) < 2 or not parts[1].isdigit():
            raise ConnectionError(f"not an HTTP answer: {status[:80]!r}")
        answer = await reader.read()  # the server closes: we asked it to
        return int(parts[1]), answer.partition(b"\r\n\r\n")[2]
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


def _head(host: str, port: int, path: str, length: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}:{port}", "Connection: close", f"Content-Length: {length}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
