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
