"""How long an answer is waited for: long enough for a slow server, not for ever. Kinds: a hang (case 11), a limit that repeats
what makes the server slow."""

from __future__ import annotations

from skiplock.core.patience import MOST, Patience


def test_patience_follows_what_answers_take() -> None:
    patience = Patience(30.0)
    for _ in range(100):
        patience.answered(2.0)
    assert patience.limit == 30.0  # a slow server under load is far from it
    limits = []
    for _ in range(2000):
        patience.gave_up()
        limits.append(patience.limit)
    assert limits[:5] == [60.0, 120.0, 240.0, 480.0, MOST]
    assert limits[-1] == MOST
    patience.answered(100.0)
    assert patience.limit >= 400.0  # what took 100 s may take as long again
    for _ in range(100):
        patience.answered(0.001)
    assert patience.limit == 30.0
