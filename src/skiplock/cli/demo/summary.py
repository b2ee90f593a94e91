"""What the demo proved, and whether it did."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

import msgspec
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text


@dataclass(frozen=True, slots=True)
class Hit:
    """One result of the full-text search."""

    module: str
    title: str


@dataclass(frozen=True, slots=True)
class Summary:
    """Counted in the database, and on the other side: by the servers, in the folder, in the table."""

    enqueued: int
    completed: int
    dead: int
    lost: int  # enqueued, but not in a final state at the end
    twice: int  # final rows beyond one for each job
    retried: int  # failed attempts that were tried again
    rescued: int  # jobs the killed worker held that were brought to an end by others
    held: int  # jobs the killed worker held
    mails: int
    mails_expected: int
    mail_duplicates: int
    invoices: int
    invoices_expected: int
    webhooks: int
    webhooks_expected: int
    webhook_duplicates: int
    documents: int
    documents_expected: int
    dead_expected: int
    killed_pid: int | None
    recovered_after: float | None  # seconds from the kill until nothing was left in the dead worker's hands
    fleet_exit: int | None
    seconds: float
    query: str
    hits: tuple[Hit, ...] = field(default=())

    def checks(self) -> list[tuple[str, str, bool]]:
        """(what, what was found, as it should be), in the order to read them."""
        return [
            ("jobs enqueued", f"{self.enqueued}", self.enqueued > 0),
            ("completed", f"{self.completed}", self.completed == self.enqueued - self.dead_expected),
            (
                "dead",
                _of(
                    self.dead,
                    self.dead_expected,
                    "as planned: nobody@…" if self.dead == self.dead_expected else "",
                ),
                self.dead == self.dead_expected,
            ),
            ("retried", f"{self.retried}", self.retried > 0),
            ("rescued", self._rescue(), self.killed_pid is not None and self.held > 0 and self.rescued == self.held),
            ("lost", f"{self.lost}", self.lost == 0),
            ("run to completion twice", f"{self.twice}", self.twice == 0),
            (
                "mails received",
                _of(self.mails, self.mails_expected, _dropped(self.mail_duplicates)),
                self.mails == self.mails_expected,
            ),
            ("invoices written", _of(self.invoices, self.invoices_expected), self.invoices == self.invoices_expected),
            (
                "webhooks received",
                _of(self.webhooks, self.webhooks_expected, _dropped(self.webhook_duplicates)),
                self.webhooks == self.webhooks_expected,
            ),
            (
                "documents indexed",
                _of(self.documents, self.documents_expected),
                self.documents == self.documents_expected,
            ),
            (f"search for “{self.query}”", f"{len(self.hits)} found", len(self.hits) > 0),
            ("workers stopped", self._stop(), self.fleet_exit == 0),
        ]

    @property
    def ok(self) -> bool:
        return all(passed for _, _, passed in self.checks())

    def to_json(self) -> str:
        failed = [what for what, _, passed in self.checks() if not passed]
        found = {"ok": self.ok, "failed": failed, **asdict(self), "seconds": round(self.seconds, 1)}
        return msgspec.json.format(msgspec.json.encode(found)).decode()

    def table(self) -> RenderableType:
        table = Table(
            box=box.SIMPLE_HEAD, show_header=False, pad_edge=False, title="skiplock demo", title_justify="left"
        )
        table.add_column("what", style="bold", no_wrap=True)
        table.add_column("found")
        table.add_column("", width=1)
        for what, found, passed in self.checks():
            table.add_row(what, Text(found), Text("✓", "green") if passed else Text("✗", "bold red"))
        lines = [
            Text.assemble("  ", (hit.module, "cyan"), f"  {hit.title}", no_wrap=True, overflow="ellipsis")
            for hit in self.hits
        ]
        return Group(table, *lines, self._verdict())

    def _verdict(self) -> Text:
        if self.ok:
            return Text(
                f"\nAll of it holds, in {self.seconds:.0f} seconds, with one worker killed on the way.", "bold green"
            )
        return Text("\nThis is not as it should be: see the rows marked ✗.", "bold red")

    def _stop(self) -> str:
        return (
            "only when killed"
            if self.fleet_exit is None
            else f"exit code {self.fleet_exit}"
            if self.fleet_exit
            else "cleanly"
        )

    def _rescue(self) -> str:
        if self.killed_pid is None:
            return "no worker was killed"
        after = "" if self.recovered_after is None else f" in {self.recovered_after:.1f} s"
        return f"{self.rescued} of {self.held} from worker {self.killed_pid}{after}"


def _of(found: int, expected: int, note: str = "") -> str:
    text = f"{found}" if found == expected else f"{found} of {expected}"
    return f"{text} ({note})" if note else text


def _dropped(duplicates: int) -> str:
    if not duplicates:
        return ""
    return f"{duplicates} duplicate{'' if duplicates == 1 else 's'} dropped"
