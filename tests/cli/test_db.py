"""`skiplock db`."""

from __future__ import annotations

import psycopg

from tests.support import connect


def test_from_nothing_to_verified(bare, empty_dsn):
    def db(*args):
        return bare("db", *args, SKIPLOCK_DATABASE_URL=empty_dsn)

    assert db("verify").code == 1
    assert bare("jobs", "list", "--dsn", empty_dsn).code == 5
    planned = [step["name"] for step in db("plan", "--json").json["steps"]]
    assert "functions" in planned and "functions" in db("plan").out
    assert db("status", "--json").json["pending"] == planned
    assert "to be done" in db("status").out
    migrated = db("migrate", "--json")
    assert migrated.json == {"schema": "skiplock", "done": planned} and migrated.err == ""
    assert db("migrate", "--json").json["done"] == [] and "up to date" in db("migrate").out
    assert db("plan", "--json").json["steps"] == [] and db("status", "--json").json["pending"] == []
    assert "installed" in db("status").out
    assert db("verify", "--json").json == {"schema": "skiplock", "ok": True, "problems": []}


def test_changed_by_hand(bare, fresh_dsn):
    with connect(fresh_dsn) as connection:
        connection.execute(
            "CREATE OR REPLACE FUNCTION skiplock.pause(queue text) RETURNS void LANGUAGE sql AS 'SELECT NULL::void'"
        )
    answer = bare("db", "verify", "--dsn", fresh_dsn)
    assert answer.code == 1 and "by hand" in answer.err and answer.out == ""
    answer = bare("db", "verify", "--dsn", fresh_dsn, "--json")
    assert answer.code == 1 and not answer.json["ok"] and answer.err == ""
    assert "functions" in bare("db", "migrate", "--force", "--dsn", fresh_dsn).out
    assert bare("db", "verify", "--dsn", fresh_dsn).code == 0


def test_force_where_nothing_is_installed(bare, empty_dsn):
    assert bare("db", "migrate", "--force", "--dsn", empty_dsn).code == 0
    assert bare("db", "verify", "--dsn", empty_dsn).code == 0


def test_somebody_is_in_the_way(bare, fresh_dsn):
    """Said while it waits, and again at the end."""
    with psycopg.connect(fresh_dsn, application_name="psql of Ann") as holder:
        holder.execute("LOCK TABLE skiplock.migrations IN EXCLUSIVE MODE")
        migrate = ["db", "migrate", "--force", "--dsn", fresh_dsn, "--wait", "0.5"]
        answer = bare(*migrate)
        assert answer.code == 4 and answer.out == ""
        waiting, given_up = answer.err.strip().splitlines()
        assert waiting.startswith("waiting for locks; in the way: pid ") and "'psql of Ann'" in waiting
        assert given_up.startswith("error: gave up after 0.5 s") and "'psql of Ann'" in given_up
        answer = bare(*migrate, "--json")
        assert answer.code == 4 and answer.error["code"] == "migration_blocked" and "Ann" in answer.error["message"]
    assert bare(*migrate).code == 0


def test_the_printed_script_is_all_of_it(bare, empty_dsn):
    for schema in ("skiplock", "Other jobs"):
        script = bare("db", "sql", "--schema", schema)  # without any database
        assert script.code == 0 and script.err == ""
        with connect(empty_dsn) as connection:
            connection.execute(script.out)
        assert bare("db", "verify", "--dsn", empty_dsn, "--schema", schema).code == 0
        assert bare("enqueue", "t", "--dsn", empty_dsn, "--schema", schema).code == 0


def test_of_a_newer_skiplock(bare, fresh_dsn):
    with connect(fresh_dsn) as connection:
        connection.execute("INSERT INTO skiplock.migrations (name, checksum) VALUES ('9999_future', 'x')")
    for command in ("migrate", "plan"):
        answer = bare("db", command, "--dsn", fresh_dsn)
        assert answer.code == 5 and "9999_future" in answer.err
    assert "unknown" in bare("db", "status", "--dsn", fresh_dsn).out
