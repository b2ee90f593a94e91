"""Declaring a task: what is taken from the function, and what is refused on the spot, with a reason."""

from __future__ import annotations

import datetime as dt
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from skiplock import (
    ArgumentError,
    Backoff,
    JobContext,
    OptionError,
    Resource,
    Skiplock,
    TaskDefinitionError,
    UnknownTaskError,
)
from skiplock.core.task import EVENT_LOOP, PROCESS, THREAD


@pytest.fixture
def app() -> Skiplock:
    return Skiplock("postgresql://nobody@127.0.0.1:1/none")


def plain(a: int, b: str = "x") -> None:
    """What it does."""


async def later(a: int) -> None: ...


def test_what_is_taken_from_the_function(app: Skiplock) -> None:
    task = app.task(plain)
    assert (task.name, task.__name__, task.__doc__) == (f"{__name__}.plain", "plain", "What it does.")
    spec = task.spec
    assert (spec.queue, spec.priority, spec.max_attempts, spec.timeout, spec.executor) == (
        "default",
        0,
        10,
        None,
        THREAD,
    )
    assert app.task(later).spec.executor == EVENT_LOOP
    assert app.find_task(task.name) is task


def test_settings(app: Skiplock) -> None:
    spec = app.task(name="t", queue="q", priority=3, max_attempts=2, timeout="1m30s", backoff=None, tags=["a"])(
        plain
    ).spec
    assert (spec.name, spec.queue, spec.priority, spec.max_attempts) == ("t", "q", 3, 2)
    assert (spec.timeout, spec.backoff, spec.tags) == (90.0, None, ("a",))
    assert app.task(name="u", timeout=dt.timedelta(minutes=2))(plain).spec.timeout == 120.0


def test_a_task_for_child_processes(app: Skiplock) -> None:
    spec = app.task(name="t", executor="process", memory="512MiB")(plain).spec
    assert (spec.executor, spec.is_async, spec.memory) == (PROCESS, False, 512 * 1024**2)
    spec = app.task(name="u", executor="process")(later).spec
    assert (spec.executor, spec.is_async, spec.memory) == (PROCESS, True, None)


@pytest.mark.parametrize("memory", [0, "lots", True, "1MiB", "63MiB"])
def test_memory_that_is_none_or_too_little(app: Skiplock, memory: Any) -> None:
    with pytest.raises(OptionError, match="memory="):
        app.task(name="t", executor="process", memory=memory)(plain)


def test_the_name_of_a_function_within_a_function(app: Skiplock) -> None:
    def inner() -> None: ...

    assert app.task(inner).name == f"{__name__}.test_the_name_of_a_function_within_a_function.inner"


def test_context_and_resources_are_no_arguments(app: Skiplock) -> None:
    def factory() -> Iterator[int]:
        yield 1

    def work(ctx: JobContext, a: int, *, db: int = Resource(factory)) -> None: ...

    task = app.task(name="t")(work)
    assert (task.spec.wants_context, list(task.spec.resources)) == (True, ["db"])
    assert task.job(1).args == '{"a":1}'
    for wrong in ({"a": 1, "db": 2}, {"a": 1, "ctx": 2}):
        with pytest.raises(ArgumentError):
            task.job(**wrong)


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


def star(*numbers: int) -> None: ...
def double_star(**numbers: int) -> None: ...
def positional_only(a: int, /) -> None: ...
def dunder(__a: int) -> None: ...
def a_file(f: Callable[[], int]) -> None: ...
def context_second(a: int, ctx: JobContext) -> None: ...
def resource_positional(a: int = Resource(generator), /) -> None: ...


def make_inner() -> Any:
    def inner() -> None: ...

    return inner


class Callable_:
    async def __call__(self) -> None: ...


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "no function": (7, {}, "decorate a plain function"),
    "a generator": (generator, {}, "generator function"),
    "an async generator": (async_generator, {}, "generator function"),
    "any number of arguments": (star, {}, "any number of arguments"),
    "any keyword": (double_star, {}, "any keyword"),
    "positional-only": (positional_only, {}, "positional-only"),
    "two underscores": (dunder, {}, "two underscores"),
    "an argument JSON cannot hold": (a_file, {}, "cannot be stored as JSON"),
    "the context in second place": (context_second, {}, "must be the first parameter"),
    "a positional-only resource": (resource_positional, {}, "positional-only"),
    "a lambda without a name": (lambda: None, {"name": None}, "no name of its own"),
    "a partial without a name": (functools.partial(plain, b="y"), {"name": None}, "no name of its own"),
    "the loop for a def": (plain, {"executor": "async"}, "does not fit"),
    "a thread for an async def": (later, {"executor": "thread"}, "does not fit"),
    "an executor that is none": (plain, {"executor": "gpu"}, "does not fit"),
    "a lambda for a child": (
        lambda: None,
        {"executor": "process"},
        "finds by importing its module; <lambda> is not one",
    ),
    "a partial for a child": (
        functools.partial(plain, b="y"),
        {"executor": "process"},
        "finds by importing its module",
    ),
    "a function in a function for a child": (
        make_inner(),
        {"executor": "process"},
        "make_inner.<locals>.inner is not one",
    ),
    "a generator for a child": (generator, {"executor": "process"}, "generator function"),
    "memory for a thread": (plain, {"memory": "512MiB"}, 'needs executor="process"'),
    "memory for the loop": (later, {"memory": "512MiB", "executor": "async"}, 'needs executor="process"'),
    "a hook for no moment": (plain, {"hooks": {"job_done": print}}, "'job_done' is unknown"),
}


@pytest.mark.parametrize(("function", "settings", "said"), REFUSED.values(), ids=REFUSED)
def test_refused(app: Skiplock, function: Any, settings: dict[str, Any], said: str) -> None:
    with pytest.raises(TaskDefinitionError, match=said):
        app.task(**{"name": "t"} | settings)(function)
    assert app.tasks == {}


OPTIONS: dict[str, dict[str, Any]] = {
    "name empty": {"name": ""}, "name too long": {"name": "x" * 201}, "name with NUL": {"name": "a\0"}, "name no text": {"name": 7},
    "queue empty": {"queue": ""}, "queue no text": {"queue": None}, "priority too high": {"priority": 32768},
    "priority no number": {"priority": "1"}, "priority a bool": {"priority": True}, "no attempts": {"max_attempts": 0},
    "attempts no number": {"max_attempts": 1.5}, "timeout 0": {"timeout": 0}, "timeout negative": {"timeout": -1},
    "timeout of words": {"timeout": "soon"}, "timeout endless": {"timeout": float("inf")}, "tags a text": {"tags": "tag"},
    "tag empty": {"tags": [""]}, "too many tags": {"tags": ["x"] * 51},
}  # fmt: skip


@pytest.mark.parametrize(
    "settings",
    [o for name, o in OPTIONS.items() if name not in ("name empty", "tags a text")],
    ids=[n for n in OPTIONS if n not in ("name empty", "tags a text")],
)
def test_settings_that_are_refused(app: Skiplock, settings: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        app.task(**{"name": "t"} | settings)(plain)
    assert app.tasks == {}


@pytest.mark.parametrize("settings", [OPTIONS["name empty"], OPTIONS["tags a text"]], ids=["name empty", "tags a text"])
def test_settings_that_should_be_refused(app: Skiplock, settings: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        app.task(**{"name": "t"} | settings)(plain)


WRONG_TYPES: dict[str, dict[str, Any]] = {
    "backoff a number": {"backoff": 5},
    "a retry rule that is none": {"retry_on": {ValueError: "5s"}},
    "a retry rule for no class": {"retry_on": {"ValueError": Backoff()}},
    "a hook that cannot be called": {"hooks": {"job_dead": 7}},
    "a middleware that cannot be called": {"middleware": [7]},
}


@pytest.mark.parametrize("settings", WRONG_TYPES.values(), ids=WRONG_TYPES)
def test_settings_of_the_wrong_type(app: Skiplock, settings: dict[str, Any]) -> None:
    with pytest.raises(TaskDefinitionError):
        app.task(name="t", **settings)(plain)


def test_a_function_without_a_signature(app: Skiplock) -> None:
    with pytest.raises(TaskDefinitionError, match="signature"):
        app.task(name="t")(max)


def test_two_of_one_name(app: Skiplock) -> None:
    app.task(name="t")(plain)
    with pytest.raises(TaskDefinitionError, match="registered twice"):
        app.task(name="t")(later)


def test_a_task_is_no_function(app: Skiplock) -> None:
    with pytest.raises(TaskDefinitionError, match="decorate a plain function"):
        app.task(app.task(name="t")(plain))


def test_a_function_of_main(app: Skiplock) -> None:
    def script() -> None: ...

    script.__module__ = "__main__"
    with pytest.raises(TaskDefinitionError, match="__main__"):
        app.task(script)
    assert app.task(name="given")(script).name == "given"


@pytest.mark.parametrize(
    ("factory", "scope"),
    [(7, "attempt"), (generator, "job"), (generator, None)],
    ids=["no factory", "no scope", "none"],
)
def test_resources_that_are_refused(factory: Any, scope: Any) -> None:
    with pytest.raises(TaskDefinitionError, match="Resource"):
        Resource(factory, scope=scope)


def test_an_unknown_task(app: Skiplock) -> None:
    app.task(name="known")(plain)
    with pytest.raises(UnknownTaskError, match=r"'unknown'.*known: known"):
        app.find_task("unknown")


# --- using ------------------------------------------------------------------------------------------------------------

USING: dict[str, dict[str, Any]] = {
    "delay negative": {"delay": -1}, "delay of words": {"delay": "soon"}, "delay of ages": {"delay": 1e12},
    "a naive time": {"at": dt.datetime(2030, 1, 1)}, "a date": {"at": dt.date(2030, 1, 1)}, "a time as text": {"at": "2030-01-01"},
    "the year 9999": {"at": dt.datetime(9999, 6, 1, tzinfo=dt.UTC)},
    "both": {"delay": 1, "at": dt.datetime(2030, 1, 1, tzinfo=dt.UTC)}, "priority": {"priority": 40000}, "queue": {"queue": "a\nb"},
    "timeout": {"timeout": 0}, "attempts": {"max_attempts": 0}, "tags": {"tags": "x"}, "meta with NaN": {"meta": {"a": float("nan")}},
    "meta with an object": {"meta": {"a": object()}}, "meta too large": {"meta": {"a": "x" * 70_000}},
}  # fmt: skip


@pytest.mark.parametrize("options", USING.values(), ids=USING)
def test_options_that_are_refused(app: Skiplock, options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        app.task(name="t")(plain).using(**options)


def test_options_add_up_and_the_task_stays_as_it_was(app: Skiplock) -> None:
    task = app.task(name="t", queue="q", priority=5, tags=["a"])(plain)
    other = task.using(priority=0, delay="5m").using(queue="r", meta={"m": 1}, timeout=3)
    job = other.job(1)
    assert (job.queue, job.priority, job.delay, job.tags, job.meta, job.options) == (
        "r",
        0,
        300.0,
        ("a",),
        '{"m":1}',
        '{"timeout":3.0}',
    )
    job = task.job(1)
    assert (job.queue, job.priority, job.delay, job.meta, job.options) == ("q", 5, None, None, None)


def test_delay_after_at_is_refused_too(app: Skiplock) -> None:
    with pytest.raises(OptionError, match="give one of them"):
        app.task(name="t")(plain).using(at=dt.datetime(2030, 1, 1, tzinfo=dt.UTC)).using(delay=1)


def test_enqueue_many_wants_jobs(app: Skiplock) -> None:
    task = app.task(name="t")(plain)
    with pytest.raises(OptionError, match="item 2"):
        app.enqueue_many([task.job(1), task])  # type: ignore[list-item]
