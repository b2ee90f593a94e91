"""`skiplock limits` and `skiplock queues limit`: what there is, and changing it while jobs wait."""

from __future__ import annotations

import pytest

from skiplock import Concurrency, Rate, Skiplock
from tests.support.verbs import open_verbs

NAME = "customer:{customer}"


@pytest.fixture
def app(dsn):
    with Skiplock(dsn) as app, open_verbs(dsn) as db:
        db.empty()
        app.task(name="bill", limits=[Concurrency(NAME, 1)])(lambda customer: None)
        app.task(name="call", limits=[Rate("api", 100, per="1h")])(lambda: None)
        for customer in (1, 1, 1, 2):
            app.tasks["bill"].enqueue(customer=customer)
        app.enqueue_many([app.tasks["call"].job() for _ in range(3)])
        yield app


def test_list_and_show(invoke, app):
    found = {limit["name"]: limit for limit in invoke("limits", "list", "--json").json["limits"]}
    assert set(found) == {NAME, "api"}
    assert {key: found[NAME][key] for key in ("keys", "held", "waiting", "slots")} == {
        "keys": 2,
        "held": 2,
        "waiting": 2,
        "slots": None,
    }
    assert found["api"]["waiting"] == 2 and 0 < found["api"]["next_start"] <= 36
    keys = invoke("limits", "show", NAME, "--json").json["keys"]
    assert [(key["value"], key["held"], key["waiting"]) for key in keys] == [("customer:1", 1, 2), ("customer:2", 1, 0)]
    lines = invoke("limits", "list").out.splitlines()
    assert any("api" in line and "in 3" in line for line in lines)
    assert "customer:1" in invoke("limits", "show", NAME).out
    assert invoke("limits", "show", "none").out == "limit none: no key of it is in use\n"


def test_set_and_unset(invoke, app, dsn):
    answer = invoke("limits", "set", NAME, "--value", "customer:1", "--slots", 2, "--json").json
    assert answer == {"name": NAME, "value": "customer:1", "slots": 2, "rate": None, "per": None, "burst": None}
    assert invoke("limits", "set", "api", "--rate", 5, "--per", "1m", "--burst", 3).out == "limit api: set\n"
    with open_verbs(dsn) as db:
        db.rows("SELECT * FROM skiplock.promote(1000)")
        assert db.value("SELECT count(*) FROM skiplock.slots WHERE key LIKE '%%:1'") == 2
    lines = invoke("limits", "list").out.splitlines()
    assert any("5 in 1 min, 3 at once" in line and "set by hand" in line for line in lines)
    assert invoke("limits", "unset", "api", "--json").json == {"name": "api", "value": None, "was_set": True}
    assert invoke("limits", "unset", "api").out == "limit api: was not set\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "give slots, or a rate"),
        (("--slots", "-1"), "slots=-1"),
        (("--burst", "2"), "belong to a rate"),
        (("--rate", "nan"), "rate=nan"),
        (("--rate", "1", "--per", "0s"), "per='0s'"),
        (("--slots", "1", "--value", "\x1f"), "value"),
    ],
)
def test_nonsense_changes_nothing(invoke, app, options, said):
    answer = invoke("limits", "set", "api", *options)
    assert answer.code == 2 and said in answer.err
    assert invoke("limits", "unset", "api", "--json").json["was_set"] is False


def test_queues_limit(invoke, app):
    assert invoke("queues", "limit", "mail", 5).out == "queue mail: 5 at a time\n"
    found = {queue["name"]: queue for queue in invoke("queues", "list", "--json").json["queues"]}
    assert found["mail"]["slots"] == 5 and found["default"]["slots"] is None
    assert any("mail" in line and "5 at a time" in line for line in invoke("queues", "list").out.splitlines())
    assert invoke("queues", "limit", "mail", "none", "--json").json == {"queues": [{"name": "mail", "slots": None}]}
    assert "mail" not in invoke("queues", "list").out
    assert invoke("queues", "limit", "mail", "many").code == 2
