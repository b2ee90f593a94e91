"""The demo's tasks. This is what an application writes; all the rest of this package only watches them run."""

from __future__ import annotations

import asyncio
import smtplib
import time
from email.message import EmailMessage
from functools import cache

import msgspec

from skiplock import Backoff, Dead, JobContext, Retry, Skiplock
from skiplock.cli.demo.data import shop
from skiplock.cli.demo.documents import read_document
from skiplock.cli.demo.invoice import write_invoice
from skiplock.cli.demo.posting import post
from skiplock.cli.demo.surroundings import HOST, INDEX, INVOICE, MAIL, WEBHOOK, Surroundings

BACKOFF = Backoff(base=0.5, cap=3)
app = Skiplock()


@app.task(queue=MAIL, max_attempts=5, timeout=30, backoff=BACKOFF)
def send_welcome(ctx: JobContext, to: str, name: str) -> None:
    """A welcome e-mail. `def`: it runs in a thread, as smtplib blocks."""
    message = _welcome(ctx.job.id, to, name)
    try:
        with smtplib.SMTP(HOST, surroundings().smtp_port, local_hostname="localhost", timeout=10) as server:
            server.send_message(message)
    except smtplib.SMTPRecipientsRefused as refused:
        code, text = refused.recipients[to]
        reason = f"{code} {text.decode(errors='replace')}"
        if code >= 500:
            raise Dead(reason) from None  # this address will never take mail: no use in trying again
        raise Retry(reason) from None


@app.task(queue=INVOICE, max_attempts=5, timeout=30, backoff=BACKOFF)
def make_invoice(order: str) -> str:
    """An invoice as a PDF file."""
    wanted = shop().order(order)
    path = write_invoice(wanted, shop().customer(wanted.customer), surroundings().invoices)
    time.sleep(1.1 * surroundings().pace)
    return path.name


@app.task(queue=WEBHOOK, max_attempts=5, timeout=4, backoff=BACKOFF)
async def post_webhook(ctx: JobContext, order: str) -> None:
    """Tell a partner about an order. `async def`: it runs on the worker's event loop."""
    body = msgspec.json.encode(
        {"event": "order.placed", "order": order, "total_cents": shop().order(order).total_cents}
    )
    headers = {"Content-Type": "application/json", "Idempotency-Key": str(ctx.job.id)}
    status, _ = await post(HOST, surroundings().http_port, "/hooks/orders", body, headers)
    if status >= 300:
        raise RuntimeError(f"the partner answered {status}")  # any exception means: try again, after the backoff


@app.task(queue=INDEX, max_attempts=5, timeout=30, backoff=BACKOFF)
async def index_document(ctx: JobContext, module: str) -> None:
    """Put a document into the full-text table, in the transaction that completes this job: both happen or neither.

    So there is no ON CONFLICT here: the primary key would show a second time.
    """
    document = await asyncio.to_thread(read_document, module)
    await asyncio.sleep(0.22 * surroundings().pace)
    async with ctx.transaction() as connection:
        await connection.execute(
            "INSERT INTO demo_documents (module, title, body, job_id, search) VALUES (%s, %s, %s, %s,"
            " setweight(to_tsvector('english', %s), 'A') || setweight(to_tsvector('english', %s), 'B'))",
            (module, document.title, document.body, ctx.job.id, f"{module} {document.title}", document.body),
        )


@cache
def surroundings() -> Surroundings:
    return Surroundings.from_env()


def _welcome(job_id: int, to: str, name: str) -> EmailMessage:
    """The Message-ID comes from the job's id, so that a receiver can drop what a crash makes us send twice."""
    message = EmailMessage()
    message["From"] = '"Hazel & Wren" <hello@hazelwren.example>'
    message["To"] = to
    message["Subject"] = f"Welcome, {name}"
    message["Message-ID"] = f"<job-{job_id}@hazelwren.example>"
    message["X-Skiplock-Job"] = str(job_id)
    message.set_content(
        f"Dear {name},\n\nwelcome to Hazel & Wren. Your account is ready.\n\n"
        "Paper, pens and ink, and somebody who answers when you write:\nhello@hazelwren.example\n"
    )
    return message
