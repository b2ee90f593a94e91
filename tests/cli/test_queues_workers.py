"""`skiplock queues` and `skiplock workers`."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.support import connect


def now():
    return datetime.now(UTC)


def test_queues(invoke):
    assert invoke("queues", "list").out == "no queues hold jobs\n"
    for queue in ("mail", "mail", "slow"):
        assert invoke("enqueue", "any", "--queue", queue).code == 0
    paused = invoke("queues", "pause", "mail", "mail", "later", "--json")
    lasting = {"paused": True, "resume_at": None}
    assert paused.json == {"queues": [{"name": "mail"} | lasting, {"name": "later"} | lasting]}
    found = {queue["name"]: queue for queue in invoke("queues", "list", "--json").json["queues"]}
    assert found["mail"]["ready"] == 2 and found["mail"]["paused"] and not found["slow"]["paused"]
    assert found["later"]["paused"] and found["mail"]["oldest_ready"] >= 0
    for width in (80, 120):
        out = invoke("queues", "list", COLUMNS=str(width)).out
        assert all(len(line) <= width for line in out.splitlines())
        assert next(line for line in out.splitlines() if line.startswith("mail")).rstrip().endswith("paused")
    assert invoke("queues", "resume", "mail").out == "queue mail: resumed\n"
    assert "paused" not in next(q for q in invoke("queues", "list").out.splitlines() if q.startswith("mail"))
    assert invoke("queues", "pause", "").code == 2


def test_pauses_that_end(invoke):
    for group, names in (("queues", "mail"), ("tasks", "shop.send")):
        [found] = invoke(group, "pause", names, "--for", "1h", "--json").json[group]
        assert (
            found["name"] == names
            and 3590 < (datetime.fromisoformat(found["resume_at"]) - now()).total_seconds() < 3610
        )
        out = invoke(group, "pause", names, "--until", "2999-01-02T03:04+00:00", TZ="UTC").out
        assert out == f"{group[:-1]} {names}: paused until 2999-01-02 03:04:00 UTC\n"
        for width in ("80", "120"):
            lines = invoke(group, "list", TZ="UTC", COLUMNS=width).out.splitlines()
            assert all(len(line) <= int(width) for line in lines)
            assert any(line.startswith(names[:4]) for line in lines) and any("2999-01-02" in line for line in lines)
        assert invoke(group, "pause", names, "--for", "soon").code == 2
        assert invoke(group, "pause", names, "--for", "1h", "--until", "2999-01-02T03:04Z").code == 2
        assert invoke(group, "pause", names, "--until", "2999-01-02T03:04").code == 2, "no zone"
    [task] = invoke("tasks", "list", "--json").json["tasks"]
    assert task["name"] == "shop.send" and task["resume_at"].startswith("2999-01-02T03:04")
    assert invoke("tasks", "resume", "shop.send").out == "task shop.send: resumed\n"
    assert invoke("tasks", "list").out == "no task is paused\n"
    assert invoke("tasks", "resume", "a", "--json").json == {"tasks": [{"name": "a", "paused": False}]}


def test_bounds(invoke):
    assert invoke("queues", "bound", "post", "2").out == "queue post: at most 2 jobs\n"
    assert [invoke("enqueue", "any", "--queue", "post").code for _ in range(3)] == [0, 0, 1]
    refused = invoke("enqueue", "any", "--queue", "post", "--json")
    assert refused.error["code"] == "queue_full" and "its bound of 2" in refused.error["message"]
    assert "at most 2" in invoke("queues", "list").out
    assert invoke("queues", "bound", "post", "none", "--json").json == {"queues": [{"name": "post", "max_depth": None}]}
    assert invoke("enqueue", "any", "--queue", "post").code == 0
    assert [invoke("queues", "bound", "post", bad).code for bad in ("0", "x", "-1", "10000000")] == [2, 2, 2, 2]


def test_ageing(invoke):
    invoke("queues", "resume", "mail")
    assert invoke("queues", "age", "mail", "5m").out == "queue mail: +1 in priority for each 5 min\n"
    [queue] = [q for q in invoke("queues", "list", "--json").json["queues"] if q["name"] == "mail"]
    assert queue["age_every"] == 300 and "+1 each 5 min" in invoke("queues", "list").out
    assert invoke("queues", "age", "mail", "none", "--json").json == {"queues": [{"name": "mail", "age_every": None}]}
    assert "+1" not in invoke("queues", "list").out
    assert [invoke("queues", "age", "mail", bad).code for bad in ("0", "soon", "0.1")] == [2, 2, 2]


def test_workers(invoke, dsn):
    assert invoke("workers", "list").out == "no workers are registered\n"
    assert invoke("workers", "list", "--json").json == {"workers": []}
    with connect(dsn) as connection:
        for name in ("web-1", "h:7"):
            connection.execute("SELECT skiplock.register(%s, 'h', 7, '{\"mail\": 20}', '0.1', 9)", (name,))
        connection.execute("UPDATE skiplock.workers SET beat_at = now() - interval '2 minutes' WHERE name = 'web-1'")
    web, other = invoke("workers", "list", "--json").json["workers"]
    assert web["lost"] and not other["lost"] and web["queues"] == {"mail": 20} and web["pid"] == 7
    lines = invoke("workers", "list", COLUMNS="80").out.splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert "lost" in lines[2] and "2 min" in lines[2] and "web-1 @h" in lines[2] and "mail=20" in lines[3]
