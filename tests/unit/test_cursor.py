"""The claim cursor: where to go on in each lane, and when to look from the left end again."""

from __future__ import annotations

import pytest

from skiplock.core.cursor import BACK, FIRST_FULL, FORGET_AFTER, MAX_LANES, SHARE, ClaimCursor


def seen(*jobs: tuple[str, int, int], at: float = 0.0) -> ClaimCursor:
    cursor = ClaimCursor()
    cursor.saw(jobs, at)
    return cursor


def test_the_first_claim_is_a_full_one() -> None:
    assert ClaimCursor().use_full(0.0)
    assert ClaimCursor().plan(0.0) == []


PLANS = {
    "nothing": ([], []),
    "one lane": ([("q", 0, 5)], [("q", 0, 5)]),
    "the last position counts": ([("q", 0, 5), ("q", 0, 9)], [("q", 0, 9)]),
    "but never goes back": ([("q", 0, 9), ("q", 0, 5)], [("q", 0, 9)]),
    "best priority first": ([("q", -1, 1), ("q", 7, 2), ("q", 0, 3)], [("q", 7, 2), ("q", 0, 3), ("q", -1, 1)]),
    "queue by queue": ([("b", 9, 1), ("a", 0, 2), ("b", 10, 3)], [("a", 0, 2), ("b", 10, 3), ("b", 9, 1)]),
}


@pytest.mark.parametrize(("jobs", "plan"), PLANS.values(), ids=PLANS)
def test_the_plan(jobs: list[tuple[str, int, int]], plan: list[tuple[str, int, int]]) -> None:
    assert seen(*jobs).plan(0.0) == plan


def test_a_lane_without_jobs_is_forgotten() -> None:
    cursor = seen(("old", 0, 1), ("new", 0, 1))
    cursor.saw([("new", 0, 2)], FORGET_AFTER)
    assert cursor.plan(FORGET_AFTER + 1) == [("new", 0, 2)]
    assert cursor.plan(3 * FORGET_AFTER) == []
    assert cursor.use_full(3 * FORGET_AFTER), "without lanes only a full claim can find anything"


def test_a_released_job_seen_again_keeps_its_lane_alive() -> None:
    cursor = seen(("q", 0, 9))
    cursor.saw([("q", 0, 3)], FORGET_AFTER)
    assert cursor.plan(FORGET_AFTER + 1) == [("q", 0, 9)]


def test_it_goes_back_to_where_a_whole_claim_found_jobs() -> None:
    """They may be the first of many; but not so far that the next claim would walk over a whole history of dead entries."""
    cursor = seen(("q", 0, 2 * BACK), ("r", 0, 5))
    cursor.saw([("q", 0, 3), ("q", 0, 2)], 1.0, whole=True)
    assert cursor.plan(1.0) == [("q", 0, 2 * BACK), ("r", 0, 5)]
    cursor.saw([("q", 0, BACK + 2), ("q", 0, BACK + 3)], 1.0, whole=True)
    assert cursor.plan(1.0) == [("q", 0, BACK + 3), ("r", 0, 5)]
    cursor.saw([("q", 0, BACK + 1)], 1.0)
    assert cursor.plan(1.0) == [("q", 0, BACK + 3), ("r", 0, 5)]


def test_lanes_are_bounded() -> None:
    cursor = seen(*[("q", n, n) for n in range(MAX_LANES + 50)])
    assert len(cursor.plan(0.0)) == MAX_LANES


def test_while_a_full_claim_costs_no_more_it_runs_every_time() -> None:
    cursor, now = seen(("q", 0, 1)), 0.0
    for full in (True, False, True, True, True):
        now += 0.01
        assert cursor.use_full(now) or not full
        cursor.full.spent(full, 0.001, now)
    assert cursor.use_full(now)


def test_a_dear_full_claim_is_followed_by_a_pause_in_proportion() -> None:
    cursor = seen(("q", 0, 1))
    cursor.full.spent(False, 0.001, 0.0)
    cursor.full.spent(True, 1.0, 10.0)
    pause = (1.0 - 0.0015 - 0.0005) / SHARE
    assert not cursor.use_full(10.0 + pause - 0.01)
    assert cursor.use_full(10.0 + pause + 0.01)


def test_before_anything_can_be_compared_one_claim_with_cursor_runs_soon() -> None:
    cursor = seen(("q", 0, 1))
    cursor.full.spent(True, 5.0, 10.0)
    assert not cursor.use_full(10.0)
    assert cursor.use_full(10.06)


def test_what_a_claim_usually_takes_is_smoothed() -> None:
    cursor = ClaimCursor()
    cursor.full.spent(False, 1.0, 0.0)
    assert cursor.full.usual == 1.0
    cursor.full.spent(False, 2.0, 0.0)
    assert cursor.full.usual == pytest.approx(1.2)


def test_a_reset_forgets_everything() -> None:
    cursor = seen(("q", 0, 1))
    cursor.full.spent(False, 0.001, 0.0)
    cursor.full.spent(True, 9.0, 0.0)
    cursor.reset()
    assert cursor == ClaimCursor()


def test_a_worker_that_starts_goes_on_where_others_had_got_to() -> None:
    cursor = ClaimCursor()
    cursor.seed([("q", 0, 500), ("q", 3, 70)], 100.0)
    assert not cursor.use_full(100.0)
    assert cursor.plan(100.0) == [("q", 3, 70), ("q", 0, 500)]
    assert cursor.use_full(100.0 + FIRST_FULL), "but soon looks for itself"


def test_with_nothing_to_do_it_looks_for_itself_at_once() -> None:
    cursor = ClaimCursor()
    cursor.seed([("q", 0, 500)], 100.0)
    cursor.was_dry(100.1)
    assert cursor.use_full(100.1)
    cursor.full.spent(False, 0.001, 100.2)
    cursor.full.spent(True, 1.0, 101.2)
    cursor.was_dry(101.3)
    assert not cursor.use_full(101.4), "once: later dry claims say nothing about the price"


def test_without_anything_to_go_on_from_the_first_claim_is_a_full_one() -> None:
    cursor = ClaimCursor()
    cursor.seed([], 100.0)
    assert cursor.use_full(100.0)


def test_news_are_lanes_that_got_further() -> None:
    cursor = seen(("q", 0, 5), ("q", 1, 9))
    assert sorted(cursor.news()) == [("q", 0, 5), ("q", 1, 9)]
    assert cursor.news() == []
    cursor.saw([("q", 0, 6), ("q", 1, 8)], 1.0)
    assert cursor.news() == [("q", 0, 6)]
    assert sorted(cursor.where()) == [("q", 0, 6), ("q", 1, 9)], "last words say all, whatever was told before"
