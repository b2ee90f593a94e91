"""The command line and hostile shapes: what is typed is refused in one line, what is stored is shown without harm.

Kinds: arguments nested beyond a decoder's stack, of hundreds of megabytes, names of any text (SEC-18), one job that cannot be
read breaking a list (PAY-04), text that moves the cursor or recolours the terminal.
"""

from __future__ import annotations

import json
import re
import resource
import time

import pytest

from tests.support import connect

USAGE = 2
DEEP = "[" * 900 + "]" * 900
ODD = "a\nb\x1b[2J\u202e\u2028'\"%s{}"


@pytest.fixture
def stored(dsn):
    """Jobs that only SQL could enqueue."""
    args = {
        "deep": f'{{"x":{DEEP}}}',
        "surrogate": r'{"x":"\ud800"}',
        "number": '{"x":1e400}',
        "digits": '{"x":' + "9" * 5_000 + "}",
        "deepest": '{"x":' + "[" * 199 + "]" * 199 + "}",
        "escapes": json.dumps({"x": "\x1b[31m\u202e\x9b31m\x7f"}, ensure_ascii=False),
        "large": json.dumps({"x": "y" * 100_000}),
        "long key": json.dumps({"k" * 100_000: 1}),
    }
    with connect(dsn) as connection:
        connection.execute("TRUNCATE skiplock.jobs, skiplock.payloads, skiplock.attempts")
        sql = "SELECT skiplock.enqueue('t', %s, meta => %s)"
        found = {
            name: connection.execute(sql, (text, text)).fetchone()[0]
            for name, text in args.items()
            if name not in ("large", "long key")
        }
        found |= {
            name: connection.execute("SELECT skiplock.enqueue('t', %s)", (args[name],)).fetchone()[0]
            for name in ("large", "long key")
        }
        connection.execute(
            "UPDATE skiplock.jobs_ready SET queue = %s, task = %s, tags = ARRAY[%s], error = %s WHERE id = %s",
            (ODD, ODD, ODD, ODD, found["escapes"]),
        )
    return found, args


def test_what_cannot_be_read_is_shown_as_it_is_stored(invoke, stored):
    found, args = stored
    listed = {job["id"]: job["args"] for job in invoke("jobs", "list", "--json").json["jobs"]}
    assert set(listed) == set(found.values())
    for name in ("deep", "surrogate", "number", "digits"):
        assert listed[found[name]] == args[name]
        assert invoke("jobs", "show", found[name], "--json").json["args"] == args[name]
        assert invoke("jobs", "show", found[name]).code == 0
    for name in ("deepest", "large", "long key"):
        assert listed[found[name]] == json.loads(args[name])
        shown = invoke("jobs", "show", found[name])
        assert shown.code == 0
        assert shown.out.count("\n") < 2_000
    assert "y" * 100_000 in invoke("jobs", "show", found["large"]).out


def test_nothing_that_is_stored_moves_the_cursor(invoke, stored):
    found, _ = stored
    for args in (("jobs", "list"), ("jobs", "show", found["escapes"]), ("queues", "list")):
        answer = invoke(*args)
        assert answer.code == 0
        assert not set(answer.out) & {"\x1b", "\u202e", "\r", "\x9b", "\x7f"}
        assert "a\\nb" in answer.out or "a b" in answer.out or "\\x1b" in answer.out
    [job] = invoke("jobs", "list", "--json", "--queue", ODD).json["jobs"]
    assert (job["queue"], job["task"], job["tags"]) == (ODD, ODD, [ODD])


@pytest.mark.parametrize(
    "args",
    [
        ["n=" + "[" * 1500 + "]" * 1500],
        ["n=" + DEEP],
        ["--json-args", f'{{"n":{DEEP}}}'],
        ["n=" + "[" * 200 + "]" * 200],
        ["n=1", "--meta", "m=" + DEEP],
    ],
    ids=["beyond Python's own limit", "a word", "a document", "one level too many", "metadata"],
)
@pytest.mark.parametrize("app", [(), ("--app", "shop")], ids=["without the app", "with the app"])
def test_what_is_nested_too_deep_is_refused(invoke, args, app):
    for form in ((), ("--json",)):
        answer = invoke("enqueue", "typed", *args, *app, *form)
        assert answer.code == USAGE and answer.out == "", answer
        assert "nested deeper than 200 levels" in answer.err
        assert len(answer.err) < 2_000


def test_200_megabytes_are_refused_at_once(invoke):
    """In this process, for no system lets so much through as an argument of a command."""
    huge = "x" * 200_000_000
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    for args in (["typed", f"extra={huge}"], ["--app", "shop", "send", f"to={huge}"]):
        answer = invoke("enqueue", *args)
        assert answer.code == USAGE and answer.out == ""
        assert "at most 1,048,576 are allowed" in answer.err
        assert len(answer.err) < 1_000
    assert time.perf_counter() - began < 30  # 2 s
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_500_000  # KiB: a few copies, no more


@pytest.mark.parametrize("bad", ["a\nb", "\x1b[2J", "x" * 201, "\udcff", ""])
def test_names_that_no_job_can_have(invoke, bad):
    for args in (
        ["enqueue", bad],
        ["enqueue", "t", "--queue", bad],
        ["enqueue", "t", "--tag", bad],
        ["queues", "pause", bad],
    ):
        answer = invoke(*args)
        assert answer.code == USAGE and answer.out == "", args
        assert len(answer.err) < 600
        assert not set(answer.err) & {"\x1b", "\udcff"}


@pytest.mark.parametrize("name", ["a'b", 'a"b', "a;b", "%s", "{}", "ünï ☃", "$1", "NULL", "=", "x" * 200])
def test_names_of_any_printable_text(invoke, name):
    done = invoke("enqueue", name, "--queue", name, "--tag", name, "--json")
    assert done.code == 0
    for option in ("--queue", "--task", "--tag"):
        assert [job["id"] for job in invoke("jobs", "list", "--json", option, name).json["jobs"]] == [done.json["id"]]
    assert invoke("queues", "pause", name, "--json").json == {
        "queues": [{"name": name, "paused": True, "resume_at": None}]
    }
    paused = [queue["name"] for queue in invoke("queues", "list", "--json").json["queues"] if queue["paused"]]
    assert paused == [name]
    assert invoke("queues", "resume", name).code == 0
    shown = invoke("jobs", "show", done.json["id"]).out
    assert re.sub(r"\s", "", name) in re.sub(r"[\s│]", "", shown), "long ones are folded"


def test_ids_beyond_all_numbers(invoke):
    for bad in ("0", "-1", "9223372036854775808", "9" * 5_000, "１", "1e3", "0x1"):
        answer = invoke("jobs", "show", "--", bad)
        assert answer.code == USAGE and len(answer.err) < 6_000
    assert invoke("jobs", "show", 2**63 - 1).code == 1
