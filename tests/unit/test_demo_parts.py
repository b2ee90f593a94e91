"""The demo's parts, each for real: mail over SMTP, calls over HTTP, PDF files, documents, the picture, the verdict."""

from __future__ import annotations

import asyncio
import json
import smtplib
import threading
from collections.abc import Iterator
from dataclasses import replace
from email.message import EmailMessage
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from skiplock.cli.demo.data import money, percent, shop
from skiplock.cli.demo.documents import module_names, read_document
from skiplock.cli.demo.invoice import render_invoice, write_invoice
from skiplock.cli.demo.posting import post
from skiplock.cli.demo.screen import Picture, open_screen, spark
from skiplock.cli.demo.servers import HANG_AT, REFUSE_EVERY, Servers, refusals
from skiplock.cli.demo.summary import Hit, Summary
from skiplock.cli.demo.surroundings import HOST, INDEX, MAIL, QUEUES, Surroundings
from skiplock.cli.demo.truth import Snapshot, Worker


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    with Servers(tmp_path, pace=0) as running:
        yield running


def send(servers: Servers, to: str, message_id: str) -> None:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"], message["Message-ID"] = "a@example.org", to, "Hello", message_id
    message.set_content("Hello.\n")
    with smtplib.SMTP(HOST, servers.smtp_port, local_hostname="localhost", timeout=10) as client:
        client.send_message(message)


def call(servers: Servers, order: str, key: str) -> int:
    body = json.dumps({"order": order}).encode()
    answer = post(HOST, servers.http_port, "/hooks", body, {"Idempotency-Key": key})
    return asyncio.run(asyncio.wait_for(answer, 5))[0]


class TestMailServer:
    def test_takes_a_mail_and_keeps_it(self, servers: Servers, tmp_path: Path) -> None:
        send(servers, "ann@example.org", "<1@x>")
        assert servers.mail.delivered == {"<1@x>": "ann@example.org"}
        assert b"Subject: Hello" in (tmp_path / "mail-01.eml").read_bytes()

    @pytest.mark.parametrize(("address", "times"), [("a+slow@example.org", 1), ("a+slower@example.org", 2)])
    def test_refuses_for_now_then_takes(self, servers: Servers, address: str, times: int) -> None:
        assert refusals(address) == times
        for _ in range(times):
            with pytest.raises(smtplib.SMTPRecipientsRefused) as refused:
                send(servers, address, "<1@x>")
            assert refused.value.recipients[address][0] == 450
        send(servers, address, "<1@x>")
        assert list(servers.mail.delivered.values()) == [address]

    def test_refuses_nobody_for_good(self, servers: Servers) -> None:
        for _ in range(3):
            with pytest.raises(smtplib.SMTPRecipientsRefused) as refused:
                send(servers, "nobody@example.org", "<1@x>")
            assert refused.value.recipients["nobody@example.org"][0] == 550
        assert servers.mail.delivered == {}

    def test_drops_and_counts_what_is_sent_twice(self, servers: Servers) -> None:
        send(servers, "ann@example.org", "<1@x>")
        send(servers, "ann@example.org", "<1@x>")
        assert len(servers.mail.delivered) == servers.mail.duplicates == 1

    def test_takes_many_at_once(self, servers: Servers) -> None:
        threads = [threading.Thread(target=send, args=(servers, f"p{n}@example.org", f"<{n}@x>")) for n in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(servers.mail.delivered) == 12


class TestWebhookServer:
    def test_takes_an_order_once(self, servers: Servers) -> None:
        assert [call(servers, "2026-0001", "7"), call(servers, "2026-0001", "7")] == [200, 200]
        assert servers.webhook.delivered == {"7": "2026-0001"}
        assert servers.webhook.duplicates == 1

    def test_is_busy_at_first_for_some(self, servers: Servers) -> None:
        order = f"2026-{REFUSE_EVERY:04d}"
        assert [call(servers, order, "7"), call(servers, order, "7")] == [503, 200]
        assert servers.webhook.refused == 1

    def test_hangs_once(self, servers: Servers) -> None:
        order = f"2026-{HANG_AT:04d}"

        async def impatient() -> None:
            body = json.dumps({"order": order}).encode()
            await asyncio.wait_for(post(HOST, servers.http_port, "/", body, {"Idempotency-Key": "7"}), 0.2)

        with pytest.raises(TimeoutError):
            asyncio.run(impatient())
        assert servers.webhook.hung == 1
        assert call(servers, order, "7") == 200

    def test_survives_nonsense(self, servers: Servers) -> None:
        async def nonsense() -> bytes:
            reader, writer = await asyncio.open_connection(HOST, servers.http_port)
            writer.write(b"nonsense\r\n\r\n")
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            return answer

        assert asyncio.run(nonsense()) == b""
        assert call(servers, "2026-0001", "1") == 200


def test_servers_stop_with_a_client_still_hanging(tmp_path: Path) -> None:
    async def story() -> None:
        with Servers(tmp_path, pace=0) as servers:
            body = json.dumps({"order": f"2026-{HANG_AT:04d}"}).encode()
            hanging = asyncio.create_task(post(HOST, servers.http_port, "/", body, {"Idempotency-Key": "7"}))
            while not servers.webhook.hung:
                await asyncio.sleep(0.01)
        with pytest.raises(OSError):
            await asyncio.wait_for(hanging, 5)

    asyncio.run(story())


class TestData:
    def test_the_shop(self) -> None:
        data = shop()
        assert (len(data.customers), len(data.orders)) == (40, 60)
        assert len({order.number for order in data.orders}) == 60
        assert len({customer.email for customer in data.customers}) == 40
        assert all(len(order.lines) >= 3 and data.customer(order.customer) for order in data.orders)
        assert sum(customer.email.startswith("nobody@") for customer in data.customers) == 1
        assert {refusals(customer.email) for customer in data.customers} == {0, 1, 2}

    def test_the_sums(self) -> None:
        for order in shop().orders:
            net = (
                sum(line.quantity * line.unit_cents for line in order.lines)
                - order.discount_cents
                + order.shipping_cents
            )
            assert order.total_cents == net + percent(net, order.vat_percent)

    def test_money(self) -> None:
        assert [money(5), money(123450), percent(1005, 5)] == ["0.05", "1,234.50", 50]


class TestInvoice:
    def test_one_real_pdf_for_each_order(self, tmp_path: Path) -> None:
        for order in shop().orders:
            path = write_invoice(order, shop().customer(order.customer), tmp_path)
            assert path.read_bytes().startswith(b"%PDF-")
            assert path.read_bytes().rstrip().endswith(b"%%EOF")
        assert len(list(tmp_path.iterdir())) == 60

    def test_is_deterministic(self) -> None:
        order, customer = shop().orders[0], shop().customers[0]
        assert render_invoice(order, customer) == render_invoice(order, customer)


class TestDocuments:
    def test_there_are_hundreds(self) -> None:
        assert 200 < len(module_names()) == len(set(module_names())) <= 300

    def test_all_can_be_read_at_once_by_threads(self) -> None:
        async def read_all() -> list[int]:
            documents = await asyncio.gather(*(asyncio.to_thread(read_document, name) for name in module_names()))
            return [len(document.body) for document in documents]

        assert sum(size > 200 for size in asyncio.run(read_all())) > 200

    def test_a_document(self) -> None:
        document = read_document("tempfile")
        assert document.title == "Temporary files."
        assert "TemporaryDirectory: Create and return a temporary directory." in document.body


SEEN = Snapshot(
    states={queue: {"ready": 10, "running": 2, "completed": 7, "dead": 1 if queue == MAIL else 0} for queue in QUEUES},
    retried={MAIL: 3},
    workers=(Worker(1, 4711, 2), Worker(2, 4712, 1)),
)


class TestScreen:
    def test_counts(self) -> None:
        assert (SEEN.total(INDEX), SEEN.settled(MAIL), SEEN.depth, SEEN.retries) == (19, 8, 40, 3)

    @pytest.mark.parametrize("width", [80, 100, 120])
    def test_the_picture_fits(self, width: int) -> None:
        picture = Picture(0.0)
        for second in range(1, 30):
            picture.note(float(second), SEEN)
        picture.victims.append(4710)
        picture.event(29.0, "a long story " * 20, "bold")
        console = Console(file=StringIO(), width=width, record=True)
        console.print(picture.draw(width))
        lines = console.export_text().splitlines()
        assert {len(line) for line in lines} == {width}
        assert len(lines) <= 24
        text = "\n".join(lines)
        assert all(label in text for label in QUEUES.values())
        assert "00:29  a long story" in text
        assert all(
            part in text for part in ("3 retried", "1 dead", "40 waiting", "✗ 4710 killed", "● 4711", "holds 1 job")
        )

    def test_plain_lines_where_there_is_no_terminal(self) -> None:
        out = StringIO()
        with open_screen(Console(file=out, width=40)) as screen:
            screen.event("something [happened] that is longer than the line is wide")
            screen.update(SEEN)
        assert out.getvalue() == "00:00  something [happened] that is longer than the line is wide\n"

    def test_spark(self) -> None:
        from collections import deque

        assert spark(deque([0.0, 50.0, 100.0]), 5) == "▁▁▁▅█"
        assert spark(deque(), 3) == "▁▁▁"


GOOD = Summary(
    enqueued=460,
    completed=459,
    dead=1,
    lost=0,
    twice=0,
    retried=20,
    rescued=9,
    held=9,
    mails=39,
    mails_expected=39,
    mail_duplicates=1,
    invoices=60,
    invoices_expected=60,
    webhooks=60,
    webhooks_expected=60,
    webhook_duplicates=0,
    documents=300,
    documents_expected=300,
    dead_expected=1,
    killed_pid=4711,
    recovered_after=0.2,
    fleet_exit=0,
    seconds=25.04,
    query="temporary file",
    hits=(Hit("tempfile", "Temporary files."),),
)


class TestSummary:
    def test_good(self) -> None:
        assert GOOD.ok
        found = json.loads(GOOD.to_json())
        assert (found["ok"], found["failed"], found["lost"], found["seconds"]) == (True, [], 0, 25.0)

    @pytest.mark.parametrize(
        ("change", "failed"),
        [
            ({"completed": 458}, "completed"),
            ({"dead": 2}, "dead"),
            ({"dead": 0}, "dead"),
            ({"lost": 1}, "lost"),
            ({"twice": 1}, "run to completion twice"),
            ({"retried": 0}, "retried"),
            ({"rescued": 8}, "rescued"),
            ({"rescued": 0, "held": 0}, "rescued"),
            ({"killed_pid": None}, "rescued"),
            ({"mails": 38}, "mails received"),
            ({"mails": 40}, "mails received"),
            ({"invoices": 59}, "invoices written"),
            ({"webhooks": 59}, "webhooks received"),
            ({"documents": 299}, "documents indexed"),
            ({"hits": ()}, "search for “temporary file”"),
            ({"fleet_exit": None}, "workers stopped"),
            ({"fleet_exit": 1}, "workers stopped"),
        ],
    )
    def test_one_thing_wrong_is_enough(self, change: dict[str, object], failed: str) -> None:
        bad = replace(GOOD, **change)  # type: ignore[arg-type]
        assert not bad.ok
        assert json.loads(bad.to_json())["failed"] == [failed]

    @pytest.mark.parametrize(
        ("summary", "words"), [(GOOD, "All of it holds"), (replace(GOOD, lost=1), "not as it should be")]
    )
    def test_table_fits_eighty_columns(self, summary: Summary, words: str) -> None:
        console = Console(file=StringIO(), width=80, record=True)
        console.print(summary.table())
        text = console.export_text()
        assert words in text
        assert "9 of 9 from worker 4711 in 0.2 s" in text


def test_surroundings_travel_in_the_environment_and_clear_only_their_own(tmp_path: Path) -> None:
    where = Surroundings(25, 80, tmp_path, 0.5)
    assert Surroundings.from_env(where.to_env()) == where
    where.clear()
    (where.invoices / "invoice-1.pdf").write_text("old")
    (where.mails / "mail-01.eml").write_text("old")
    (tmp_path / "mine.txt").write_text("kept")
    where.clear()
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["mine.txt"]
