"""What the rules of the machine have in common: how an action is drawn, and the values it is drawn from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from hypothesis import strategies as st

from tests.model.caller import Compared, Fate
from tests.model.reality import NAMES
from tests.model.values import NewJob

F = TypeVar("F", bound=Callable[..., None])
LOST_AFTER, DUTY_FOR = 9, 8
PICK = st.integers(0, 99)
FATE = st.sampled_from([*[Fate.ANSWERED] * 5, *[Fate.UNHEARD] * 2, *[Fate.UNDONE] * 2])
QUEUE = st.sampled_from(NAMES)
ROOMS = st.fixed_dictionaries({"default": st.integers(0, 3)}, optional={"mail": st.integers(0, 3)})
NEW = st.builds(
    NewJob,
    queue=QUEUE,
    priority=st.sampled_from([0, 0, 5, -5]),
    max_attempts=st.sampled_from([1, 2, 3]),
    delay=st.sampled_from([None, None, None, -5, 0, 20, 60]),
    large=st.sampled_from([False, False, False, True]),
    unique=st.sampled_from([None, None, None, None, "a", "a", "b"]),
    replaces=st.booleans(),
)
FAILED = [("retry", 0), ("retry", 0), ("retry", 30), ("dead", None)]
OTHERS = [("snooze", 10), ("release", None), ("cancelled", None)]
VERDICT = st.sampled_from([*[("completed", None)] * 3, *FAILED, *OTHERS])


def some_caller(machine: Compared) -> object:
    return machine.callers


def some_held(machine: Compared) -> object:
    return any(caller.held for caller in machine.callers)


def action(
    weight: int = 1, when: Callable[[Any], object] = lambda machine: True, **draws: st.SearchStrategy[Any]
) -> Callable[[F], F]:
    """A rule of Hypothesis, but with a weight: left to itself it spends most steps on what changes nothing."""

    def mark(function: F) -> F:
        function.weight, function.when, function.draws = weight, when, draws  # type: ignore[attr-defined]
        return function

    return mark
