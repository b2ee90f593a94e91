"""What may be said with `unique=`, and the keys computed from arguments.

Kinds: the same job must have the same key however it is written, and no other job (CONC-30); a setting that cannot work is refused
where it is written; every refusal names value, place and way out.
"""

from __future__ import annotations

import dataclasses
import json
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, StrEnum
from typing import Any
from uuid import UUID

import msgspec
import pydantic
import pytest

from skiplock import ArgumentError, OptionError, Skiplock, TaskDefinitionError, Unique
from skiplock.task import Task


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Plain(StrEnum):
    RED = "red"


@dataclasses.dataclass
class Point:
    x: float
    y: float = 0.0


class Order(pydantic.BaseModel):
    number: int
    tags: set[str] = set()
    home: pydantic.HttpUrl | None = None
    secret: pydantic.SecretStr | None = None


class Cat(msgspec.Struct, tag=True):
    name: str


class Dog(msgspec.Struct, tag=True):
    name: str


@pytest.fixture
def app() -> Skiplock:
    return Skiplock("postgresql://nowhere")


def key(task: Task[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The unique key of a job, None if it has none."""
    flow = task.job(*args, **kwargs).flow
    return None if flow is None else json.loads(flow).get("unique", {}).get("key")


def one(app: Skiplock, kind: Any, **options: Any) -> Task[..., Any]:
    """A task with one parameter of that type."""

    def function(value: Any) -> None: ...

    function.__annotations__["value"] = kind
    return app.task(name=f"t{len(app.tasks)}", unique=Unique(**options))(function)


CET = timezone(timedelta(hours=1))
SAME = [
    (float, 1, 1.0),
    (float, 0.0, -0.0),
    (list[float], [1, 2.5], [1.0, 2.5]),
    (dict[str, int], {"a": 1, "b": 2}, {"b": 2, "a": 1}),
    (Any, {"a": {"x": 1, "y": [1]}, "b": 2}, {"b": 2, "a": {"y": [1], "x": 1}}),
    (set[str], {"a", "b", "c", "d"}, {"d", "c", "b", "a"}),
    (list[int], [1, 2], (1, 2)),
    (datetime, datetime(2030, 1, 1, 12, tzinfo=UTC), datetime(2030, 1, 1, 13, tzinfo=CET)),
    (Decimal, Decimal("1.50"), Decimal("1.5")),
    (Decimal, Decimal("0"), Decimal("-0.00")),
    (Decimal, Decimal("1E+3"), Decimal("1000")),
    (Point, Point(1), Point(1.0, 0)),
    (Order, Order(number=1, tags={"a", "b", "c"}), Order(number=1, tags={"c", "b", "a"})),
    (dict[int, str], {1: "a", 2: "b"}, {2: "b", 1: "a"}),
    (Colour, Colour.RED, Colour("red")),
    (bytes, b"ab", b"ab"),
]
OTHERS = [
    (Any, 1, "1"),
    (Any, 1, True),
    (Any, None, "null"),
    (Any, [], {}),
    (Any, {"a": None}, {}),
    (Any, ["a", "b"], ["b", "a"]),
    (Any, ["ab"], ["a", "b"]),
    (str, "a", "A"),
    (str, "\u00e9", "e\u0301"),
    (str, "", " "),
    (float, 0.1 + 0.2, 0.3),
    (int, 2**60, 2**60 + 1),
    (Decimal, Decimal("1." + "0" * 60 + "1"), Decimal("1." + "0" * 60 + "2")),
    (datetime, datetime(2030, 1, 1, 12, tzinfo=UTC), datetime(2030, 1, 1, 12, tzinfo=CET)),
    (date, date(2030, 1, 1), date(2030, 1, 2)),
    (Cat | Dog, Cat("Rex"), Dog("Rex")),
    (Colour, Colour.RED, Colour.BLUE),
    (Order, Order(number=1), Order(number=2)),
    (Order, Order(number=1, home="https://a.example"), Order(number=1, home="https://b.example")),  # type: ignore[arg-type]
    (UUID, UUID(int=1), UUID(int=2)),
    (list[set[str]], [{"a"}, {"b"}], [{"b"}, {"a"}]),
]


@pytest.mark.parametrize(("kind", "this", "that"), SAME)
def test_equal_arguments_have_one_key(app: Skiplock, kind: Any, this: Any, that: Any) -> None:
    """To see it fail: make the key of the arguments as they are stored."""
    task = one(app, kind)
    assert key(task, this) == key(task, that)


@pytest.mark.parametrize(("kind", "this", "that"), OTHERS)
def test_others_have_another(app: Skiplock, kind: Any, this: Any, that: Any) -> None:
    task = one(app, kind)
    assert key(task, this) != key(task, that)


def test_an_argument_left_out_equals_its_default(app: Skiplock) -> None:
    nothing = object()

    @app.task(unique=True, name="t")
    def task(a: int, b: int = 2, *, c: Any = nothing, d: Colour = Colour.RED) -> None: ...

    assert key(task, 1) == key(task, 1, 2) == key(task, a=1, b=2) == key(task, b=2, a=1) == key(task, 1, d=Colour.RED)
    assert len({key(task, 1), key(task, 2), key(task, 1, 3), key(task, 1, c=None), key(task, 1, d=Colour.BLUE)}) == 5


def test_deep_and_large_arguments_have_keys_too(app: Skiplock) -> None:
    def nested(inner: Any) -> Any:
        for _ in range(190):
            inner = [inner]
        return inner

    task = one(app, Any)
    assert key(task, nested(1)) != key(task, nested(2))
    assert key(task, "x" * 900_000 + "a") != key(task, "x" * 900_000 + "b")
    assert len(key(task, "x" * 900_000)) < 60


def test_a_key_is_of_its_task_and_queue(app: Skiplock) -> None:
    this, that = one(app, int), one(app, int)
    assert len({key(this, 1), key(that, 1), key(this.using(queue="other"), 1)}) == 3


def test_only_the_parameters_named_count(app: Skiplock) -> None:
    @app.task(name="t", unique=Unique(by=["document", "kind"]))
    def task(document: int, kind: str = "pdf", at: float = 0) -> None: ...

    assert key(task, 1, at=1) == key(task, 1, "pdf", at=2) != key(task, 2, at=1)
    assert key(task.using(unique=Unique(by=["kind", "document"])), 1) == key(task, 1)
    single = task.using(unique=Unique(by=[]))
    assert key(single, 1) == key(single, 2, "doc", 3)


def test_a_key_of_ones_own_counts_over_all_tasks(app: Skiplock) -> None:
    this = one(app, int, by="customer:{value}")
    that = one(app, str, by=lambda value, **_: f"customer:{value}")
    assert key(this, 5) == key(that, "5") == key(this.using(queue="other"), 5) == "customer:5"
    assert key(one(app, Order, by="order {value.number}"), Order(number=7)) == "order 7"
    assert key(one(app, Any, by="only one"), 1) == "only one"
    # Whatever somebody makes of it, it never meets a key computed from all arguments.
    task = one(app, int)
    with pytest.raises(ArgumentError, match="control characters"):
        key(one(app, str, by="{value}"), key(task, 1))


@pytest.mark.parametrize("kind", [Colour, Plain])
def test_an_enum_stands_for_its_value(app: Skiplock, kind: Any) -> None:
    """In a text as in a function, and in every release of Python."""
    assert key(one(app, kind, by="c {value}"), kind.RED) == "c red"
    assert key(one(app, kind, by=lambda value: value), kind.RED) == "red"


def test_none_of_a_function_is_no_rule(app: Skiplock) -> None:
    task = one(app, int, by=lambda value: None if value < 0 else f"n{value}")
    assert (key(task, -1), key(task, 1)) == (None, "n1")


def test_true_false_and_nothing(app: Skiplock) -> None:
    """To see it fail: let `flow_of` make None of False."""
    task = one(app, int)
    assert key(task.using(unique=True), 1) == key(task, 1) == key(task.using(priority=2), 1) is not None
    assert key(task.using(unique=False), 1) is None
    assert key(task.using(unique=False).using(unique=Unique(by="x")), 1) == "x"

    @app.task(name="plain")
    def plain(value: int) -> None: ...

    assert plain.job(1).flow is None and key(plain.using(unique=True), 1) is not None


def test_what_is_said_comes_through(app: Skiplock) -> None:
    task = one(app, int, period="1h", hold=90, on_conflict="reschedule", longest=timedelta(minutes=5))
    rules = json.loads(task.job(1).flow or "")["unique"]
    assert rules | {"key": ""} == {"key": "", "on_conflict": "reschedule", "period": 3600, "hold": 90, "longest": 300}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"on_conflict": "ignore"}, "on_conflict='ignore': use keep, replace, reschedule or raise"),
        ({"period": 0.1}, "period=0.1: must be at least 1 second"),
        ({"period": "soon"}, "unique: period: 'soon' is not a duration"),
        ({"period": "100000d"}, "unique: period: '100000d' is more than 100 years"),
        ({"hold": -1}, "unique: hold: -1 is not a duration"),
        ({"hold": float("inf")}, "unique: hold: inf is not a duration"),
        ({"hold": 1e300}, r"unique: hold: 1e\+300 is more than 100 years"),
        ({"longest": 5}, 'longest=5: needs on_conflict="reschedule"'),
        ({"by": 5}, r"by=5: give names of parameters, as in \[\"customer_id\"\], or a key"),
        ({"by": [1]}, r"by=\[1\]: give names of parameters"),
        ({"by": "{}"}, "name the parameters, as in"),
        ({"by": "{0}"}, "name the parameters, as in"),
        ({"by": "{a"}, "write braces that are meant as such twice"),
        ({"by": ""}, "must not be empty"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_written(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        Unique(**options)


@pytest.mark.parametrize("unique", ["value", 1, ["value"], Unique])
def test_it_is_true_false_or_a_unique(app: Skiplock, unique: Any) -> None:
    with pytest.raises(OptionError, match=r"give True, False or a Unique\(…\)"):
        app.task(name="t", unique=unique)(lambda value: None)


@pytest.mark.parametrize("by", [["valeu"], "{valeu}", "{valeu.id}", "{valeu[3]}"])
def test_parameters_that_are_not_there_are_refused_at_the_declaration(app: Skiplock, by: Any) -> None:
    with pytest.raises(TaskDefinitionError, match="names 'valeu', which is no parameter; there are: value"):
        one(app, int, by=by)
    with pytest.raises(TaskDefinitionError, match="valeu"):
        one(app, int).using(unique=Unique(by=by))


def test_the_name_of_a_parameter_is_no_plain_name(app: Skiplock) -> None:
    """Meant is surely a key of each value; one for all would let one job through at a time."""
    with pytest.raises(
        TaskDefinitionError, match=r"unique 'value' is a plain name.*write by=\[\"value\"\], else choose another"
    ):
        one(app, int, by="value")
    with pytest.raises(TaskDefinitionError, match=r"fair_key 'value' is a plain name.*write \"\{value\}\""):
        app.task(name="t", fair_key="value")(lambda value: None)


async def later(value: Any) -> str:
    return str(value)


@pytest.mark.parametrize(
    ("by", "value", "reason"),
    [
        ("{value.name}", 5, "unique key cannot be computed from the arguments: AttributeError: 'int' object"),
        (lambda value: 1 / value, 0, "cannot be computed from the arguments: ZeroDivisionError"),
        (lambda other: other, 0, "cannot be computed from the arguments: TypeError"),
        (lambda value: object(), 0, "answered <object object.*: let it answer text, a number or None"),
        (lambda value: [value], 0, r"answered \[0\], which is of type list"),
        ("{value}", "x" * 201, r"has 201 characters, at most 200 are allowed; by=\[…\] with names of parameters takes"),
        ("{value}", "a\nb", "holds control characters"),
        ("{value}", "", "must not be empty"),
    ],
)
def test_a_key_that_cannot_be_is_refused_with_its_reason(app: Skiplock, by: Any, value: Any, reason: str) -> None:
    task = one(app, Any, by=by)
    with pytest.raises(ArgumentError, match=reason) as found:
        task.job(value)
    assert found.value.task == task.name


@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_key_is_not_waited_for(app: Skiplock) -> None:
    with pytest.raises(ArgumentError, match="of type coroutine"):
        one(app, Any, by=later).job(1)
