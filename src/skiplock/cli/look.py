"""How answers look: tables, colours and ages for people, JSON for programs."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

STATE_STYLES = {
    "scheduled": "cyan",
    "retryable": "yellow",
    "blocked": "magenta",
    "ready": "blue",
    "running": "bold blue",
    "completed": "green",
    "cancelled": "dim",
    "dead": "bold red",
}
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_WIDE = 400  # columns where nothing says how wide the reader is: a pipe must get whole lines


def console(*, stderr: bool = False) -> Console:
    """Where to print. In a pipe or a file nothing is cut or wrapped, and nothing is coloured."""
    found = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not found.is_terminal and not os.environ.get("COLUMNS", "").isdigit():
        found.width = _WIDE
    return found


def emit(document: Any) -> None:
    """The one JSON document of a command with --json."""
    is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(document, default=_to_json, indent=2, ensure_ascii=not is_utf8))


def _to_json(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return value.isoformat() if isinstance(value, datetime) else str(value)


def plain(text: str) -> str:
    """Text from outside, without what could move the cursor or recolour the terminal."""
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def plain_json(text: str) -> str:
    """The same for JSON, which stays JSON: such characters can only be in its strings."""
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def cell(value: object, style: str = "") -> Text:
    """A value on one line; nothing for None."""
    text = "" if value is None else plain(str(value)).replace("\n", " ")
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def first_line(text: str | None) -> str:
    """The first line of a message that may have many, or none."""
    return (text or "").strip().split("\n", 1)[0]


def state(name: str) -> Text:
    """A job's state in its colour."""
    return Text(name, style=STATE_STYLES.get(name, ""))


def span(seconds: float) -> str:
    """A length of time as people say it: `3 s`, `2 min`, `5 h`, `12 d`."""
    seconds = abs(seconds)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms" if seconds >= 0.001 else "<1 ms"
    for size, unit, limit in ((1, "s", 60), (60, "min", 3600), (3600, "h", 48 * 3600), (86400, "d", 730 * 86400)):
        if seconds < limit:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds // (365 * 86400))} y"


def age(moment: datetime | None) -> str:
    """How long ago that was, or how far away it is."""
    if moment is None:
        return ""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    if abs(seconds) < 1:
        return "now"
    return span(seconds) if seconds > 0 else f"in {span(seconds)}"


def clock(moment: datetime) -> str:
    """A point in time in the reader's zone."""
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")


def table(*columns: str, right: Sequence[str] = (), flexible: Sequence[str] = ()) -> Table:
    """An empty table. `flexible` columns give way when the terminal is narrow; the others stay whole."""
    found = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False, show_edge=False)
    for name in columns:
        # Cells never wrap (see `cell`); rich shrinks the columns first that it believes could.
        found.add_column(name, justify="right" if name in right else "left", no_wrap=name not in flexible)
    return found


def fields_grid(rows: Sequence[tuple[str, object]]) -> Table:
    """Names and values under each other."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows:
        grid.add_row(name, value if isinstance(value, Text) else Text(plain(str(value))))
    return grid


def say(text: str, style: str = "") -> None:
    """A line for people."""
    console().print(Text(plain(text), style=style), soft_wrap=True)
