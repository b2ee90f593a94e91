"""The outside world of the demo: a mail server and a partner's web server, real ones, on ports of their own.

Both misbehave, always in the same way:

- the mail server refuses ``…+slow@…`` once and ``…+slower@…`` twice with 450, and ``nobody@…`` for good with 550;
- the web server answers the first try of some orders with 503, and never answers the first try of one of them.

Both are idempotent receivers: what a crash makes a worker send twice is taken once and counted as a duplicate.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from email import message_from_bytes, policy
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from aiosmtpd.smtp import SMTP, Envelope, Session

from skiplock.cli.demo.surroundings import HOST

REFUSE_EVERY, HANG_AT = 6, 20  # of the orders, by number: those get 503 at first; this one hangs at first


class MailServer:
    """aiosmtpd's handler. `delivered` maps a Message-ID to its recipient."""

    def __init__(self, folder: Path, pace: float) -> None:
        self.delivered: dict[str, str] = {}
        self.duplicates = 0
        self.refused_for_now: Counter[str] = Counter()
        self.refused_for_good = 0
        self._folder, self._pace = folder, pace

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if address.startswith("nobody@"):
            self.refused_for_good += 1
            return "550 5.1.1 No such mailbox"
        if self.refused_for_now[address] < refusals(address):
            self.refused_for_now[address] += 1
            return "450 4.2.1 Mailbox busy, try again later"
        envelope.rcpt_tos.append(address)
        envelope.rcpt_options.extend(options)
        return "250 2.1.5 Recipient OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        content = envelope.original_content or b""
        message = message_from_bytes(content, policy=policy.default)
        message_id = str(message["Message-ID"]).strip()
        if message_id in self.delivered:
            self.duplicates += 1
        else:
            self.delivered[message_id] = envelope.rcpt_tos[0]
            (self._folder / f"mail-{len(self.delivered):02d}.eml").write_bytes(content)
        await asyncio.sleep(1.1 * self._pace)  # kept at once, acknowledged late: a crash in between means a duplicate
        return "250 2.0.0 Taken"


class WebhookServer:
    """A partner that takes orders over HTTP. `delivered` maps an Idempotency-Key to the order's number."""

    def __init__(self, pace: float) -> None:
        self.delivered: dict[str, str] = {}
        self.duplicates = 0
        self.refused = 0
        self.hung = 0
        self._tries: Counter[str] = Counter()
        self._pace = pace

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            key, body = await _read_request(reader)
            await self._answer(key, body, reader, writer)
        except (OSError, EOFError, LookupError, ValueError):
            pass  # the client went away or made no sense; it will be back
        finally:
            writer.close()

    async def _answer(self, key: str, body: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        order: str = msgspec.json.decode(body)["order"]
        number = int(order.rpartition("-")[2])
        self._tries[key] += 1
        if self._tries[key] == 1 and number == HANG_AT:
            self.hung += 1
            await reader.read()  # until the client gives up
            return
        if self._tries[key] == 1 and number % REFUSE_EVERY == 0:
            self.refused += 1
            await _respond(writer, "503 Service Unavailable", b'{"error":"busy"}')
            return
        if key in self.delivered:
            self.duplicates += 1
        self.delivered.setdefault(key, order)
        await asyncio.sleep(0.9 * self._pace)
        await _respond(writer, "200 OK", b'{"ok":true}')


class Servers:
    """Both servers on one event loop in a thread.

    with Servers(mails, pace=1) as servers:
        servers.smtp_port, servers.http_port, servers.mail.delivered
    """

    def __init__(self, mails: Path, pace: float = 1.0) -> None:
        self.mail = MailServer(mails, pace)
        self.webhook = WebhookServer(pace)
        self.smtp_port = self.http_port = 0
        self._up = threading.Event()
        self._error: BaseException | None = None
        self._stop: Callable[[], object] = bool
        self._thread = threading.Thread(target=self._run, name="demo-servers", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._up.wait()
        if self._error is not None:
            raise self._error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        self._thread.join(5)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except BaseException as error:
            self._error = error
        finally:
            self._up.set()

    async def _main(self) -> None:
        loop = asyncio.get_running_loop()
        done = asyncio.Event()
        self._stop = lambda: _call(loop, done.set)
        smtp = await loop.create_server(lambda: self._smtp(loop), HOST, 0)
        http = await asyncio.start_server(self.webhook.serve, HOST, 0)
        self.smtp_port, self.http_port = (server.sockets[0].getsockname()[1] for server in (smtp, http))
        self._up.set()
        await done.wait()
        smtp.close()
        http.close()  # open conversations are cancelled when the loop ends

    def _smtp(self, loop: asyncio.AbstractEventLoop) -> SMTP:
        return SMTP(self.mail, hostname="mail.demo.example", ident="skiplock demo", loop=loop)


def refusals(address: str) -> int:
    """How often the mail server says 450 before it takes mail for this address."""
    local = address.partition("@")[0]
    return 2 if local.endswith("+slower") else 1 if local.endswith("+slow") else 0


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[], Any]) -> None:
    with suppress(RuntimeError):  # the loop has ended by itself
        loop.call_soon_threadsafe(function)


async def _read_request(reader: asyncio.StreamReader) -> tuple[str, bytes]:
    """The Idempotency-Key and the body of one POST."""
    head = await reader.readuntil(b"\r\n\r\n")
    _, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return headers["idempotency-key"], body


async def _respond(writer: asyncio.StreamWriter, status: str, body: bytes) -> None:
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode("latin-1") + body)
    await writer.drain()
