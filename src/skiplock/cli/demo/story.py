"""`run_demo`: the way in, and the only way out."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType

from skiplock.core.errors import ConfigurationError, SkiplockError

_NEEDED = ("aiosmtpd", "fpdf", "rich")
INTERRUPTED = 130


def run_demo(*, json_output: bool, output: Path, dsn: str | None, seconds_limit: float = 110) -> int:
    """Run the demo and return the exit code: 0 only if nothing was lost, nothing ran twice and everything arrived.

    Files go to `output`; those of an earlier run are replaced. With `dsn` that database is used, which must not have
    seen a demo before; without, a temporary PostgreSQL is started. `json_output` prints the summary as JSON on
    stdout and tells the story in plain lines on stderr.
    """
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ConfigurationError(
            f"the demo needs more than is installed ({', '.join(missing)}): pip install 'skiplock[demo]'"
        )
    from rich.console import Console

    from skiplock.cli.demo.play import play

    console = Console(stderr=True, force_terminal=False) if json_output else Console()
    pace = float(os.environ.get("SKIPLOCK_DEMO_PACE", "1"))
    asked: list[int] = []  # signals that asked us to end
    try:
        with _ends_in_order(asked):
            summary = play(console, output, dsn, seconds_limit, pace)
    except (KeyboardInterrupt, SkiplockError) as error:
        if asked or isinstance(error, KeyboardInterrupt):
            console.print("stopped before the end", style="yellow")
            return INTERRUPTED
        console.print(f"skiplock demo: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return 1
    if json_output:
        sys.stdout.write(summary.to_json() + "\n")
    else:
        console.print()
        console.print(summary.table())
        console.print(f"[dim]The invoices, the mails and the workers' log are in {output}/[/]")
    return 0 if summary.ok else 1


@contextmanager
def _ends_in_order(asked: list[int]) -> Iterator[None]:
    """Ctrl-C, a `kill` and a closed terminal all end the demo in order; asking again does not disturb that."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) == 1:
            raise KeyboardInterrupt

    old = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
