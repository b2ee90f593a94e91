"""A supervisor in a process of its own whose children are scripts of a line or two, for faults that take many restarts.

    python -m tests.support.supervising DSN PROCESSES SCRIPT FAILING

The first FAILING starts of a process are refused, as by a system that has too many. SCRIPT runs as a child's main program, with `tell(worker)` to say that it is registered under that number. Restarts come without
pauses, and events as JSON lines on stdout.
"""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from typing import Any

import skiplock.fleet
from skiplock.core.events import Event, Events
from skiplock.core.settings import WorkerSettings

_CHILD = """
import os, signal, struct, sys, time
_map = int(sys.argv[sys.argv.index("--startmap") + 1])
def tell(worker): os.pwrite(_map, struct.pack("<q", worker), 0)
"""


def _refuse(starts: int) -> None:
    popen, left = subprocess.Popen, [errno.EAGAIN] * starts

    def start(*args: Any, **kwargs: Any) -> Any:
        if left:
            raise BlockingIOError(left.pop(), "Resource temporarily unavailable")
        return popen(*args, **kwargs)

    subprocess.Popen = start  # type: ignore[assignment, misc]


def main(dsn: str, processes: str, script: str, failing: str) -> int:
    """Until told to stop."""
    _refuse(int(failing))
    skiplock.fleet.LONGEST_PAUSE = skiplock.fleet.TOLD_PAUSE = 0.005
    events = Events()

    def write(event: Event) -> None:
        # One call, since the messenger's thread writes too.
        os.write(1, json.dumps({"event": event.name, **event.fields}, default=str).encode() + b"\n")

    events.subscribe(
        write, "child_started", "child_restarted", "child_died", "child_rescued", "child_recycled", "beat_failed"
    )
    command = [sys.executable, "-c", _CHILD + script]
    settings = WorkerSettings(grace=0.2)
    return skiplock.fleet.supervise(
        command, settings, processes=int(processes), dsn=dsn, schema="skiplock", events=events
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
