"""`skiplock schedules`. Kinds: zones that nobody sees (CRON-01, 11, 26), last runs that nobody sees (CRON-27)."""

from __future__ import annotations

import shlex

import pytest

from tests.support.fleets import ROOT
from tests.support.verbs import open_verbs

GUIDE = (ROOT / "docs" / "guides" / "schedules.md").read_text()


@pytest.fixture(autouse=True)
def clean(dsn):
    with open_verbs(dsn) as db:
        db.empty()
        yield


@pytest.fixture
def call(invoke):
    return lambda words: invoke("schedules", *shlex.split(words))


def row_of(out, name):
    return next(line for line in out.splitlines() if line.startswith(name))


def test_add_and_show(call):
    assert call("list").out == "there are no schedules\n"
    assert call("list --json").json == {"schedules": []}
    made = call("add nightly report region=eu n=3 --cron '30 3 * * *' --tz Asia/Tokyo --overlap skip")
    assert made.code == 0 and made.out.startswith("schedule nightly: made; next ")
    assert "03:30:00 JST = " in made.out and "18:30:00 UTC" in made.out
    again = call("add nightly report --every 5m --json")
    assert again.code != 0 and "there is one of that name already" in again.error["message"]
    other = call("add ticks t --every 90s --queue fast --priority 4 --jitter 5s --json").json
    found = [other[key] for key in ("every", "queue", "priority", "jitter", "state")]
    assert found == [90.0, "fast", 4, 5.0, "active"]
    shown = call("show nightly --json").json
    assert shown["args"] == {"region": "eu", "n": 3}
    found = [shown[key] for key in ("cron", "zone", "overlap", "declared", "last_fire")]
    assert found == ["30 3 * * *", "Asia/Tokyo", "skip", False, None]
    assert shown["next_fire"].endswith("18:30:00+00:00") and shown["next_fire_local"].endswith("03:30:00+09:00")
    page = call("show nightly").out
    assert "At 03:30 every day (Asia/Tokyo)" in page and "0 made, 0 skipped, 0 missed" in page
    assert page.count("03:30:00 JST = ") == 3


def test_list(call, invoke, dsn):
    call("add nightly report --cron '30 3 * * *' --tz Asia/Tokyo")
    with open_verbs(dsn) as db:
        db.rows(
            "UPDATE skiplock.schedules SET last_fire = '2026-07-01T18:30Z', last_job = 7, problem = 'no such thing'"
        )
    nightly = row_of(invoke("schedules", "list", COLUMNS="120").out, "nightly")
    for word in ("failing", "30 3 * * * Asia/Tokyo", "07-02 03:30", "report"):
        assert word in nightly
    lines = invoke("schedules", "list", COLUMNS="80").out.splitlines()
    assert all(len(line) <= 80 for line in lines) and "07-02 03:30" in lines[2] and "failing" in lines[2]
    assert "no such thing" in call("show nightly").out


def test_acts(call, invoke):
    call("add s t n=1 --cron '0 * * * *'")
    assert call("pause s").out == "schedule s: paused\n"
    assert call("show s --json").json["state"] == "paused"
    assert call("resume s --json").json["state"] == "active"
    changed = call("change s n=2 --tz Europe/Berlin --missed all --json").json
    found = [changed[key] for key in ("args", "zone", "missed", "cron")]
    assert found == [{"n": 2}, "Europe/Berlin", "all", "0 * * * *"]
    job = call("run s --json").json["id"]
    assert invoke("jobs", "show", job, "--json").json["meta"]["schedule"] == "s"
    refused = call("delete s")
    assert refused.code == 2 and "--yes" in refused.err
    assert call("delete s --yes").out == "schedule s: deleted\n"
    for act in ("show", "pause", "resume", "reset", "run", "change --cron '* * * * *'", "delete --yes"):
        answer = call(f"{act} s --json")
        assert answer.code != 0 and answer.error["message"] == "schedule 's': there is none of that name", act


def test_with_an_app_the_task_checks_the_arguments(call):
    assert call("add s send to=7 --app shop:app --every 1h --json").json["args"] == {"to": "7"}
    shown = call("show s --json").json
    assert (shown["queue"], shown["priority"], shown["tags"]) == ("mail", 3, ["post"])
    assert call("change s to=8 --app shop:app --json").json["args"] == {"to": "8"}
    assert "nam" in call("add x send nam=7 --app shop:app --every 1h").err


def test_one_declared_in_code(call, dsn):
    declared = '[{"name": "s", "spec": {"task": "t", "cron": "0 0 * * *"}}]'
    with open_verbs(dsn) as db:
        db.rows("SELECT skiplock.declare_schedules(%s, 0, %s)", db.register(lost_after=1e6), declared)
        assert "in code" in call("show s").out and "changed" not in call("show s").out
        assert call("change s --cron '5 5 * * *'").code == 0
        assert "active, changed" in row_of(call("list").out, "s ")
        page = call("show s").out
        assert "in code, changed" in page and '"5 5 * * *"' in page
        assert "a living worker declares it" in call("delete s --yes").err
        assert call("reset s --json").json["cron"] == "0 0 * * *"
        db.rows("DELETE FROM skiplock.workers")
        db.rows("SELECT skiplock.due_schedules()")
        assert "orphaned" in row_of(call("list").out, "s ")
        assert call("delete s --yes").code == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("--cron '* * * *'", "Wrong number of fields"),
        ("--cron '0 0 31 2 *'", "cron '0 0 31 2 *'"),
        ("--cron '* * * * *' --tz Mars", "time zone 'Mars': not in the IANA database"),
        ("--every soon", "every: 'soon' is not a duration"),
        ("--every 5m --cron '* * * * *'", "give one of them"),
        ("", "give --cron or --every"),
        ("--every 5m --missed-most 0", "missed_most=0"),
        ("--every 5m --start 2027-01-01", "has no time zone"),
    ],
)
def test_what_is_refused_stores_nothing(call, words, error):
    answer = call(f"add s t {words}")
    assert answer.code == 2 and error in answer.err
    assert call("list --json").json == {"schedules": []}


def test_explain(call):
    answer = call("explain '30 2 * * *' --tz Europe/Berlin --after 2026-10-24T12:00Z --count 2")
    assert answer.out.splitlines() == [
        "At 02:30 every day (Europe/Berlin)",
        "2026-10-25 02:30:00 CEST = 2026-10-25 00:30:00 UTC",
        "2026-10-26 02:30:00 CET = 2026-10-26 01:30:00 UTC",
    ]
    told = call("explain --every 12h --after 2026-10-24T13:00Z --count 1 --json").json
    moment = "2026-10-25T00:00:00+00:00"
    assert told == {"words": "Every 12 hours", "zone": "UTC", "fires": [{"utc": moment, "local": moment}]}
    for wrong in ("", "x", "'* * * * *' --every 5m"):
        assert call(f"explain {wrong}").code == 2


def test_what_the_guide_shows_of_the_changes_of_the_clocks(bare):
    """To see it fail: change a line of docs/guides/schedules.md."""
    [shown] = [part for part in GUIDE.split("```") if "explain" in part and part.startswith("\n$")]
    commands = shown.strip().split("$ skiplock ")[1:]
    assert len(commands) == 3
    for command in commands:
        words, _, answer = command.partition("\n")
        assert bare(*shlex.split(words)).out.strip() == answer.strip()


def test_the_code_in_the_guide(dsn, monkeypatch):
    """It declares what it says, and all that it does at run time works."""
    monkeypatch.setenv("SKIPLOCK_DATABASE_URL", dsn)
    declaring, at_run_time = [part.removeprefix("python") for part in GUIDE.split("```") if part.startswith("python")]
    place = {"__name__": "guide"}
    exec(compile(declaring, "guide", "exec"), place)
    assert list(place["app"].schedules.declared) == ["guide.nightly", "guide.sync_stock", "nightly-us"]
    exec(compile(at_run_time.replace("await app.arun(", "app.run("), "guide", "exec"), place)
    assert place["job_id"] > 0 and place["app"].run(place["app"].schedules.all()) == []
    place["app"].close()
