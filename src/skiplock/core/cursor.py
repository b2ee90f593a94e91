"""The claim cursor: where in each lane to go on, and how often to look from the left end.

Dead index entries at the left end of the ready index are what kills queues while someone's old snapshot pins them: a
claim walks over every job ever claimed. So a claimer seeks past the last position it saw in each (queue, priority) lane.
That is no lower bound (late commits, rows that were locked, released jobs, new lanes), so a claim without cursor must
still run. It may use `SHARE` of the time: while it is cheap it runs practically always, and nobody can tell.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from skiplock.core.share import Share

SHARE = 0.05  # of the time, for claims without cursor, beyond what a claim with cursor costs
FORGET_AFTER = 30.0  # seconds without a job: a lane is dropped, the claim without cursor will find it again
MAX_LANES = 200
BACK = 10_000  # positions that a cursor may go back to where a claim without cursor found jobs: so many dead entries are walked once
FIRST_FULL = 1.0  # seconds that a worker which knows where others had got to works on before it looks from the left end


@dataclass(slots=True)
class Lane:
    """One (queue, priority) line: the last position seen in it, and when."""

    position: int
    seen_at: float


@dataclass(slots=True)
class ClaimCursor:
    """Times are seconds of any monotonic clock, given by the caller."""

    lanes: dict[tuple[str, int], Lane] = field(default_factory=dict)
    full: Share = field(default_factory=lambda: Share(SHARE))
    seeded: bool = False  # the lanes are others' still, and no claim without cursor has been made
    told: dict[tuple[str, int], int] = field(default_factory=dict)

    def seed(self, lanes: Iterable[tuple[str, int, int]], now: float) -> None:
        """Go on where others had got to: (queue, priority, position)."""
        self.saw(lanes, now)
        self.seeded = bool(self.lanes)
        if self.seeded:
            self.full.next_at = now + FIRST_FULL

    def news(self) -> list[tuple[str, int, int]]:
        """Lanes that have got further since this was asked last. May be called from another thread."""
        found = [(*key, lane.position) for key, lane in list(self.lanes.items()) if self.told.get(key) != lane.position]
        self.told.update({(queue, priority): position for queue, priority, position in found})
        return found

    def where(self) -> list[tuple[str, int, int]]:
        """All lanes, as far as they have got: last words of a worker, whose last beat may not have been heard."""
        return [(*key, lane.position) for key, lane in self.lanes.items()]

    def use_full(self, now: float) -> bool:
        """Whether the next claim should search from the left end."""
        return not self.lanes or self.full.is_due(now)

    def was_dry(self, now: float) -> None:
        """A claim with cursor found nothing: with nothing to do, the first look from the left end is due at once."""
        if self.seeded:
            self.seeded, self.full.next_at = False, now

    def saw(self, jobs: Iterable[tuple[str, int, int]], now: float, *, whole: bool = False) -> None:
        """(queue, priority, position) of what a claim returned. `whole`: it searched from the left end.

        Such a claim may find a whole stretch of line that lies before the cursor (jobs with a fair key are put near the head
        of the line, and claims go on until they are there to be seen). The next claim goes on from there: while only each
        second one did, those jobs had half of their turns.
        """
        lanes = self.lanes
        for key, position in _furthest(jobs).items():
            lane = lanes.get(key)
            if lane is None:
                if len(lanes) < MAX_LANES:
                    lanes[key] = Lane(position, now)
                continue
            lane.seen_at = now
            if position > lane.position or (whole and position >= lane.position - BACK):
                lane.position = position

    def plan(self, now: float) -> list[tuple[str, int, int]]:
        """The lanes to search, best priority first within a queue."""
        for key in [k for k, lane in self.lanes.items() if now - lane.seen_at > FORGET_AFTER]:
            del self.lanes[key]
        return sorted(((q, p, lane.position) for (q, p), lane in self.lanes.items()), key=lambda e: (e[0], -e[1]))

    def reset(self) -> None:
        """Start afresh: the server may have changed (failover), positions with it."""
        self.lanes.clear()
        self.told.clear()
        self.seeded = False
        self.full.reset()


def _furthest(jobs: Iterable[tuple[str, int, int]]) -> dict[tuple[str, int], int]:
    """The largest position in each lane. Jobs come lane by lane, so that most of them cost two comparisons."""
    found: dict[tuple[str, int], int] = {}
    in_queue, in_priority, largest = "", 0, -1
    for queue, priority, position in jobs:
        if queue != in_queue or priority != in_priority:
            found[in_queue, in_priority] = largest
            in_queue, in_priority = queue, priority
            largest = found.get((queue, priority), -1)
        if position > largest:
            largest = position
    found[in_queue, in_priority] = largest
    found.pop(("", 0), None)  # where it began; no queue has an empty name
    return found
