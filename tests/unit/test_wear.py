"""When a process has served long enough: limits that are reached or not, and each process's own share of them (SCALE-11)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skiplock.core.wear import SPREAD, Wear

LIMITS = Wear(jobs=100, memory=2**20, age=60.0)


@pytest.mark.parametrize(
    ("jobs", "memory", "age", "said"),
    [
        (99, 2**20, 59.9, None),
        (100, 0, 0.0, "has run 100 jobs"),
        (0, 2**20 + 1, 0.0, "holds 1 MiB, more than 1 MiB"),
        (0, 0, 60.0, "has lived for 60 s"),
        (10**9, 2**40, 1e9, "has run 1000000000 jobs"),
    ],
)
def test_which_limit_is_reached(jobs: int, memory: int, age: float, said: str | None) -> None:
    assert LIMITS.reached(jobs, memory, age) == said


def test_without_limits_nothing_wears_out() -> None:
    assert Wear().reached(10**9, 2**50, 1e9) is None
    assert Wear().spread() == Wear()


@given(st.integers(1, 10**9), st.integers(1, 2**50), st.floats(0.001, 1e9), st.floats(0.0, 1.0))
def test_each_takes_its_own_share_and_never_more_than_was_given(
    jobs: int, memory: int, age: float, drawn: float
) -> None:
    own = Wear(jobs, memory, age).spread(lambda: drawn)
    assert own.jobs is not None and own.memory is not None and own.age is not None
    assert 1 <= own.jobs <= jobs and own.jobs >= SPREAD * jobs - 1e-6 * jobs
    assert own.memory <= memory and own.memory >= SPREAD * memory - 1 - 1e-6 * memory
    assert SPREAD * age * 0.999 <= own.age <= age * 1.001


def test_shares_differ() -> None:
    assert len({Wear(jobs=10_000).spread().jobs for _ in range(50)}) > 10
