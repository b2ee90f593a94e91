"""Arguments, results, metadata and names on their way into JSON: what comes back, what is refused, and in which words."""

import collections
import dataclasses
import datetime as dt
import enum
import functools
import os
import types
import uuid
import warnings
from decimal import Decimal
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest

from skiplock.core.codec import ArgsCodec, check_name, check_text, encode_result, plain_json
from skiplock.core.errors import ArgumentError, OptionError, PayloadTooLargeError, TaskDefinitionError

NOON = dt.datetime(2025, 6, 1, 12, 0, 0, 123456, tzinfo=dt.UTC)
BERLIN = ZoneInfo("Europe/Berlin")
LIMIT = 100_000


class Colour(enum.Enum):
    RED = "red"


class Kind(enum.StrEnum):
    MAIL = "mail"


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Item:
    price: float
    note: Any = None


@dataclasses.dataclass(eq=False)
class Uncomparable:
    number: int


@dataclasses.dataclass
class Tree:
    leaves: set[int]
    branches: list["Tree"]


class Point(msgspec.Struct):
    x: int
    y: int | msgspec.UnsetType = msgspec.UNSET


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Options(TypedDict):
    depth: int
    name: NotRequired[str]


class Person(pydantic.BaseModel):
    age: int
    born: dt.datetime | None = None
    children: list["Person"] = []


class StrictPerson(pydantic.BaseModel, strict=True, extra="forbid"):
    born: dt.date
    full_name: str = pydantic.Field(alias="fullName")

    @pydantic.computed_field
    def year(self) -> int:
        return self.born.year


class Word(str):
    pass


class FrozenClock(dt.datetime):
    """As the libraries that freeze time in tests have it."""


def codec_for(annotation: Any) -> ArgsCodec:
    def work(x):
        raise AssertionError("a codec never calls the function")

    work.__annotations__ = {"x": annotation}
    return ArgsCodec.of(work, task="shop.work")


def there_and_back(annotation: Any, value: Any) -> Any:
    codec = codec_for(annotation)
    return codec.decode(codec.encode((value,), {}, limit=LIMIT))["x"]


def refusal(annotation: Any, value: Any) -> ArgumentError:
    with pytest.raises(ArgumentError) as caught:
        codec_for(annotation).encode((value,), {}, limit=LIMIT)
    assert caught.value.task == "shop.work"
    assert str(caught.value).startswith("shop.work: ")
    return caught.value


def nested(levels: int) -> list[Any]:
    return functools.reduce(lambda inner, _: [inner], range(levels - 1), [])


SAME = {
    "text": (str, "Ann"),
    "text that spells NUL": (str, "\\u0000"),
    "text beyond the BMP": (str, "🦊 ñ"),
    "int": (int, -3),
    "int beyond 64 bits": (int, 10**30),
    "int beyond 64 bits, undeclared": (Any, 10**30),
    "float": (float, 0.1),
    "bool": (bool, True),
    "None": (None, None),
    "optional": (int | None, None),
    "union": (int | str, "3"),
    "literal": (Literal["a", 1], 1),
    "datetime": (dt.datetime, NOON),
    "datetime with offset": (dt.datetime, NOON.astimezone(dt.timezone(dt.timedelta(hours=-3)))),
    "date": (dt.date, NOON.date()),
    "time": (dt.time, dt.time(1, 2, 3, 4)),
    "aware time": (dt.time, dt.time(1, 2, tzinfo=dt.UTC)),
    "timedelta": (dt.timedelta, dt.timedelta(days=-1, microseconds=3)),
    "longest timedelta": (dt.timedelta, dt.timedelta.max),
    "UUID": (uuid.UUID, uuid.UUID(int=7)),
    "Decimal": (Decimal, Decimal("1.50")),
    "Decimal with a large exponent": (Decimal, Decimal("1E+1000")),
    "enum": (Colour, Colour.RED),
    "str enum": (Kind, Kind.MAIL),
    "int enum": (Level, Level.LOW),
    "bytes": (bytes, b"\x00\xff"),
    "list": (list[int], [1, 2]),
    "set": (set[uuid.UUID], {uuid.UUID(int=1), uuid.UUID(int=2)}),
    "frozenset": (frozenset[str], frozenset({"a"})),
    "tuple": (tuple[int, dt.date], (1, NOON.date())),
    "tuple of any length": (tuple[Decimal, ...], (Decimal(1), Decimal("2.0"))),
    "dict": (dict[str, list[int]], {"a": [1], "b c": []}),
    "dict keyed by int": (dict[int, str], {1: "a"}),
    "dict keyed by date": (dict[dt.date, int], {NOON.date(): 1}),
    "dataclass": (Item, Item(1.5, {"a": [None]})),
    "dataclass without __eq__": (list[Item], [Item(1.0)]),
    "recursive dataclass": (Tree, Tree({1}, [Tree(set(), [])])),
    "struct": (Point, Point(1)),
    "TypedDict": (Options, {"depth": 1}),
    "NamedTuple": (Pair, Pair(1)),
    "pydantic model": (Person, Person(age=40, born=NOON, children=[Person(age=9)])),
    "pydantic model in containers": (dict[str, list[Person | None]], {"a": [Person(age=1), None]}),
    "strict pydantic model with alias": (StrictPerson, StrictPerson(born=NOON.date(), fullName="Ann")),
    "constrained": (Annotated[int, msgspec.Meta(ge=0)], 0),
    "anything": (Any, {"a": [1, 2.5, "x", None, True, {}], "b": {"c": []}}),
    "object": (object, [1]),
    "objects by name": (dict[str, object], {"a": [1, {"b": None}]}),
    "as deep as allowed": (Any, nested(199)),
}


@pytest.mark.parametrize(("annotation", "value"), SAME.values(), ids=SAME)
def test_comes_back_as_it_was(annotation, value):
    back = there_and_back(annotation, value)
    assert type(back) is type(value)
    assert back == value


def test_a_dataclass_is_compared_by_its_fields():
    assert there_and_back(Uncomparable, Uncomparable(3)).number == 3


CONVERTED = {
    "tuple where nothing is declared": (Any, (1, (2,)), [1, [2]]),
    "tuple as list": (list[int], (1,), [1]),
    "list as tuple": (tuple[int, ...], [1], (1,)),
    "tuple as Sequence": (collections.abc.Sequence[int], (1,), [1]),
    "int as float": (float, 1, 1.0),
    "int as Decimal": (Decimal, 1, Decimal(1)),
    "frozenset as set": (set[int], frozenset({1}), {1}),
    "str enum as str": (str, Kind.MAIL, "mail"),
    "int enum as int": (int, Level.LOW, 1),
    "subclass of str as str": (str, Word("a"), "a"),
    "subclass of datetime": (
        dt.datetime,
        FrozenClock(2025, 1, 1, tzinfo=dt.UTC),
        dt.datetime(2025, 1, 1, tzinfo=dt.UTC),
    ),
    "bytearray as bytes": (bytes, bytearray(b"a"), b"a"),
    "ordered dict": (Any, collections.OrderedDict(a=1), {"a": 1}),
    "zone as offset": (dt.datetime, NOON.astimezone(BERLIN), NOON),
}


@pytest.mark.parametrize(("annotation", "value", "expected"), CONVERTED.values(), ids=CONVERTED)
def test_comes_back_as_declared(annotation, value, expected):
    back = there_and_back(annotation, value)
    assert type(back) is type(expected)
    assert back == expected


@pytest.mark.parametrize("clock", [dt.datetime, FrozenClock])
@pytest.mark.parametrize("fold", [0, 1])
def test_a_time_within_a_repeated_hour_keeps_its_instant(clock, fold):
    moment = clock(2025, 10, 26, 2, 30, fold=fold, tzinfo=BERLIN)
    assert there_and_back(dt.datetime, moment).timestamp() == moment.timestamp()


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)
TWICE = [1]

REFUSED = {
    # PAY-16, PAY-19, PAY-20: what PostgreSQL's text cannot hold
    "NUL": (str, "a\0b", "$.x", "NUL"),
    "NUL deep inside": (Any, {"a": [{"b c": "\0"}]}, "$.x.a[0]['b c']", "NUL"),
    "NUL after one list seen twice": (Any, [TWICE, TWICE, "\0"], "$.x[2]", "NUL"),
    "NUL in a key": (dict[str, int], {"a\0": 1}, r"$.x['a\x00']", "key that holds a NUL"),
    "NUL in a dataclass": (Item, Item(1.0, "\0"), "$.x.note", "NUL"),
    "lone surrogate": (str, "\ud800", "$.x", "surrogate"),
    "file name that is no UTF-8": (list[str], ["ok", os.fsdecode(b"\xff")], "$.x[1]", "surrogate"),
    "lone surrogate in a key": (Any, {"\udc81": 1}, r"$.x['\udc81']", "surrogate"),
    # PAY-07
    "NaN": (float, float("nan"), "$.x", "nan"),
    "NaN where None would do": (float | None, float("nan"), "$.x", "nan"),
    "infinity in a list": (list[float], [1.0, float("-inf")], "$.x[1]", "-inf"),
    "NaN in a tuple in a dict": (Any, {"a": (1, float("nan"))}, "$.x.a[1]", "nan"),
    "NaN as a key": (dict[float, int], {float("nan"): 1}, "$.x[nan]", "nan"),
    "Decimal NaN": (Decimal, Decimal("NaN"), "$.x", "NaN"),
    "Decimal signalling NaN": (Decimal, Decimal("sNaN"), "$.x", "sNaN"),
    "Decimal infinity": (list[Decimal], [Decimal("Infinity")], "$.x[0]", "Infinity"),
    "NaN in a pydantic model": (list[Person], [Person.model_construct(age=float("nan"))], "$.x[0].age", "nan"),
    # PAY-11: a silent change of type
    "datetime for str": (str, NOON, "$.x", "is of type datetime but would come back as str"),
    "datetime undeclared": (Any, [NOON], "$.x[0]", "annotate it as datetime"),
    "str for datetime": (dt.datetime, NOON.isoformat(), "$.x", "is of type str but would come back as datetime"),
    "str for UUID": (uuid.UUID, str(uuid.UUID(int=1)), "$.x", "is of type str but would come back as UUID"),
    "UUID undeclared": (Any, uuid.UUID(int=1), "$.x", "annotate it as UUID"),
    "Decimal undeclared": (Any, {"a": Decimal(1)}, "$.x.a", "annotate it as Decimal"),
    "float for Decimal": (Decimal, 0.5, "$.x", "is of type float"),
    "int enum for Decimal": (Decimal, Level.LOW, "$.x", "is of type Level"),
    "set undeclared": (Any, {1}, "$.x", "is of type set but would come back as list"),
    "int keys undeclared": (Any, {"a": {1: 2}}, "$.x.a[1]", "key that is of type int"),
    "keys that collide": (Any, {1: 2, "1": 3}, "$.x", "keys that are the same"),
    "str enum undeclared": (Any, Kind.MAIL, "$.x", "annotate it as Kind"),
    "value for enum": (Kind, "mail", "$.x", "is of type str but would come back as Kind"),
    "bytes undeclared": (Any, b"a", "$.x", "annotate it as bytes"),
    "NamedTuple undeclared": (Any, Pair(1), "$.x", "annotate it as Pair"),
    "tuple for NamedTuple": (Pair, (1, "r"), "$.x", "is of type tuple"),
    "dataclass undeclared": (Any, Item(1.0), "$.x", "annotate it as Item"),
    "dict for dataclass": (Item, {"price": 1.0}, "$.x", "send Item"),
    "datetime in an undeclared field": (Item, Item(1.0, NOON), "$.x.note", "datetime"),
    "model undeclared": (Any, Person(age=1), "$.x", "annotate it as Person"),
    "int that no float holds": (float, 2**53 + 1, "$.x", "is of type int"),
    "offset with seconds": (dt.datetime, NOON.astimezone(dt.timezone(dt.timedelta(seconds=3))), "$.x", "changed"),
    "time in a zone": (dt.time, dt.time(1, tzinfo=BERLIN), "$.x", "changed"),
    # no time zone
    "naive datetime": (dt.datetime, dt.datetime(2025, 1, 1), "$.x", "datetime.now(UTC)"),
    "naive datetime in a list": (list[dt.datetime], [NOON, dt.datetime(2025, 1, 1)], "$.x[1]", "time zone"),
    "naive datetime in a model": (Person, Person(age=1, born=dt.datetime(2025, 1, 1)), "$.x.born", "time zone"),
    # not what the annotation says
    "bool for int": (int, True, "$.x", "Expected `int`, got `bool`, given True"),
    "float for int": (int, 1.0, "$.x", "Expected `int`, got `float`"),
    "bool for float": (float, True, "$.x", "Expected `float`, got `bool`"),
    "str for int": (int, "1", "$.x", "given '1'"),
    "not of the literal": (Literal["a"], "b", "$.x", "given 'b'"),
    "datetime for date": (dt.date, NOON, "$.x", "date"),
    "constraint": (Annotated[int, msgspec.Meta(ge=0)], -1, "$.x", ">= 0"),
    "price of the wrong type": (list[dict[str, float]], [{"price": 1}, {"price": "3"}], "$.x[1].price", "given '3'"),
    "key of the wrong one": (dict[str, dict[str, int]], {"a": {"b": 1}, "c d": {"e": "f"}}, "$.x['c d'].e", "'f'"),
    "dataclass that lies": (list[Item], [Item(1.0), Item("2")], "$.x[1].price", "Expected `float`, got `str`"),
    "pydantic model that lies": (
        list[Person],
        [Person.model_construct(age="x")],
        "$.x[0].age",
        "Person: Input should be",
    ),
    # no JSON at all
    "object": (Any, {"a": [object()]}, "$.x.a[0]", "of type object, which cannot be stored"),
    "key that is none": (Any, {(1, 2): 1}, "$.x[(1, 2)]", "of type tuple"),
    "subclass of str undeclared": (Any, Word("a"), "$.x", "annotate it as Word"),
    "int of 5,000 digits": (int, 10**5000, "$.x", "digits"),
    "circle": (Any, CIRCLE, "$.x[0]", "refers to itself"),
}


@pytest.mark.parametrize(("annotation", "value", "path", "reason"), REFUSED.values(), ids=REFUSED)
def test_is_refused_with_path_and_reason(annotation, value, path, reason):
    error = refusal(annotation, value)
    assert error.path == path
    assert reason in str(error)


@pytest.mark.parametrize("levels", [201, 500, 5_000])
@pytest.mark.parametrize("annotation", [Any, list])
def test_too_deep_is_refused(annotation, levels):
    error = refusal(annotation, nested(levels))
    assert "deeper than 200" in str(error)
    assert len(error.path) <= 200


def test_a_subclass_of_the_declared_model_is_refused():
    class Employee(Person):
        salary: int = 1

    assert "is of type test_a_subclass" in str(refusal(Person, Employee(age=1)))


def test_what_a_model_hides_is_refused():
    class Login(pydantic.BaseModel):
        password: pydantic.SecretStr

    error = refusal(Login, Login(password="hunter2"))
    assert error.path == "$.x.password"
    assert "hunter2" not in str(error)


def test_an_odd_repr_does_not_hide_the_reason():
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no repr")

    assert "of type" in str(refusal(Any, [Odd()]))


# --- size ------------------------------------------------------------------------------------------------------------


def test_the_limit_counts_bytes_of_utf8():
    codec = codec_for(str)
    text = codec.encode(("é" * 10,), {}, limit=28)
    assert len(text.encode()) == 28
    with pytest.raises(PayloadTooLargeError) as caught:
        codec.encode(("é" * 10,), {}, limit=27)
    assert caught.value.task == "shop.work"
    for part in ("28 bytes", "27", "pass its key"):
        assert part in str(caught.value)


# --- the call --------------------------------------------------------------------------------------------------------


def send(ctx, to: str, name: str = "you", *, copies: int = 1, db=None) -> None:
    raise AssertionError("a codec never calls the function")


SEND = ArgsCodec.of(send, task="mail.send", skip=frozenset({"ctx", "db"}))

CALLS = {
    "by place": (("a",), {}, {"to": "a"}),
    "by name": ((), {"to": "a"}, {"to": "a"}),
    "mixed": (("a", "b"), {"copies": 2}, {"to": "a", "name": "b", "copies": 2}),
    "a default that is given": (("a",), {"name": "you"}, {"to": "a", "name": "you"}),
}


@pytest.mark.parametrize(("args", "kwargs", "expected"), CALLS.values(), ids=CALLS)
def test_binds_like_a_call_and_omits_what_was_omitted(args, kwargs, expected):
    raw = SEND.encode(args, kwargs, limit=LIMIT)
    assert msgspec.json.decode(raw) == expected
    assert SEND.decode(raw) == expected


BAD_CALLS = {
    "missing": ((), {}, "$.to", "missing a required argument: 'to'"),
    "unexpected": (("a",), {"cc": "b"}, "$.cc", "unexpected keyword argument 'cc'"),
    "twice": (("a",), {"to": "b"}, "$.to", "multiple values for argument 'to'"),
    "too many": (("a", "b", 3), {}, "$", "too many positional arguments"),
    "the context": (("a",), {"ctx": 1}, "$.ctx", "unexpected keyword argument 'ctx'"),
}


@pytest.mark.parametrize(("args", "kwargs", "path", "reason"), BAD_CALLS.values(), ids=BAD_CALLS)
def test_a_call_that_does_not_fit_shows_the_signature(args, kwargs, path, reason):
    with pytest.raises(ArgumentError) as caught:
        SEND.encode(args, kwargs, limit=LIMIT)
    assert (caught.value.task, caught.value.path) == ("mail.send", path)
    assert reason in str(caught.value)
    assert "mail.send(to: str, name: str = 'you', *, copies: int = 1)" in str(caught.value)


def test_a_function_without_parameters():
    codec = ArgsCodec.of(lambda: None, task="tick")
    assert codec.encode((), {}, limit=2) == "{}"
    assert codec.decode("{}") == {}


STORED = {
    "wrong type": ('{"to":3}', "$.to", "Expected `str`, got `int`, given 3"),
    "missing": ("{}", "$.to", "missing required field `to`"),
    "renamed parameter": ('{"to":"a","subject":"b"}', "$.subject", "unknown field `subject`"),
    "no object": ("[1]", "$", "Expected `object`, got `array`"),
    "no JSON": ("hello", "$", "no JSON"),
    "cut short": ('{"to":"a', "$", "no JSON"),
    "lone surrogate": (r'{"to":"\ud800"}', "$.to", "holds a lone surrogate"),
    "lone surrogate in a key": (r'{"to":"a","\udc81":1}', r"$['\udc81']", "key that holds a lone surrogate"),
    "beyond all floats": ('{"to":1e400}', "$.to", "is inf"),
    "5,000 digits": ('{"to":' + "9" * 5_000 + "}", "$", "cannot be read: Integer value out of range"),
    "a key of 100,000 characters": (
        '{"to":"a","' + "k" * 100_000 + '":1}',
        "$['" + "k" * 27 + "..." + "k" * 28 + "']",
        "unknown field",
    ),
    "too deep": ('{"to":' + "[" * 300 + "]" * 300 + "}", "$", "nested deeper than 200 levels"),
    "too deep behind brackets": (
        '{"to":' + '["]",' * 300 + "1" + "]" * 300 + "}",
        "$",
        "nested deeper than 200 levels",
    ),
    "no UTF-8": (b'{"to":"\xff"}', "$", "no JSON"),
}


@pytest.mark.parametrize(("raw", "path", "reason"), STORED.values(), ids=STORED)
def test_stored_arguments_that_do_not_fit(raw, path, reason):
    with pytest.raises(ArgumentError) as caught:
        SEND.decode(raw)
    assert (caught.value.task, caught.value.path) == ("mail.send", path)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 1_000


def test_the_guilty_one_of_many_keys_is_not_looked_for_for_ever():
    """Each trial decodes the rest of the arguments again: with 64 MB of them a worker would be busy for minutes."""

    def work(x: dict[str, int], y: str): ...

    keys = ",".join(f'"k{n}":1' for n in range(500))
    for size, path in ((1_000, "$.x.bad"), (5_000_000, "$.x[…]")):
        with pytest.raises(ArgumentError) as caught:
            ArgsCodec.of(work, task="t").decode(f'{{"y":"{"y" * size}","x":{{{keys},"bad":"1"}}}}')
        assert caught.value.path == path


def test_a_stored_model_that_does_not_fit_names_the_place_inside_it():
    with pytest.raises(ArgumentError) as caught:
        codec_for(list[Person]).decode('{"x":[{"age":1,"children":[{"age":"old"}]}]}')
    assert caught.value.path == "$.x[0].children[0].age"


# --- the definition --------------------------------------------------------------------------------------------------


def _any_number(*values): ...
def _any_keyword(**values): ...
def _by_place_only(value, /): ...
def _dunder(__value): ...


BAD_SIGNATURES = {
    "*args": (_any_number, "'values' takes any number of arguments; take a list"),
    "**kwargs": (_any_keyword, "'values' takes any keyword; take a dict"),
    "positional-only": (_by_place_only, "'value' is positional-only"),
    "two underscores": (_dunder, "'__value' starts with two underscores"),
    "no signature": (type("NoSignature", (), {"__call__": 3})(), "signature"),
}


@pytest.mark.parametrize(("function", "reason"), BAD_SIGNATURES.values(), ids=BAD_SIGNATURES)
def test_a_signature_that_cannot_be_stored(function, reason):
    with pytest.raises(TaskDefinitionError, match="task t") as caught:
        ArgsCodec.of(function, task="t")
    assert reason in str(caught.value)


BAD_TYPES = {
    "complex": (complex, "complex cannot be stored"),
    "callable": (collections.abc.Callable[[int], int], "Callable cannot be stored"),
    "inside a list": (list[type], "type cannot be stored"),
    "inside a dataclass": (dataclasses.make_dataclass("Box", [("inner", complex)]), "complex cannot be stored"),
    "keys that are tuples": (dict[tuple[int, int], int], "keys of tuple"),
    "union that JSON cannot tell apart": (str | dt.datetime, "more than one str-like type"),
    "model or text": (Person | str, "custom type"),
}


@pytest.mark.parametrize(("annotation", "reason"), BAD_TYPES.values(), ids=BAD_TYPES)
def test_a_type_that_cannot_be_stored_names_the_parameter(annotation, reason):
    with pytest.raises(TaskDefinitionError, match=r"task shop\.work: parameter 'x' is annotated") as caught:
        codec_for(annotation)
    assert reason in str(caught.value)


def test_what_is_skipped_may_be_annotated_with_anything():
    def work(ctx: "NotImported", number: int, db: complex = 0j) -> "NeitherThis": ...  # noqa: F821

    codec = ArgsCodec.of(work, task="t", skip=frozenset({"ctx", "db"}))
    assert codec.encode((1,), {}, limit=LIMIT) == '{"number":1}'


def _late(value: "Later") -> None: ...  # noqa: F821


def test_a_type_defined_after_the_function_is_found_at_first_use(monkeypatch):
    codec = ArgsCodec.of(_late, task="t")
    with pytest.raises(TaskDefinitionError, match=r"'Later' is not defined.*module level"):
        codec.encode((1,), {}, limit=LIMIT)
    with pytest.raises(TaskDefinitionError, match="'Later' is not defined"):
        codec.decode('{"value":1}')
    monkeypatch.setitem(globals(), "Later", int)
    assert codec.decode(codec.encode((1,), {}, limit=LIMIT)) == {"value": 1}


def test_a_late_type_that_cannot_be_stored_is_refused_at_first_use(monkeypatch):
    codec = ArgsCodec.of(_late, task="t")
    monkeypatch.setitem(globals(), "Later", complex)
    with pytest.raises(TaskDefinitionError, match="complex cannot be stored"):
        codec.encode((1,), {}, limit=LIMIT)


def _typed(day: "dt.date") -> None: ...


class _Callable:
    def __call__(self, day: "dt.date") -> None: ...

    def method(self, day: "dt.date") -> None: ...


@functools.wraps(_typed)
def _wrapped(*args, **kwargs): ...


FUNCTIONS = {
    "function": _typed,
    "wrapped": _wrapped,
    "partial": functools.partial(_typed),
    "bound method": _Callable().method,
    "object": _Callable(),
}


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_annotations_are_found_on_every_kind_of_callable(function):
    codec = ArgsCodec.of(function, task="t")
    assert codec.decode('{"day":"2025-06-01"}') == {"day": dt.date(2025, 6, 1)}


# --- results ---------------------------------------------------------------------------------------------------------

RESULTS = {
    "text": ("a", '"a"'),
    "int": (3, "3"),
    "False": (False, "false"),
    "tuple": ((1, None), "[1,null]"),
    "int keys": ({1: 2}, '{"1":2}'),
    "datetime": (NOON, '"2025-06-01T12:00:00.123456Z"'),
    "naive datetime": (dt.datetime(2025, 6, 1), '"2025-06-01T00:00:00"'),
    "dataclass": (Item(1.5), '{"price":1.5,"note":null}'),
    "pydantic model": ([Person(age=1)], '[{"age":1,"born":null,"children":[]}]'),
    "text that looks like NaN": (["NaN", None], '["NaN",null]'),
    "text full of brackets": ("[{" * 300, '"' + "[{" * 300 + '"'),
}


@pytest.mark.parametrize(("value", "expected"), RESULTS.values(), ids=RESULTS)
def test_a_result_becomes_json(value, expected):
    assert encode_result(value) == expected


def test_none_is_no_result():
    assert encode_result(None) is None


BAD_RESULTS = {
    "NUL": ({"log": ["a\0"]}, "$.log[0]", "NUL"),  # PAY-02, PAY-03
    "lone surrogate": ("\udc81", "$", "surrogate"),
    "NaN": (float("nan"), "$", "nan"),  # PAY-08
    "infinity beside null": ([None, {"a": float("inf")}], "$[1].a", "inf"),  # PAY-09
    "Decimal NaN": ([Decimal("NaN")], "$[0]", "NaN"),
    "Decimal infinity": (Decimal("-Infinity"), "$", "-Infinity"),
    "NaN as a key": ({float("nan"): 1}, "$[nan]", "nan"),
    "no JSON": ({"a": object()}, "$.a", "of type object"),
    "key that is none": ({(1, 2): 1}, "$[(1, 2)]", "of type tuple"),
    "circle": (CIRCLE, "$[0]", "refers to itself"),
    "deep": (nested(300), None, "deeper than 200"),
    "deep behind brackets in text": (
        functools.reduce(lambda inner, _: ["]", inner, "["], range(300), 1),
        None,
        "deeper than 200",
    ),
    "one level too many": (nested(201), None, "deeper than 200"),
    "deep and beyond the recursion limit": (nested(5_000), None, "deeper than 200"),
}


@pytest.mark.parametrize(("value", "path", "reason"), BAD_RESULTS.values(), ids=BAD_RESULTS)
def test_a_result_that_cannot_be_stored(value, path, reason):
    with pytest.raises(ArgumentError) as caught:
        encode_result(value, task="t")
    assert caught.value.task == "t"
    assert reason in str(caught.value)
    assert path in (None, caught.value.path)


def test_a_result_has_a_limit():
    assert encode_result("x" * 8, limit=10) == '"xxxxxxxx"'
    with pytest.raises(PayloadTooLargeError, match=r"the result would be 11 bytes.*at most 10"):
        encode_result("x" * 9, limit=10)


def test_a_model_that_lies_makes_no_noise():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert encode_result(Person.model_construct(age="x"))


# --- metadata and names ----------------------------------------------------------------------------------------------


def test_metadata_is_plain_json():
    assert plain_json({"a": [1, None, {"b": "c"}]}, "meta", 100) == '{"a":[1,null,{"b":"c"}]}'


BAD_META = {
    "no dict": ([1], "is not a dict"),
    "a datetime": ({"a": NOON}, "$.a is of type datetime"),
    "an int key": ({1: 2}, "key that is of type int"),
    "NUL": ({"a": ["\0"]}, "$.a[0] holds a NUL"),
    "NUL in a key": ({"\0": 1}, "NUL"),
    "lone surrogate": ({"a": "\ud800"}, "surrogate"),
    "NaN": ({"a": float("nan")}, "$.a is nan"),
    "too large": ({"a": "x" * 100}, "108 bytes of JSON, at most 100"),
    "a mapping of another kind": (types.MappingProxyType({}), "is not a dict"),
}


@pytest.mark.parametrize(("value", "reason"), BAD_META.values(), ids=BAD_META)
def test_metadata_that_is_refused(value, reason):
    with pytest.raises(OptionError, match=r"^meta: ") as caught:
        plain_json(value, "meta", 100)
    assert reason in str(caught.value)


def test_the_size_of_metadata_is_looked_at_before_its_depth():
    with pytest.raises(OptionError, match="at most 100 are allowed"):
        plain_json({"a": nested(300)}, "meta", 100)
    with pytest.raises(OptionError, match=r"^meta: \$\.a.* is nested deeper than 200 levels"):
        plain_json({"a": nested(300)}, "meta", 10_000)
    assert plain_json({"a": nested(199)}, "meta", 10_000)


# --- values whose own code fails -------------------------------------------------------------------------------------


class Sulking(type):
    def __getattribute__(cls, name):
        if name in ("__name__", "__qualname__", "__module__"):
            raise RuntimeError("no name")
        return super().__getattribute__(name)


class Sulker(metaclass=Sulking):
    def __repr__(self):
        raise RuntimeError("no repr")


class SulkingFloat(float):
    def __repr__(self):
        raise RuntimeError("no repr")

    __str__ = __repr__


class SulkingError(Exception):
    def __str__(self):
        raise RuntimeError("no str")


class SulkingModel(pydantic.BaseModel):
    @pydantic.model_serializer
    def sulk(self) -> Any:
        raise SulkingError

    @pydantic.model_validator(mode="before")
    @classmethod
    def sulk_too(cls, value: Any) -> Any:
        raise SulkingError


SULKING = {
    "an object": Sulker(),
    "a float that is none": SulkingFloat("nan"),
    "a model": SulkingModel.model_construct(),
    "a key": {Sulker(): 1},
    "a class of a giant name": type("N" * 1_000_000, (), {})(),
}


@pytest.mark.parametrize("value", SULKING.values(), ids=SULKING)
def test_a_value_whose_own_code_fails_is_refused_like_any_other(value):
    with pytest.raises(ArgumentError) as given:
        codec_for(Any).encode(([value],), {}, limit=LIMIT)
    with pytest.raises(ArgumentError) as returned:
        encode_result([value])
    for caught in (given, returned):
        assert len(str(caught.value)) < 1_000


def test_stored_arguments_whose_model_fails_in_its_own_way_are_refused():
    with pytest.raises(ArgumentError, match="do not fit its signature"):
        codec_for(SulkingModel).decode('{"x":{}}')


# --- text and names ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "a", "a\nb\x1b", "x" * 10_000, Kind.MAIL])
def test_what_may_be_looked_for(text):
    found = check_text(text, "queue")
    assert (type(found), found) == (str, text)


@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800", 3, None, b"a"])
def test_what_may_not(text):
    with pytest.raises(OptionError, match=r"^queue: ") as caught:
        check_text(text, "queue")
    str(caught.value).encode()


@pytest.mark.parametrize("name", ["a", "mail.send", "two words", "日本語", "\u3000", "x" * 200])
def test_a_name(name):
    assert check_name(name, "queue") == name


def test_the_name_of_an_enum_member_is_its_value():
    name = check_name(Kind.MAIL, "queue")
    assert (type(name), name) == (str, "mail")


BAD_NAMES = {
    "empty": ("", "must not be empty"),
    "too long": ("x" * 201, "201 characters, at most 200"),
    "NUL": ("a\0", "control characters"),
    "line feed": ("a\nb", r"'a\nb'"),
    "C1 control": ("a\x85", "control characters"),
    "lone surrogate": ("\ud800", "surrogates"),
    "int": (3, "3 is not text"),
    "bytes": (b"a", "is not text"),
    "None": (None, "None is not text"),
}


@pytest.mark.parametrize(("name", "reason"), BAD_NAMES.values(), ids=BAD_NAMES)
def test_a_name_that_is_refused(name, reason):
    with pytest.raises(OptionError, match=r"^queue: ") as caught:
        check_name(name, "queue")
    assert reason in str(caught.value)
    str(caught.value).encode()  # the message itself can be stored
