"""A share of the time for what is dear: see core/share.py. The claim's use of it is tested in test_cursor.py."""

from __future__ import annotations

from skiplock.core.share import Share


def test_with_a_known_usual_price_the_first_dear_one_is_already_bounded() -> None:
    """A heart beats every few seconds: there is no cheap beat to compare with before the first dear one."""
    share = Share(0.01, usual=0.002)
    assert share.is_due(0.0)
    share.spent(True, 0.1, 10.0)
    assert not share.is_due(19.0)
    assert share.is_due(20.0)


def test_a_slow_network_makes_the_cheap_form_as_dear_and_the_dear_one_free_again() -> None:
    share = Share(0.01, usual=0.002)
    now = 0.0
    for _ in range(30):
        now += 3.0
        share.spent(share.is_due(now), 0.08, now)
    assert share.is_due(now + 3.0)


def test_a_heart_that_was_stopped_looks_again_soon() -> None:
    """A process stopped, or a laptop asleep, while a look was under way: that says nothing of its price.

    To see it fail: let `_wait` believe each measurement. A worker that woke up then looked for work after minutes.
    """
    share = Share(0.01, usual=0.002, confirms=True)
    share.spent(True, 3600.0, 4000.0)
    assert share.is_due(4002.0)
    share.spent(True, 0.002, 4002.0)
    assert share.is_due(4002.1)


def test_a_price_that_is_confirmed_counts() -> None:
    """Beside a snapshot of hours a look really takes seconds."""
    share = Share(0.01, usual=0.002, confirms=True)
    share.spent(True, 3.0, 0.0)
    share.spent(True, 3.0, 10.0)
    assert not share.is_due(300.0)
    assert share.is_due(311.0)
