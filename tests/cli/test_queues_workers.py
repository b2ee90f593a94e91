"""`skiplock queues` and `skiplock workers`."""

from __future__ import annotations

from tests.support import connect


def test_queues(invoke):
    assert invoke("queues", "list").out == "no queues hold jobs\n"
    for queue in ("mail", "mail", "slow"):
        assert invoke("enqueue", "any", "--queue", queue).code == 0
    paused = invoke("queues", "pause", "mail", "mail", "later", "--json")
    assert paused.json == {"queues": [{"name": "mail", "paused": True}, {"name": "later", "paused": True}]}
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
