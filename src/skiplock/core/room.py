"""How long an enqueue waits for room in a bounded queue, and how often it looks. Pure."""

from __future__ import annotations

import random
from dataclasses import dataclass

from skiplock.core.errors import OptionError, QueueFullError
from skiplock.core.inspect_value import shown
from skiplock.core.outcome import Duration, seconds

FIRST, MOST = 0.01, 0.5  # seconds between two looks: room comes soon, or the queue is really full


@dataclass(slots=True)
class RoomWait:
    """The waiting of one enqueue. `left` and what is answered are seconds."""

    left: float
    pause: float = FIRST

    def pause_after(self, error: QueueFullError) -> float:
        """How long to wait before the next try; raises the error if that would be in vain, or the time is up.

        Nobody tells when there is room, since a queue that is not bounded must not pay for it; so waiters look again after
        growing pauses, of random length lest they all come at once.
        """
        if self.left <= 0 or not error.can_pass:
            raise error
        found = min(self.left, self.pause * random.uniform(0.5, 1.0))
        self.pause = min(MOST, self.pause * 2)
        return found

    def waited(self, seconds_: float) -> None:
        """That much has passed since it was asked."""
        self.left -= seconds_


def room_wait(wait: Duration | None, connection: object) -> RoomWait | None:
    """The waiting for these options; None: none. Raises OptionError."""
    if wait is None:
        return None
    if connection is not None:
        raise OptionError(
            f"wait={shown(wait)}: cannot be had with connection=, whose transaction would stay open meanwhile; "
            "catch QueueFullError, roll back, and try again"
        )
    return RoomWait(seconds(wait, "wait"))
