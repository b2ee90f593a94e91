"""For any arguments: equal ones have one unique key, others another; and any text can be an argument."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from skiplock.core.unique_key import digest_of

TEXT = st.text()
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False, allow_infinity=False), TEXT
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXT, inner, max_size=4)),
    max_leaves=12,
)
ARGUMENTS = st.dictionaries(TEXT, VALUES, max_size=4)


def exact(value: Any) -> Any:
    """A value as something that is equal only if it is the same JSON, but for the order of keys and the sign of zero."""
    if isinstance(value, dict):
        return {key: exact(child) for key, child in value.items()}
    if isinstance(value, list):
        return [exact(child) for child in value]
    return (type(value).__name__, value)


def shuffled(value: Any) -> Any:
    """Equal, with all keys in another order."""
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(child) for child in value] if isinstance(value, list) else value


@given(ARGUMENTS, ARGUMENTS)
def test_keys_are_equal_exactly_if_the_arguments_are(this: dict[str, Any], that: dict[str, Any]) -> None:
    """To see it fail: leave out `order="sorted"`, or a part of the key."""
    key = digest_of("t", "q", this)
    assert key == digest_of("t", "q", shuffled(this)) == digest_of("t", "q", json.loads(json.dumps(this)))
    assert (key == digest_of("t", "q", that)) is (exact(this) == exact(that))


@given(ARGUMENTS, st.data())
@settings(max_examples=200)
def test_a_small_difference_is_one(arguments: dict[str, Any], data: st.DataObject) -> None:
    """Two drawn at random are hardly ever nearly equal."""
    name = data.draw(st.sampled_from([*arguments, "new"]))
    changed = arguments | {
        name: data.draw(st.one_of(SCALARS, st.just([arguments.get(name)]), st.just({}), st.just("")))
    }
    same = exact(arguments) == exact(changed)
    assert (digest_of("t", "q", arguments) == digest_of("t", "q", changed)) is same


@given(TEXT, TEXT, TEXT, TEXT)
def test_task_and_queue_belong_to_it(task: str, queue: str, other_task: str, other_queue: str) -> None:
    same = (task, queue) == (other_task, other_queue)
    assert (digest_of(task, queue, {}) == digest_of(other_task, other_queue, {})) is same
