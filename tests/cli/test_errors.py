"""Exit codes, bad input and apps that cannot be imported: one line, never a traceback of ours."""

from __future__ import annotations

import json

import pytest

from tests.support import connect, in_database


@pytest.mark.parametrize(
    ("code", "args"),
    [
        (0, ["jobs", "list"]),
        (1, ["jobs", "show", "99999"]),
        (1, ["jobs", "retry", "99999"]),
        (2, ["jobs", "show", "x"]),
        (2, ["jobs", "show", "0"]),
        (2, ["jobs", "show", "-1"]),
        (2, ["jobs", "show", "9223372036854775808"]),
        (2, ["jobs", "retry", "1", "²"]),
        (2, ["jobs", "retry"]),
        (2, ["jobs", "list", "--state", "foo"]),
        (2, ["jobs", "list", "--limit", "0"]),
        (2, ["jobs", "list", "--before", "x"]),
        (2, ["jobs", "nope"]),
        (2, ["nope"]),
        (2, ["--nope"]),
        (2, ["jobs", "list", "--nope"]),
        (3, ["jobs", "list", "--dsn", "nonsense"]),
        (3, ["jobs", "list", "--schema", 'a"b']),
        (4, ["jobs", "list", "--dsn", "host=/nowhere"]),
        (4, ["db", "migrate", "--dsn", "postgresql://x:secret@127.0.0.1:1/y"]),
        (5, ["jobs", "list", "--schema", "elsewhere"]),
        (5, ["queues", "pause", "q", "--schema", "elsewhere"]),
        (5, ["enqueue", "t", "--schema", "elsewhere"]),
    ],
)
def test_exit_codes(invoke, code, args):
    answer = invoke(*args)
    assert answer.code == code
    if code:
        assert answer.out == "" and answer.err.strip().splitlines()[-1].startswith("error: ")
        assert "Traceback" not in answer.err and "secret" not in answer.err
        as_json = invoke(*args, "--json")
        if args[:2] != ["jobs", "retry"] or code == 2:
            assert as_json.code == code and set(as_json.error) >= {"code", "message"} and as_json.out == ""


def test_no_database(bare, invoke, dsn):
    for args in (["jobs", "list"], ["db", "verify"], ["enqueue", "send", "to=x", "--app", "shop"], ["worker", "shop"]):
        answer = bare(*args)
        assert answer.code == 3
        assert all(name in answer.err for name in ("--dsn", "SKIPLOCK_DATABASE_URL", "DATABASE_URL"))
    missing = bare("jobs", "list", "--dsn", in_database(dsn, "not_there"))
    assert missing.code == 3 and "not_there" in missing.err


def test_a_database_that_refuses(bare, dsn):
    with connect(dsn) as connection:
        connection.execute("DROP ROLE IF EXISTS cli_nobody")
        connection.execute("CREATE ROLE cli_nobody LOGIN")
    try:
        answer = bare("jobs", "list", "--dsn", dsn.replace("postgres@", "cli_nobody@"))
        assert answer.code == 4 and "permission denied" in answer.err
    finally:
        with connect(dsn) as connection:
            connection.execute("DROP ROLE cli_nobody")


MODULES = {
    "broken": "import shop\n\ndef f():\n    raise KeyError('x')\nf()\n",
    "exits": "import sys\nsys.exit(7)\n",
    "inner": "import not_installed\n",
    "syntax": "def (\n",
    "two": "from skiplock import Skiplock\na, b = Skiplock(), Skiplock()\nc = a\nx = 1\n",
    "none": "",
    "badtask": "from skiplock import Skiplock\napp = Skiplock()\n@app.task\ndef f(x: object, /): ...\n",
}


@pytest.mark.parametrize(
    ("target", "says", "trace"),
    [
        ("nope:app", "'nope' not found; looked in {folder}", None),
        ("nope.sub:app", "'nope.sub' not found", None),
        ("shop.app", "did you mean shop:app?", None),
        ("shop.py:app", "shop:app?", None),
        ("./shop.py", "shop:app?", None),
        ("", "module:app", None),
        (":app", "module:app", None),
        ("shop:", "module:app", None),
        ("shop:nope", "has no attribute 'nope'; it has app", None),
        ("shop:send", "holds a Task, no Skiplock", None),
        ("two", "say which app, as in two:app; it has a, b", None),
        ("two:x", "it has a, b", None),
        ("none", "it has no Skiplock", None),
        ("exits:app", "'exits' calls sys.exit(7)", None),
        ("broken:app", "'broken' cannot be imported: KeyError: 'x'", 'broken.py", line 5'),
        ("inner:app", "'inner' cannot be imported: ModuleNotFoundError", 'inner.py", line 1'),
        ("syntax:app", "'syntax' cannot be imported: SyntaxError", 'syntax.py", line 1'),
        ("badtask:app", "positional-only", 'badtask.py", line 3'),
    ],
)
def test_import(folder, invoke, target, says, trace):
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    for args in (["enqueue", "send", "--app", target], ["worker", target]):
        answer = invoke(*args)
        assert answer.code == 3 and answer.out == ""
        last = answer.err.rstrip().splitlines()[-1]
        assert last.startswith("error: ") and says.format(folder=folder) in last
        assert (trace in answer.err and "skiplock/cli" not in answer.err) if trace else "Traceback" not in answer.err
    if trace:
        assert trace in invoke("enqueue", "send", "--app", target, "--json").error["traceback"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--queue", "mail="], "mail="),
        (["--queue", "mail=x"], "whole number"),
        (["--queue", "mail=0"], "from 1 to 10000"),
        (["--queue", "mail=10001"], "from 1 to 10000"),
        (["--queue", "=5"], "queue"),
        (["--queue", "mail=5", "--queue", "mail"], "twice"),
        (["--processes", "0"], "--processes"),
        (["--processes", "2", "--no-supervisor"], "--no-supervisor"),
        (["--grace", "-1"], "--grace"),
        (["--log-format", "xml"], "--log-format"),
        (["--log-level", "loud"], "--log-level"),
    ],
)
def test_worker_options(invoke, args, says):
    answer = invoke("worker", "shop:app", *args)
    assert answer.code == 2 and says in answer.err


def test_worker_settings_that_do_not_fit(invoke):
    answer = invoke("worker", "shop:app", "--beat-every", "5")
    assert answer.code == 3 and "lost_after" in answer.err
    answer = invoke("worker", "nope:app", "--log-format", "json")
    line = json.loads(answer.err)
    assert answer.code == 3 and (line["level"], line["event"]) == ("ERROR", "failed") and "'nope'" in line["error"]
