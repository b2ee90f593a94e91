"""Migrations: planned, applied in one transaction under a lock, printable, verified.

Table changes are numbered files that are never edited once released; the verbs (functions) are replaced as a whole
whenever they differ. Both are recorded in `skiplock.migrations`, readable without this library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from psycopg import Connection

from skiplock.core.errors import SchemaError
from skiplock.store.pool import connect
from skiplock.store.schema import (
    DEFAULT_SCHEMA,
    check_schema,
    functions,
    functions_checksum,
    migrations,
    quoted,
    render,
)

FUNCTIONS = "functions"
_RECORD = """CREATE TABLE IF NOT EXISTS skiplock.migrations (
    name       text        PRIMARY KEY,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
)"""
# What is there now, as one checksum: finds functions that were changed by hand.
_INSTALLED = """SELECT md5(string_agg(pg_get_functiondef(p.oid), '' ORDER BY p.proname, p.oid::regprocedure::text))
FROM pg_proc p WHERE p.pronamespace = to_regnamespace($1) AND p.prokind = 'f'"""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing a migration would do."""

    name: str
    sql: str


@dataclass(frozen=True, slots=True)
class Status:
    """What is installed. `pending` are names of steps to do; `unknown` were applied by a newer skiplock."""

    schema: str
    applied: tuple[str, ...]
    pending: tuple[str, ...]
    unknown: tuple[str, ...]


def plan(dsn: str, schema: str = DEFAULT_SCHEMA) -> list[Step]:
    """What `migrate` would do now, in order. Changes nothing."""
    with _session(dsn) as connection:
        return _steps(_applied(connection, schema), schema)


def migrate(dsn: str, schema: str = DEFAULT_SCHEMA) -> list[str]:
    """Bring the schema up to date; returns the names of the steps done (none: it was).

    One transaction under an advisory lock: of several migrators at once, one works and the others find nothing to do;
    a failure leaves everything as it was. Raises SchemaError if a newer skiplock has been here.
    """
    check_schema(schema)
    with _session(dsn) as connection, connection.transaction():
        connection.execute("SET LOCAL statement_timeout = 0")
        connection.execute("SET LOCAL lock_timeout = '30s'")
        connection.execute("SET LOCAL client_min_messages = warning")
        connection.execute("SELECT pg_advisory_xact_lock(hashtext($1))", [f"skiplock migrate {schema}"])
        if connection.execute("SELECT to_regnamespace($1) IS NULL", [quoted(schema)]).fetchone() == (True,):
            connection.execute(f"CREATE SCHEMA {quoted(schema)}".encode())
        connection.execute(render(_RECORD, schema).encode())
        steps = _steps(_applied(connection, schema), schema)
        for step in steps:
            connection.execute(step.sql.encode())
            _record(connection, schema, step.name)
        if steps:
            connection.execute(render("SELECT skiplock.make_days()", schema).encode())
        return [step.name for step in steps]


def status(dsn: str, schema: str = DEFAULT_SCHEMA) -> Status:
    """What is installed and what is not."""
    with _session(dsn) as connection:
        applied = _applied(connection, schema)
    known = {m.name for m in migrations()} | {FUNCTIONS, "installed"}
    pending = tuple(m.name for m in migrations() if m.name not in applied)
    if applied.get(FUNCTIONS) != functions_checksum():
        pending += (FUNCTIONS,)
    names = tuple(sorted(n for n in applied if n != "installed"))
    return Status(schema, names, pending, tuple(sorted(n for n in applied if n not in known)))


def verify(dsn: str, schema: str = DEFAULT_SCHEMA) -> list[str]:
    """What is wrong with the installed schema, in words; empty: nothing."""
    with _session(dsn) as connection:
        applied = _applied(connection, schema)
        if not applied:
            return [f"schema {schema}: not installed; run `skiplock db migrate`"]
        problems = [f"migration {m.name}: not applied" for m in migrations() if m.name not in applied]
        problems += [
            f"migration {m.name}: was applied with another text (checksum {applied[m.name]}, expected {m.checksum})"
            for m in migrations()
            if m.name in applied and applied[m.name] != m.checksum
        ]
        if applied.get(FUNCTIONS) != functions_checksum():
            problems.append("functions: another version is installed; run `skiplock db migrate`")
        elif _installed(connection, schema) != applied.get("installed"):
            problems.append(
                "functions: changed by hand since they were installed; `skiplock db migrate --force` restores them"
            )
    return problems


def restore(dsn: str, schema: str = DEFAULT_SCHEMA) -> list[str]:
    """Put the functions back as they should be, even if they are recorded as current."""
    with _session(dsn) as connection, connection.transaction():
        _steps(_applied(connection, schema), schema)  # raises if a newer skiplock has been here
        connection.execute(render("DELETE FROM skiplock.migrations WHERE name = 'functions'", schema).encode())
    return migrate(dsn, schema)


def script(schema: str = DEFAULT_SCHEMA) -> str:
    """All of it as one SQL script for psql, for those who apply migrations by other means. Needs no database."""
    check_schema(schema)
    parts = ["BEGIN;", f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)};", render(_RECORD, schema) + ";"]
    insert = render("INSERT INTO skiplock.migrations (name, checksum) ", schema)
    for step in _steps({}, schema):
        parts += [f"-- {step.name}", step.sql]
        parts.append(insert + f"VALUES ('{step.name}', '{_checksum(step.name)}');")
    parts.append(
        insert
        + _INSTALLED.replace("SELECT md5", "SELECT 'installed', md5", 1).replace("$1", f"'{quoted(schema)}'")
        + ";"
    )
    parts += [render("SELECT skiplock.make_days();", schema), "COMMIT;"]
    return "\n\n".join(parts) + "\n"


@contextmanager
def _session(dsn: str) -> Iterator[Connection[Any]]:
    connection = connect(dsn)
    try:
        yield connection
    finally:
        connection.close()


def _applied(connection: Connection[Any], schema: str) -> dict[str, str]:
    if connection.execute("SELECT to_regclass($1) IS NULL", [f"{quoted(schema)}.migrations"]).fetchone() == (True,):
        return {}
    return dict(
        connection.execute(render("SELECT name, checksum FROM skiplock.migrations", schema).encode()).fetchall()
    )


def _steps(applied: dict[str, str], schema: str) -> list[Step]:
    newer = sorted(set(applied) - {m.name for m in migrations()} - {FUNCTIONS, "installed"})
    if newer:
        raise SchemaError(
            f"schema {schema} was migrated by a newer skiplock (it has {', '.join(newer)}); upgrade this one"
        )
    steps = [Step(m.name, render(m.text, schema)) for m in migrations() if m.name not in applied]
    if steps or applied.get(FUNCTIONS) != functions_checksum():
        steps.append(Step(FUNCTIONS, _functions_sql(schema)))
    return steps


# A function whose parameters have grown is another function to PostgreSQL, and a call with the older ones would still find
# the older one. What was not made by this very transaction is such a leftover. (Functions of other names are not ours.)
_DROP_OLDER = """DO $$
DECLARE
    v_older text;
BEGIN
    FOR v_older IN
        SELECT p.oid::regprocedure::text FROM pg_proc p
        WHERE p.pronamespace = to_regnamespace('{schema}') AND p.proname IN ({names})
          AND p.xmin::text::bigint <> pg_current_xact_id()::text::bigint % 4294967296
    LOOP
        EXECUTE 'DROP FUNCTION ' || v_older;
    END LOOP;
END $$;"""
_NAME = re.compile(r"CREATE OR REPLACE FUNCTION skiplock\.(\w+)\s*\(")


def _functions_sql(schema: str) -> str:
    names = sorted({name for f in functions() for name in _NAME.findall(f.text)})
    drop = _DROP_OLDER.format(schema=quoted(schema), names=", ".join(f"'{name}'" for name in names))
    # Nobody but the owner may call them until told so; `enqueue` runs with the owner's rights, so that a role with
    # EXECUTE on it alone can produce jobs.
    revoke = f"REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {quoted(schema)} FROM PUBLIC;"
    return "\n".join([*(f"-- {f.name}\n{render(f.text, schema)}" for f in functions()), drop, revoke])


def _checksum(name: str) -> str:
    return functions_checksum() if name == FUNCTIONS else next(m.checksum for m in migrations() if m.name == name)


def _record(connection: Connection[Any], schema: str, name: str) -> None:
    upsert = render(
        "INSERT INTO skiplock.migrations (name, checksum) VALUES ($1, $2) "
        "ON CONFLICT (name) DO UPDATE SET checksum = excluded.checksum, applied_at = pg_catalog.clock_timestamp()",
        schema,
    ).encode()
    connection.execute(upsert, [name, _checksum(name)])
    if name == FUNCTIONS:
        connection.execute(upsert, ["installed", _installed(connection, schema)])


def _installed(connection: Connection[Any], schema: str) -> str:
    row = connection.execute(_INSTALLED, [quoted(schema)]).fetchone()
    return str(row[0]) if row else ""
