"""What a program may say of its limits: one name means one thing, and a key is computed or refused at the call."""

from __future__ import annotations

import json
from typing import Any

import pytest

from skiplock import Concurrency, Rate, Skiplock
from skiplock.core.errors import OptionError
from skiplock.core.flow import declared_limits


def task(*limits: Any, **more: Any) -> Any:
    return Skiplock().task(name="t", limits=list(limits), **more)(lambda a=1, b=2: None)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (Concurrency("x", 4), "declared in two ways"),
        (Rate("x", 3), "declared in two ways"),
        (Concurrency("x", 1, order="hold"), "declared in two ways"),
    ],
)
def test_one_name_means_one_thing_in_all_tasks(other: Any, said: str) -> None:
    app = Skiplock()
    app.task(name="one", limits=[Concurrency("x", 1 if getattr(other, "order", None) else 3)])(lambda: None)
    app.task(name="same", limits=[Concurrency("x", 1 if getattr(other, "order", None) else 3)])(lambda: None)
    with pytest.raises(OptionError, match=said):
        app.task(name="two", limits=[other])(lambda: None)
    assert set(app.tasks) == {"one", "same"}


def test_a_name_is_there_once_in_a_job_and_one_order_at_most() -> None:
    with pytest.raises(OptionError, match="there twice"):
        task(Concurrency("x", 3), Rate("x", 3))
    with pytest.raises(OptionError, match="both keep an order"):
        task(Concurrency("x", 1, order="hold"), Concurrency("y", 1, order="skip"))


def test_the_ordered_one_comes_first() -> None:
    found = json.loads(task(Rate("r", 5), Concurrency("a:{a}", 1, order="skip")).job(a=7).flow)
    assert found["order"] == "skip"
    assert found["limits"] == [{"key": "a:{a}\x1fa:7", "slots": 1}, {"key": "r", "rate": 5.0, "per": 1.0, "burst": 1}]


def test_an_order_that_does_not_hold_for_a_job_is_left_out() -> None:
    ordered = Concurrency(lambda a, **_: None, 1, order="hold", name="n")
    found = json.loads(task(Rate("r", 5), ordered).job(a=7).flow)
    assert "order" not in found and [limit["key"] for limit in found["limits"]] == ["r"]


def test_what_is_declared() -> None:
    flows = [task(Concurrency("x", 3), Rate("r", 10, per="1m", burst=2)).spec.flow, task(Concurrency("x", 3)).spec.flow]
    assert declared_limits(flows) == [{"name": "x", "slots": 3}, {"name": "r", "rate": 10.0, "per": 60.0, "burst": 2}]
