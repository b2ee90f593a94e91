"""For every value: it comes back the same, or it is refused. Nothing else happens."""

import dataclasses
import datetime as dt
import json
import uuid
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from skiplock.core.codec import ArgsCodec, encode_result
from skiplock.core.errors import ArgumentError
from skiplock.core.failure import describe, safe_text

LIMIT = 10_000_000
ALL_TEXT = st.text(st.characters())  # with NUL; surrogates are added where wanted
ODD_TEXT = st.text(st.characters(categories=["Lu", "Cc", "Cs", "So"]) | st.just("\0"))


@dataclasses.dataclass
class Record:
    name: str
    when: dt.datetime
    parts: list[Decimal]
    more: Any = None


def codec_for(annotation: Any) -> ArgsCodec:
    def work(x): ...

    work.__annotations__ = {"x": annotation}
    return ArgsCodec.of(work, task="t")


def clean(text: str) -> bool:
    return "\0" not in text and not any(0xD800 <= ord(char) < 0xE000 for char in text)


def same(left: Any, right: Any) -> bool:
    """Equal, and of the same types all the way down; a tuple counts as a list."""
    if isinstance(left, list | tuple):
        return isinstance(right, list) and len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict):
        return type(right) is dict and [*left] == [*right] and all(same(left[key], right[key]) for key in left)
    return type(left) is type(right) and left == right


CLEAN_TEXT = st.text().filter(clean)
AWARE = st.datetimes(timezones=st.sampled_from([dt.UTC, dt.timezone(dt.timedelta(hours=5, minutes=30))]))
NUMBERS = st.decimals(allow_nan=False, allow_infinity=False)
TYPED = [
    (str, CLEAN_TEXT),
    (int, st.integers()),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (bytes, st.binary()),
    (dt.datetime, AWARE),
    (dt.date, st.dates()),
    (dt.time, st.times()),
    (dt.timedelta, st.timedeltas()),
    (uuid.UUID, st.uuids()),
    (Decimal, NUMBERS),
    (frozenset[uuid.UUID], st.frozensets(st.uuids())),
    (dict[str, list[int | None]], st.dictionaries(CLEAN_TEXT, st.lists(st.none() | st.integers()))),
    (dict[uuid.UUID, tuple[dt.date, bool]], st.dictionaries(st.uuids(), st.tuples(st.dates(), st.booleans()))),
    (list[Record], st.lists(st.builds(Record, CLEAN_TEXT, AWARE, st.lists(NUMBERS), st.none() | CLEAN_TEXT))),
]


@pytest.mark.parametrize(("annotation", "values"), TYPED, ids=lambda part: getattr(part, "__name__", "") or None)
@given(data=st.data())
def test_a_declared_type_comes_back_the_same(annotation, values, data):
    value = data.draw(values)
    codec = codec_for(annotation)
    back = codec.decode(codec.encode((value,), {}, limit=LIMIT))["x"]
    assert type(back) is type(value)
    assert back == value


ANY = codec_for(Any)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | ODD_TEXT
    | st.decimals()
    | st.datetimes()
    | AWARE
    | st.uuids()
    | st.binary()
    | st.sets(st.integers())
    | st.builds(object)
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(ODD_TEXT | st.integers(), inner),
)


@given(ANYTHING)
def test_anything_comes_back_the_same_or_is_refused(value):
    try:
        raw = ANY.encode((value,), {}, limit=LIMIT)
    except ArgumentError as error:
        assert error.path.startswith("$.x")
        str(error).encode()
        assert "\0" not in str(error)
    else:
        assert same(value, ANY.decode(raw)["x"])
        stored_by_postgres(raw)


@given(ANYTHING)
def test_a_result_can_be_stored_or_is_refused(value):
    try:
        raw = encode_result(value)
    except ArgumentError as error:
        assert error.path.startswith("$")
    else:
        assert (raw is None) is (value is None)
        stored_by_postgres(raw or "null")


def stored_by_postgres(raw: str) -> None:
    """What a jsonb column asks of JSON: no NUL, no lone surrogates, no NaN."""
    raw.encode()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    decoded = json.loads(raw, parse_constant=refuse)
    assert clean(json.dumps(decoded, ensure_ascii=False))
    assert "\\u0000" not in json.dumps(decoded, ensure_ascii=False).replace("\\\\", "")


@given(ALL_TEXT | ODD_TEXT)
def test_text_is_taken_exactly_if_it_is_clean(text):
    codec = codec_for(str)
    if clean(text):
        assert codec.decode(codec.encode((text,), {}, limit=LIMIT)) == {"x": text}
    else:
        with pytest.raises(ArgumentError):
            codec.encode((text,), {}, limit=LIMIT)


@given(st.text() | st.binary())
def test_garbage_in_the_table_is_an_argument_error(raw):
    with pytest.raises(ArgumentError):
        codec_for(int).decode(raw)


@given(ALL_TEXT | ODD_TEXT, st.integers(0, 300))
def test_safe_text_is_clean_and_within_its_limit(text, limit):
    safe = safe_text(text, limit)
    assert clean(safe)
    assert len(safe) <= limit
    if clean(text) and len(text) <= limit:
        assert safe == text


@given(ODD_TEXT)
def test_every_message_can_be_described(text):
    failure = describe(ValueError(text))
    assert clean(failure.message)
    assert clean(failure.traceback or "")
