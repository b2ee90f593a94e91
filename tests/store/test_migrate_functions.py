"""Functions put in place of older ones: whatever has changed of them, whoever may call them, whatever depends on them.

Kinds: the answer or the parameters of a verb grow in an upgrade (UPG-14), rights that were given survive it, a view depends on
what changes (UPG-16), `db verify` on another server or under another search_path finds nothing wrong.
"""

from __future__ import annotations

import subprocess
import threading
from urllib.parse import urlsplit

import psycopg
import pytest

from skiplock import MigrationBlockedError
from skiplock.store import migrate as module
from skiplock.store.embedded_binaries import find_binaries
from skiplock.store.migrate import migrate, restore, upgrade_script, verify
from skiplock.store.replace import verb_names
from skiplock.store.schema import SqlFile, functions, migrations
from tests.support import connect
from tests.support.catalog import contents, run
from tests.support.databases import in_database
from tests.support.server import binaries_under_test

NOW = "skiplock.promote(integer, boolean, double precision)"
# As `promote` may have been in an earlier release, all by CREATE FUNCTION skiplock.promote…
OLDER = {
    "fewer answers": "(batch integer DEFAULT 1000, arm boolean DEFAULT false, since float8 DEFAULT NULL) RETURNS TABLE (moved integer)",
    "other types": "(batch integer DEFAULT 1000, arm boolean DEFAULT false, since float8 DEFAULT NULL) RETURNS TABLE (moved bigint, due_in float8, upto float8)",
    "no table": "(batch integer DEFAULT 1000, arm boolean DEFAULT false, since float8 DEFAULT NULL) RETURNS integer",
    "other parameter names": "(most integer, arm boolean, upto float8) RETURNS TABLE (moved integer, due_in float8)",
    "a default more": "(batch integer DEFAULT 1, arm boolean DEFAULT false, since float8 DEFAULT 1) RETURNS TABLE (moved integer)",
    "fewer parameters": "(batch integer DEFAULT 1000) RETURNS TABLE (moved integer, due_in float8)",
    "more parameters": "(batch integer DEFAULT 1, arm boolean DEFAULT false, since float8 DEFAULT 1, x text DEFAULT '') RETURNS TABLE (moved integer)",
}
each_older = pytest.mark.parametrize("older", OLDER.values(), ids=OLDER)


def install(dsn: str, older: str) -> None:
    """In one transaction, as a migration does."""
    columns = older.partition("RETURNS TABLE")[2].count(",")
    with psycopg.connect(dsn) as connection:
        connection.execute("DROP FUNCTION skiplock.promote")
        create = f"CREATE FUNCTION skiplock.promote{older} LANGUAGE sql AS 'SELECT 7{', 7' * columns}'"
        connection.execute(create.encode())
        connection.execute("REVOKE ALL ON FUNCTION skiplock.promote FROM PUBLIC")


@each_older
def test_it_is_as_after_a_fresh_install(fresh_dsn: str, older: str) -> None:
    """To see it fail: in store/replace.py, take out the handler, or the loop that drops what is outgrown."""
    before = contents(fresh_dsn)
    install(fresh_dsn, older)
    assert restore(fresh_dsn) == ["functions"]
    assert run(fresh_dsn, "SELECT moved, upto FROM skiplock.promote(1)") == [(0, 0.0)]
    assert contents(fresh_dsn) == before
    assert verify(fresh_dsn) == []


@each_older
def test_who_could_call_the_older_one_can_call_the_new_one(fresh_dsn: str, older: str) -> None:
    """To see it fail: take the loop of GRANTs out of store/replace.py."""
    install(fresh_dsn, older)
    run(fresh_dsn, "GRANT EXECUTE ON FUNCTION skiplock.promote TO pg_monitor")
    run(fresh_dsn, "GRANT EXECUTE ON FUNCTION skiplock.promote TO pg_read_all_stats WITH GRANT OPTION")
    restore(fresh_dsn)
    allowed = "SELECT pg_get_userbyid(grantee), is_grantable FROM pg_proc, aclexplode(proacl) WHERE oid = %s::regprocedure AND grantee <> proowner"
    assert sorted(run(fresh_dsn, allowed, NOW)) == [("pg_monitor", False), ("pg_read_all_stats", True)]
    assert run(fresh_dsn, "SELECT has_function_privilege('pg_signal_backend', %s, 'EXECUTE')", NOW) == [(False,)]


def test_who_was_given_everything_by_default_has_the_new_ones_too(fresh_dsn: str) -> None:
    """And a right that was given to all stays, while a function that is new is nobody's."""
    run(fresh_dsn, "GRANT EXECUTE ON FUNCTION skiplock.pause TO PUBLIC")
    run(fresh_dsn, "ALTER DEFAULT PRIVILEGES IN SCHEMA skiplock GRANT EXECUTE ON FUNCTIONS TO pg_monitor")
    run(fresh_dsn, "DROP FUNCTION skiplock.resume")
    restore(fresh_dsn)
    may = "SELECT has_function_privilege(%s, %s, 'EXECUTE')"
    assert run(fresh_dsn, may, "pg_signal_backend", "skiplock.pause(text)") == [(True,)]
    assert run(fresh_dsn, may, "pg_signal_backend", "skiplock.resume(text)") == [(False,)]
    assert run(fresh_dsn, may, "pg_monitor", "skiplock.resume(text)") == [(True,)]


@pytest.mark.parametrize("schema", ["skiplock", "Two words"])
def test_the_same_by_psql(empty_dsn: str, schema: str) -> None:
    """What `db plan --sql` prints does what `migrate` does, and says that it has been done."""
    migrate(empty_dsn, schema)
    before = contents(empty_dsn, schema)
    run(empty_dsn, f'DROP FUNCTION "{schema}".promote')
    run(empty_dsn, f'CREATE FUNCTION "{schema}".promote(batch integer) RETURNS integer LANGUAGE sql AS $$SELECT 7$$')
    run(empty_dsn, f"UPDATE \"{schema}\".migrations SET checksum = 'older' WHERE name = 'functions'")
    run(empty_dsn, upgrade_script(empty_dsn, schema))
    assert contents(empty_dsn, schema) == before
    assert verify(empty_dsn, schema) == []
    assert migrate(empty_dsn, schema) == []
    assert "nothing to do" in upgrade_script(empty_dsn, schema)


def test_all_text_of_the_files_is_functions() -> None:
    """Anything else in them would be left out of an upgrade."""
    for file in functions():
        outside = file.text.split("CREATE OR REPLACE FUNCTION ")
        assert all(line.startswith("--") or not line.strip() for line in outside[0].splitlines()), file.name
        for text in outside[1:]:
            rest = text.split("$$")
            assert len(rest) == 3, file.name
            after = rest[2].partition(";")[2]
            assert all(line.startswith("--") or not line.strip() for line in after.splitlines()), file.name
    assert len(verb_names()) > 30


# --- who uses them ----------------------------------------------------------------------------------------------------


def test_calls_in_progress_find_the_one_or_the_other(fresh_dsn: str) -> None:
    """Prepared and unprepared, while the function goes back and forth between two signatures.

    Fails seldom where older ones are dropped at once (see store/replace.py); always if they are dropped without successor.
    """
    errors: list[str] = []
    done = threading.Event()

    def calls(sql: str, prepare: bool) -> None:
        with connect(fresh_dsn) as connection:
            while not done.is_set():
                try:
                    connection.execute(sql, prepare=prepare)
                except psycopg.Error as error:
                    errors.append(f"{error.sqlstate} {error}")

    statements = ["SELECT moved FROM skiplock.promote(10, false)", "SELECT skiplock.enqueue('t', delay => '1 hour')"]
    threads = [threading.Thread(target=calls, args=(sql, prepare)) for sql in statements for prepare in (True, False)]
    for thread in threads:
        thread.start()
    for older in [*OLDER.values()][:2] * 3:
        install(fresh_dsn, older)
        restore(fresh_dsn)
    done.set()
    for thread in threads:
        thread.join()
    assert [error for error in errors if "cached plan must not change result type" not in error] == []


def test_what_was_set_aside_by_one_that_was_killed_is_dropped_by_the_next(fresh_dsn: str) -> None:
    """Between its commit and its last act."""
    before = contents(fresh_dsn)
    run(
        fresh_dsn,
        """CREATE FUNCTION skiplock."promote 16411"(batch integer) RETURNS integer LANGUAGE sql AS 'SELECT 7'""",
    )
    assert verify(fresh_dsn) == []
    assert migrate(fresh_dsn) == []
    assert contents(fresh_dsn) == before


def test_views_on_what_stays_are_left_alone(fresh_dsn: str) -> None:
    run(fresh_dsn, "CREATE VIEW late AS SELECT id, task, args FROM skiplock.jobs WHERE state = 'retryable'")
    run(fresh_dsn, "CREATE VIEW found AS SELECT f.id FROM skiplock.find('{1}') f")
    [(job,)] = run(fresh_dsn, "SELECT skiplock.enqueue('t')")
    assert restore(fresh_dsn) == ["functions"]
    assert run(fresh_dsn, "SELECT * FROM late") == []
    assert run(fresh_dsn, "SELECT * FROM found") == [(job,)]


@each_older
def test_a_view_on_a_function_that_changes_is_named(fresh_dsn: str, older: str) -> None:
    """To see it fail: take the look at pg_depend out of store/replace.py: the message then names a function nobody knows."""
    install(fresh_dsn, older)
    call = "1" if "DEFAULT" in older else "1, false, 0"
    run(fresh_dsn, f"CREATE VIEW how_many AS SELECT * FROM skiplock.promote({call})")
    before = contents(fresh_dsn)
    with pytest.raises(MigrationBlockedError) as caught:
        restore(fresh_dsn)
    assert "function skiplock.promote changes, and is used by view public.how_many" in str(caught.value)
    assert contents(fresh_dsn) == before
    run(fresh_dsn, "DROP VIEW how_many")
    assert restore(fresh_dsn) == ["functions"]


def test_a_view_on_a_column_that_changes_is_named(fresh_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    coming = SqlFile("9000_coming", "ALTER TABLE skiplock.jobs ALTER COLUMN losses TYPE integer;")
    monkeypatch.setattr(module, "migrations", lambda: (*migrations(), coming))
    run(fresh_dsn, "CREATE VIEW lost AS SELECT id, losses FROM skiplock.jobs")
    with pytest.raises(MigrationBlockedError, match=r'view public\.lost depends on column "losses"'):
        migrate(fresh_dsn)
    run(fresh_dsn, "DROP VIEW lost")
    assert migrate(fresh_dsn) == ["9000_coming", "functions"]


# --- verify -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["skiplock", "public, skiplock, pg_catalog", "pg_temp"])
def test_verify_under_another_search_path(fresh_dsn: str, path: str) -> None:
    database = urlsplit(fresh_dsn).path[1:]
    run(fresh_dsn, f"ALTER DATABASE {database} SET search_path = {path}")
    assert verify(fresh_dsn) == []
    assert restore(fresh_dsn) == ["functions"]
    run(fresh_dsn, f"ALTER DATABASE {database} RESET search_path")
    assert verify(fresh_dsn) == []


def test_verify_does_not_mind_functions_of_others(fresh_dsn: str) -> None:
    run(fresh_dsn, "CREATE FUNCTION skiplock.mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'")
    assert verify(fresh_dsn) == []
    run(fresh_dsn, "CREATE FUNCTION skiplock.pause(queue text, why text) RETURNS integer LANGUAGE sql AS 'SELECT 1'")
    assert "changed by hand" in verify(fresh_dsn)[0], "one that calls of ours may find"


def test_verify_after_a_dump_and_a_restore_elsewhere(fresh_dsn: str, server: str) -> None:
    """As after a major upgrade of PostgreSQL: other oids, another collation, another owner's search_path.

    To see it fail: make _INSTALLED of pg_get_functiondef, ordered by regprocedure::text.
    """
    [(job,)] = run(fresh_dsn, "SELECT skiplock.enqueue('t')")
    folder = find_binaries(binaries_under_test())
    other = f"{urlsplit(fresh_dsn).path[1:]}_copy"
    run(server, f"CREATE DATABASE {other} TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    try:
        dump = subprocess.run([folder / "pg_dump", "-d", fresh_dsn], capture_output=True, check=True).stdout
        into = [folder / "psql", "-q", "-X", "-v", "ON_ERROR_STOP=1", "-d", in_database(server, other)]
        subprocess.run(into, input=dump, check=True, stdout=subprocess.DEVNULL)
        assert verify(in_database(server, other)) == []
        assert run(in_database(server, other), "SELECT id FROM skiplock.jobs") == [(job,)]
    finally:
        run(server, f"DROP DATABASE {other} WITH (FORCE)")
