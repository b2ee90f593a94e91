"""For every history of claims: a full one comes again, and all of them together keep within their share of time."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from skiplock.core.cursor import SHARE, ClaimCursor

SECONDS = st.floats(0.0, 5.0)
# What happens, claim by claim: how long a full one and one with cursor would take, and the pause afterwards.
HISTORY = st.lists(st.tuples(SECONDS, SECONDS | st.floats(0.0001, 0.05), st.floats(0.0, 0.5)), max_size=100)
JOBS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(-2, 2), st.integers(1, 1000)), max_size=20)


class Clock:
    """Plays claims against a clock of its own, and keeps account."""

    def __init__(self) -> None:
        self.cursor = ClaimCursor()
        self.now = 0.0
        self.excess = 0.0  # what full claims took beyond what the cursor allows for free
        self.dearest = 0.0
        self.claims = 0

    def claim(self, full_takes: float, cursor_takes: float) -> bool:
        self.cursor.saw([("q", 0, self.claims)], self.now)  # there always is a lane
        full = self.cursor.use_full(self.now)
        takes = full_takes if full else cursor_takes
        self.now += takes
        if full and self.cursor.full.usual > 0:
            excess = max(0.0, takes - 1.5 * self.cursor.full.usual - 0.0005)
            self.excess += excess
            self.dearest = max(self.dearest, excess)
        self.cursor.full.spent(full, takes, self.now)
        self.claims += 1
        return full


@given(HISTORY)
@example([(5.0, 0.001, 0.5)] * 100)  # the left end of the index is full of dead entries
def test_full_claims_keep_within_their_share_of_the_time(history: list[tuple[float, float, float]]) -> None:
    clock = Clock()
    for full_takes, cursor_takes, pause in history:
        clock.claim(full_takes, cursor_takes)
        clock.now += pause
    # The last one may have been just now: its price is paid by the pause that follows.
    assert clock.excess <= SHARE * clock.now + clock.dearest + 1e-6


@given(HISTORY, SECONDS)
def test_a_full_claim_is_always_allowed_again(history: list[tuple[float, float, float]], step: float) -> None:
    clock = Clock()
    for full_takes, cursor_takes, pause in history:
        clock.claim(full_takes, cursor_takes)
        clock.now += pause
    waited = 0.0
    while not clock.cursor.use_full(clock.now):
        clock.claim(0.0, 0.1 + step)
        waited += 0.1 + step
        assert waited <= max(clock.dearest / SHARE, 0.05) + 0.2 + 2 * step


@given(JOBS, JOBS)
def test_the_plan_holds_each_lane_once_with_the_furthest_position(
    first: list[tuple[str, int, int]], second: list[tuple[str, int, int]]
) -> None:
    cursor = ClaimCursor()
    cursor.saw(first, 0.0)
    cursor.saw(second, 1.0)
    furthest: dict[tuple[str, int], int] = {}
    for queue, priority, position in first + second:
        furthest[queue, priority] = max(position, furthest.get((queue, priority), 0))
    plan = cursor.plan(1.0)
    assert {(queue, priority): position for queue, priority, position in plan} == furthest
    assert len(plan) == len(furthest)
    for queue in "ab":
        priorities = [priority for name, priority, _ in plan if name == queue]
        assert priorities == sorted(priorities, reverse=True)
