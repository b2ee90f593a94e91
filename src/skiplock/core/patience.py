"""How long to wait for an answer of the database before taking the connection for dead.

A connection can be dead and show no sign of it: a proxy whose other side is gone goes on acknowledging what it is sent. Only
time tells, and a slow server must not be mistaken for a dead one: giving up on it would repeat the work that makes it slow.
So the limit is far above what a statement of ours takes, follows what they do take, and doubles whenever it was too short.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST = 600.0  # seconds
ROOM = 4.0  # times what an answer took lately
CALM = 0.9  # of it is kept with each answer that comes sooner


@dataclass(slots=True)
class Patience:
    """The limit for the next answer, in seconds; never less than `least`, never more than MOST.

    >>> patience = Patience(30.0)
    >>> patience.gave_up(); patience.limit
    60.0
    >>> patience.answered(40.0); patience.limit
    160.0
    """

    least: float
    limit: float = 0.0

    def __post_init__(self) -> None:
        self.limit = self.least

    def answered(self, took: float) -> None:
        """An answer came."""
        if self.limit > self.least or took * ROOM > self.least:
            self.limit = min(MOST, max(self.least, took * ROOM, self.limit * CALM))

    def gave_up(self) -> None:
        """None came in time. If the server is only slow, the next one gets twice the time."""
        self.limit = min(max(MOST, self.least), self.limit * 2)
