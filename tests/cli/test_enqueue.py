"""`skiplock enqueue`: with and without the app."""

from __future__ import annotations

import pytest

USAGE = 2


def _stored(invoke, *args):
    answer = invoke("enqueue", *args, "--json")
    assert answer.code == 0, answer.err
    return invoke("jobs", "show", answer.json["id"], "--json").json


def test_untyped(invoke):
    job = _stored(
        invoke, "any.task", "to=ann", "n=3", "empty=", 'list=[1, "x"]', "big=12345678901234567890123", "eq=a=b"
    )
    assert job["args"] == {
        "to": "ann",
        "n": 3,
        "empty": "",
        "list": [1, "x"],
        "big": 12345678901234567890123,
        "eq": "a=b",
    }
    assert (job["task"], job["queue"], job["max_attempts"], job["state"]) == ("any.task", "default", 10, "ready")
    assert invoke("enqueue", "any.task").out.endswith("enqueued (any.task, queue default)\n")


def test_options(invoke):
    options = [
        "--queue",
        "q",
        "--priority",
        "-2",
        "--delay",
        "1h30m",
        "--max-attempts",
        "3",
        "--tag",
        "a",
        "--tag",
        "b",
    ]
    job = _stored(
        invoke, "t", *options, "--meta", "who=me", "--meta", "n=1", "--json-args", '{"x": {"y": 1.50}}', "z=2"
    )
    assert (job["queue"], job["priority"], job["max_attempts"], job["state"]) == ("q", -2, 3, "scheduled")
    assert (
        job["tags"] == ["a", "b"] and job["meta"] == {"who": "me", "n": 1} and job["args"] == {"x": {"y": 1.5}, "z": 2}
    )
    assert _stored(invoke, "t", "--at", "2126-01-01T00:00+01:00")["run_at"] == "2125-12-31T23:00:00+00:00"


def test_typed(invoke):
    for app in ("shop:app", "shop"):
        job = _stored(invoke, "send", "to=5", "name=null", "--app", app)
        assert job["args"] == {"to": "5", "name": None}
        assert (job["queue"], job["priority"], job["tags"]) == ("mail", 3, ["post"])
    words = ["n=3", "when=2026-12-01T00:00:00Z", "price=1.50", "size=1", "kind=2", "flags=[true]", 'extra={"a": 1}']
    args = _stored(invoke, "typed", *words, "--app", "shop:app")["args"]
    assert args == {
        "n": 3,
        "when": "2026-12-01T00:00:00Z",
        "price": "1.50",
        "size": "1",
        "kind": "2",
        "flags": [True],
        "extra": {"a": 1},
    }
    assert _stored(invoke, "send", 'to="x"', "--app", "shop", "--tag", "b")["args"] == {"to": '"x"'}
    assert _stored(invoke, "typed", "--json-args", '{"n": 4}', "--app", "shop")["args"] == {"n": 4}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["send", "--app", "shop"], "$.to|missing required field `to`|`to`"),
        (["typed", "n=x", "--app", "shop"], "$.n"),
        (["typed", "n=1", "zzz=1", "--app", "shop"], "zzz"),
        (["typed", "n=1", "flags=[1]", "--app", "shop"], "$.flags[0]"),
        (["typed", "n=1", "when=soon", "--app", "shop"], "$.when"),
        (["nope", "--app", "shop"], "known: boom, flaky, send, slow, typed"),
        (["t", "x"], "write name=value"),
        (["t", "=x"], "write name=value"),
        (["t", "a=1", "a=2"], "twice"),
        (["t", "a=1", "--json-args", '{"a": 2}'], "twice"),
        (["t", "--json-args", "[1]"], "not a JSON object"),
        (["t", "--json-args", "{"], "not a JSON object"),
        (["t", "--at", "tomorrow"], "not a time"),
        (["t", "--at", "2026-12-01T09:00"], "no time zone"),
        (["t", "--at", "2026-12-01T09:00Z", "--delay", "5m"], "one of them"),
        (["t", "--delay", "5x"], "5x"),
        (["t", "--delay", "-5"], "-5"),
        (["t", "--delay", "99999w"], "100 years"),
        (["t", "--priority", "40000"], "40000"),
        (["t", "--priority", "x"], "not a valid integer"),
        (["t", "--max-attempts", "0"], "max_attempts"),
        (["t", "--queue", ""], "queue"),
        (["t", "--meta", "x"], "write name=value"),
        (["t\n"], "task name"),
        (["t", "a=\udcff"], "not text"),
        (["t", 'a="\\u0000"'], "NUL"),
        ([], "Missing argument"),
    ],
)
def test_bad_input(invoke, args, says):
    for form in ((), ("--json",)):
        answer = invoke("enqueue", *args, *form)
        assert answer.code == USAGE and answer.out == "", answer
        text = answer.error["message"] if form else answer.err
        assert any(part in text for part in says.split("|"))
        assert "Traceback" not in answer.err


def test_what_is_typed_is_stronger_than_what_the_app_says(folder, invoke, dsn):
    (folder / "own.py").write_text(
        "from skiplock import Skiplock\napp = Skiplock('host=/nowhere')\n@app.task(name='t')\ndef t(): ...\n"
    )
    assert invoke("enqueue", "t", "--app", "own").code == 4
    assert invoke("enqueue", "t", "--app", "own", "--dsn", dsn).code == 0
