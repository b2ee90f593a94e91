"""Nested JSON: how deep it is, told exactly and before a decoder that recurses sees it.

Kinds: a decoder that overruns a thread's stack takes the whole process along (JSON nested 900 deep in a thread of 256 KiB),
depth hidden behind brackets in strings, megabytes of brackets that keep the event loop busy.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skiplock.core.depth import MAX_DEPTH, TooDeepError, decode_json, too_deep

ROOT = Path(__file__).resolve().parents[2]


def lists(levels: int, inside: str = "") -> str:
    return "[" * levels + inside + "]" * levels


def objects(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


FINE = {
    "nothing": "",
    "the deepest lists": lists(MAX_DEPTH),
    "the deepest objects": objects(MAX_DEPTH),
    "wide": "[" + ",".join(["[]"] * 5_000) + "]",
    "many of the deepest": "[" + ",".join([lists(MAX_DEPTH - 1)] * 50) + "]",
    "opening brackets in a string": json.dumps({"a": "[" * 5_000}),
    "closing brackets in a string": json.dumps(["]" * 5_000, [[]]]),
    "brackets behind an escaped quotation mark": json.dumps(['"' + "[{" * 500, "x"]),
    "brackets behind an escaped backslash": json.dumps(["\\", "[" * 500]),
    "brackets behind both": json.dumps(['\\"' + "[" * 500, '"\\' + "{" * 500]),
    "brackets in keys": json.dumps({"[" * 300: 1, "{" * 300: 2}),
    "no end": '["' + "x" * 1_000,
}
DEEP = {
    "one list too many": lists(MAX_DEPTH + 1),
    "one object too many": objects(MAX_DEPTH + 1),
    "900": lists(900),
    "5,000, as PostgreSQL takes": objects(5_000),
    "a million": lists(1_000_000),
    "among wide ones": "[" + "[]," * 5_000 + lists(MAX_DEPTH) + "]",
    "hidden behind closing brackets in strings": '["]",' * 300 + "1" + ',"["]' * 300,
    "hidden behind objects in strings": '{"}":' * 300 + "1" + "}" * 300,
    "hidden behind escapes": '["\\"]",' * 300 + "1" + "]" * 300,
    "hidden behind line feeds at the end of strings": '["]\\n",' * 300 + "1" + "]" * 300,
}


@pytest.mark.parametrize("text", FINE.values(), ids=FINE)
def test_not_too_deep(text: str) -> None:
    assert not too_deep(text)
    assert not too_deep(text.encode())


@pytest.mark.parametrize("text", DEEP.values(), ids=DEEP)
def test_too_deep(text: str) -> None:
    assert too_deep(text)
    assert too_deep(text.encode())
    with pytest.raises(TooDeepError, match="deeper than 200 levels"):
        decode_json(text)


def test_what_is_not_too_deep_is_decoded() -> None:
    assert decode_json('{"a": [1, null]}') == {"a": [1, None]}
    with pytest.raises(msgspec.DecodeError):
        decode_json("{")


HARD_TEXT = st.text(st.sampled_from('[]{}"\\\n,:ué'), max_size=6)
VALUES = st.recursive(
    st.none() | st.integers() | HARD_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(HARD_TEXT, inner, max_size=3),
    max_leaves=20,
)


def levels(value: object) -> int:
    children = value if isinstance(value, list) else value.values() if isinstance(value, dict) else None
    return 0 if children is None else 1 + max(map(levels, children), default=0)


@given(VALUES, st.booleans())
def test_whatever_its_strings_hold(value: object, ascii_only: bool) -> None:
    """At the very edge: one level of room, and none."""
    wrap = MAX_DEPTH - levels(value)
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert not too_deep(lists(wrap, text))
    assert too_deep(lists(wrap + 1, text))


def test_megabytes_of_brackets_take_no_time_to_speak_of() -> None:
    worst = ["[" + ",".join([lists(MAX_DEPTH - 1)] * 5_000) + "]", lists(1_000_000), '["' + '\\"[' * 500_000 + '"]']
    began = time.perf_counter()
    for text in worst:
        too_deep(text)
    assert time.perf_counter() - began < 5  # 0.2 s; one look at a bracket for each level would take minutes


def test_small_json_is_not_even_looked_at() -> None:
    class Watched(str):
        def count(self, *args: object) -> int:
            raise AssertionError("nobody needs to know")

    assert not too_deep(Watched("[" * MAX_DEPTH))


# --- in a thread with a small stack -----------------------------------------------------------------------------------

IN_A_THREAD = """
import dataclasses, sys, threading
from typing import Any
from skiplock.core.codec import ArgsCodec, encode_result, plain_json
from skiplock.core.decide import options_of
from skiplock.core.depth import decode_json
from skiplock.core.errors import ArgumentError, OptionError
from skiplock.core.job import Job
from skiplock.desk.find import _json

@dataclasses.dataclass
class Tree:
    inside: "Tree | None" = None

def of_any(x: Any): ...
def of_tree(x: Tree): ...
def of_lists(x: list[list[list[Any]]]): ...

def lists(n):
    return "[" * n + "]" * n
def objects(n):
    return '{"a":' * n + "1" + "}" * n
def trees(n):
    return '{"inside":' * n + "null" + "}" * n

def nested(n, wrap, inner):
    for _ in range(n):
        inner = wrap(inner)
    return inner

def refused(call, *args, **more):
    try:
        call(*args, **more)
    except ValueError as error:
        assert "deeper than 200" in str(error), error
    else:
        raise AssertionError("was taken")

def job(options):
    return Job(1, 1, "q", 0, 1, "t", "{}", 1, 1, 0, "", None, options)

def everything():
    for n in (201, 600, 900, 5000):
        for text in (lists(n), objects(n), trees(n), '["]",' * n + "1" + "]" * n):
            for function in (of_any, of_tree, of_lists):
                refused(ArgsCodec.of(function, task="t").decode, '{"x":' + text + "}")
            refused(decode_json, text)
            refused(options_of, job('{"timeout":' + text + "}"))
            assert _json(text) == text
    for n in (250, 600, 900):
        for value in (nested(n, lambda v: [v], 1), nested(n, lambda v: {"a": v}, 1), nested(n, Tree, None)):
            for function in (of_any, of_tree):
                refused(ArgsCodec.of(function, task="t").encode, (value,), {}, limit=10**6)
            refused(encode_result, value)
            refused(plain_json, {"x": value}, "meta", 10**6)
    for value in (nested(198, lambda v: [v], 1), nested(198, lambda v: {"a": v}, 1)):
        codec = ArgsCodec.of(of_any, task="t")
        assert codec.decode(codec.encode((value,), {}, limit=10**6)) == {"x": value}
    codec = ArgsCodec.of(of_tree, task="t")
    tree = nested(198, Tree, Tree())
    assert codec.decode(codec.encode((tree,), {}, limit=10**6)) == {"x": tree}
    print("still here")

kib = int(sys.argv[1])
if kib:
    threading.stack_size(kib * 1024)
failure = []
def run():
    try:
        everything()
    except BaseException as error:
        failure.append(error)
thread = threading.Thread(target=run)
thread.start()
thread.join()
if failure:
    raise failure[0]
"""


@pytest.mark.parametrize("stack", [256, 0], ids=["256 KiB", "as usual"])
def test_nothing_overruns_the_stack_of_a_thread(stack: int) -> None:
    """In a process of its own, for it would be gone. To see it fail: let `too_deep` answer False (the smaller stack crashes)."""
    done = subprocess.run(
        [sys.executable, "-c", IN_A_THREAD, str(stack)], cwd=ROOT / "src", capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "still here\n", "")
