"""The demo on the terminal: a live picture for people, plain lines for everything else."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from skiplock.cli.demo.surroundings import QUEUES
from skiplock.cli.demo.truth import Snapshot

WIDEST = 110
EVENTS = 9  # lines of the story that stay in sight
_BARS = "▁▂▃▄▅▆▇█"
_PLAIN_EVERY = 2.0  # seconds


class Screen(Protocol):
    """Where the story is told."""

    def event(self, text: str, style: str = "") -> None:
        """Something happened."""

    def update(self, seen: Snapshot) -> None:
        """How things stand now; called several times a second."""

    def killed(self, pid: int) -> None:
        """That worker was killed by us."""


class Meter:
    """Throughput over the last two seconds, and a point a second of it and of the depth for the little graphs."""

    def __init__(self, now: float) -> None:
        self.rates: deque[float] = deque(maxlen=40)
        self.depths: deque[float] = deque(maxlen=40)
        self.peak = 0.0
        self._seen: deque[tuple[float, int]] = deque([(now, 0)])
        self._next = now + 0.5

    @property
    def rate(self) -> float:
        (then, before), (now, after) = self._seen[0], self._seen[-1]
        return (after - before) / (now - then) if now > then else 0.0

    def note(self, now: float, seen: Snapshot) -> None:
        self._seen.append((now, seen.settled()))
        while len(self._seen) > 2 and self._seen[0][0] < now - 2:
            self._seen.popleft()
        if now >= self._next:
            self._next = now + 0.5
            self.rates.append(self.rate)
            self.depths.append(seen.depth)
            self.peak = max(self.peak, self.rate)


class Picture:
    """Everything the live screen shows, as something rich can draw. Knows no terminal."""

    def __init__(self, now: float) -> None:
        self.seen = Snapshot()
        self.meter = Meter(now)
        self.events: deque[tuple[float, str, str]] = deque(maxlen=EVENTS)
        self.victims: list[int] = []
        self._began = self._now = now

    def note(self, now: float, seen: Snapshot) -> None:
        self._now, self.seen = now, seen
        self.meter.note(now, seen)

    def event(self, now: float, text: str, style: str) -> None:
        self._now = now
        self.events.append((now - self._began, text, style))

    def draw(self, width: int) -> RenderableType:
        graph = max(8, min(28, (width - 56) // 2))
        parts = Group(self._progress(), Text(), self._figures(graph), Text(), self._processes(), Text(), self._story())
        return Panel(
            parts,
            title="[bold]skiplock demo[/]",
            title_align="left",
            subtitle=f"[dim]{clock(self._now - self._began)} · ends by itself · Ctrl-C stops it[/]",
            subtitle_align="right",
            border_style="cyan",
            box=box.ROUNDED,
            padding=(1, 2),
            width=width,
        )

    def _progress(self) -> Table:
        table = Table.grid(padding=(0, 2), expand=True)
        table.add_column(no_wrap=True, style="bold")
        table.add_column(ratio=1)
        for _ in range(4):
            table.add_column(justify="right", no_wrap=True)
        for queue, label in QUEUES.items():
            done, total = self.seen.settled(queue), self.seen.total(queue)
            bar = ProgressBar(total=max(total, 1), completed=done, complete_style="cyan", finished_style="green")
            table.add_row(
                label,
                bar,
                f"{done}/{total}",
                Text(f"{self.seen.count('running', queue=queue)} running", "dim"),
                _lit(self.seen.retried.get(queue, 0), "retried", "yellow"),
                _lit(self.seen.count("dead", queue=queue), "dead", "red"),
            )
        return table

    def _figures(self, graph: int) -> Table:
        table = Table.grid(padding=(0, 1))
        for style in ("bold", "cyan", ""):
            table.add_column(no_wrap=True, style=style)
        table.add_row(
            "throughput  ", spark(self.meter.rates, graph), f"{self.meter.rate:.0f} jobs/s, peak {self.meter.peak:.0f}"
        )
        table.add_row("queue depth ", spark(self.meter.depths, graph), f"{self.seen.depth} waiting")
        return table

    def _processes(self) -> Text:
        text = Text("worker pids", style="bold", no_wrap=True, overflow="ellipsis")
        for pid in self.victims:
            text.append(f"   ✗ {pid} killed", "bold red")
        for worker in self.seen.workers:
            if worker.pid not in self.victims:
                text.append(f"   ● {worker.pid}", "bold green")
                text.append(f" holds {worker.holds} job{'' if worker.holds == 1 else 's'}", "not bold")
        if not self.seen.workers:
            text.append("   starting …" if not self.seen.settled() else "   stopped", "dim")
        return text

    def _story(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(style="dim", no_wrap=True, min_width=5)
        table.add_column(no_wrap=True, overflow="ellipsis")
        for at, text, style in self.events:
            table.add_row(clock(at), Text(text, style))
        for _ in range(EVENTS - len(self.events)):
            table.add_row("", "")
        return table


class _LiveScreen:
    def __init__(self, console: Console, live: Live) -> None:
        self._console, self._live = console, live
        self._picture = Picture(time.monotonic())
        self._show()

    def event(self, text: str, style: str = "") -> None:
        self._picture.event(time.monotonic(), text, style)
        self._show()

    def update(self, seen: Snapshot) -> None:
        self._picture.note(time.monotonic(), seen)
        self._show()

    def killed(self, pid: int) -> None:
        self._picture.victims.append(pid)

    def _show(self) -> None:
        self._live.update(self._picture.draw(min(WIDEST, self._console.width)), refresh=True)


class _PlainScreen:
    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = self._said = time.monotonic()
        self._meter = Meter(self._began)

    def event(self, text: str, style: str = "") -> None:
        self._line(text)

    def update(self, seen: Snapshot) -> None:
        now = time.monotonic()
        self._meter.note(now, seen)
        if now - self._said >= _PLAIN_EVERY:
            self._said = now
            done = ", ".join(f"{label} {seen.settled(queue)}/{seen.total(queue)}" for queue, label in QUEUES.items())
            self._line(
                f"{done}; {seen.depth} waiting, {seen.retries} retried, {seen.count('dead')} dead, {self._meter.rate:.0f} jobs/s"
            )

    def killed(self, pid: int) -> None:
        pass

    def _line(self, text: str) -> None:
        line = f"{clock(time.monotonic() - self._began)}  {text}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def open_screen(console: Console) -> Iterator[Screen]:
    """The live picture on a terminal that can show it, plain lines elsewhere."""
    if not console.is_terminal or console.is_dumb_terminal:
        yield _PlainScreen(console)
        return
    with Live(console=console, auto_refresh=False, transient=False, vertical_overflow="crop") as live:
        yield _LiveScreen(console, live)


def spark(values: deque[float], width: int) -> str:
    """A line of little bars, the newest on the right, always `width` wide."""
    shown = list(values)[-width:]
    top = max(shown, default=0) or 1
    return "".join(_BARS[round(value / top * (len(_BARS) - 1))] for value in shown).rjust(width, _BARS[0])


def clock(seconds: float) -> str:
    return f"{int(seconds) // 60:02d}:{int(seconds) % 60:02d}"


def _lit(number: int, word: str, style: str) -> Text:
    return Text(f"{number} {word}", style if number else "dim")
