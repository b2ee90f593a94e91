"""Migrations: planned, applied in one transaction under a lock, printable, verified.

Table changes are numbered files that are never edited once released; the verbs (functions) are replaced as a whole
whenever they differ. Both are recorded in `skiplock.migrations`, readable without this library.

Workers of the previous release go on while it happens, and afterwards (docs/upgrading.md, tests/compat).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from psycopg import Connection, IsolationLevel, errors

from skiplock.core.errors import MigrationBlockedError, SchemaError
from skiplock.store.lockwait import TRY, Patience, blockers, lock_name, server_time
from skiplock.store.pool import connect
from skiplock.store.replace import aside_sql, drop_aside_sql, functions_sql, verb_names
from skiplock.store.schema import (
    DEFAULT_SCHEMA,
    check_schema,
    functions_checksum,
    migrations,
    quoted,
    render,
)

FUNCTIONS, INSTALLED = "functions", "installed"
WAIT = 60.0  # seconds for locks, all tries together
ASIDE_FOR = (
    0.1  # seconds between replacing a function and dropping the older one: from its lookup to its start it is µs
)
_TABLE = """CREATE TABLE IF NOT EXISTS skiplock.migrations (
    name       text        PRIMARY KEY,
    checksum   text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT pg_catalog.clock_timestamp()
)"""
_UPSERT = "ON CONFLICT (name) DO UPDATE SET checksum = excluded.checksum, applied_at = pg_catalog.clock_timestamp()"
# Our functions as they are now, as one checksum: finds those that were changed by hand. Made of what the catalog holds and
# not of pg_get_functiondef, whose text and order change with the server's version, its collations and the search_path.
_INSTALLED = """SELECT md5(string_agg(concat_ws('|', p.proname, a.types, coalesce(p.proargnames::text, '-'),
        coalesce(p.proargmodes::text, '-'), coalesce(pg_get_expr(p.proargdefaults, 0), '-'), r.typname, p.proretset::text,
        l.lanname, p.provolatile, p.prosecdef::text, p.proisstrict::text, coalesce(p.proconfig::text, '-'), p.prosrc),
        E'\\n' ORDER BY p.proname, a.types COLLATE "C"))
FROM pg_proc p JOIN pg_language l ON l.oid = p.prolang JOIN pg_type r ON r.oid = p.prorettype,
    LATERAL (SELECT coalesce(string_agg(t.typname, ',' ORDER BY u.nth), '') AS types
             FROM unnest(coalesce(p.proallargtypes, p.proargtypes::oid[])) WITH ORDINALITY u (type, nth)
             JOIN pg_type t ON t.oid = u.type) a
WHERE p.pronamespace = to_regnamespace($1) AND p.proname = ANY ($2::text[])"""
# Whatever the role, the database or the server say: what would stop a migration half-way, or change what its text means.
# `_transaction` sees to the isolation level, under which one that was late would not see what another has just done.
_SETTINGS = {
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "transaction_timeout": "0",  # from PostgreSQL 17 on
    "client_min_messages": "warning",
    "search_path": "pg_catalog, pg_temp",
}


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


def migrate(
    dsn: str,
    schema: str = DEFAULT_SCHEMA,
    *,
    force: bool = False,
    wait: float = WAIT,
    tell: Callable[[str], None] = lambda text: None,
) -> list[str]:
    """Bring the schema up to date; returns the names of the steps done (none: it was).

    One transaction under an advisory lock: of several migrators at once, one works and the others find nothing to do;
    a failure leaves everything as it was. Locks on tables are waited for in short tries, so that nobody waits long behind
    it; `tell` hears who is in the way. `force`: put the functions back even if they are recorded as current.

    Raises SchemaError if a newer skiplock has been here, and MigrationBlockedError if something was in the way for all of
    `wait` seconds, or depends on what must change.
    """
    check_schema(schema)
    patience = Patience(wait, tell)
    while True:
        with _session(dsn) as connection:
            began = server_time(connection)
            try:
                done = _migrate(connection, schema, force, patience.lock_timeout)
            except (errors.LockNotAvailable, errors.DeadlockDetected):
                done = None
            except (errors.DependentObjectsStillExist, errors.FeatureNotSupported) as error:
                raise _depended_on(error) or error from None
            if done is not None:
                _drop_aside(connection, schema)
                return done
            found = blockers(connection, schema, began)
        patience.rest(found)


def _migrate(connection: Connection[Any], schema: str, force: bool, lock_timeout: float) -> list[str] | None:
    """One try. None: another migrator is at work."""
    with _transaction(connection, lock_timeout):
        if not _is_alone(connection, schema):
            return None
        if connection.execute("SELECT to_regnamespace($1) IS NULL", [quoted(schema)]).fetchone() == (True,):
            connection.execute(f"CREATE SCHEMA {quoted(schema)}".encode())
        connection.execute(render(_TABLE, schema).encode())
        steps = _steps(_applied(connection, schema), schema, force=force)
        for step in steps:
            connection.execute(step.sql.encode())
            _record(connection, schema, step.name)
        if steps:
            connection.execute(render("SELECT skiplock.make_days()", schema).encode())
        return [step.name for step in steps]


def _drop_aside(connection: Connection[Any], schema: str) -> None:
    """Functions that have been replaced, once nobody can be about to call them. If this is cut short, the next one does it."""
    if connection.execute(aside_sql(schema).encode()).fetchall():
        time.sleep(ASIDE_FOR)
        with _transaction(connection, TRY):
            if _is_alone(connection, schema):
                connection.execute(drop_aside_sql(schema).encode())


def _is_alone(connection: Connection[Any], schema: str) -> bool:
    """Whether no other migrator is at work; none will be until the end of this transaction."""
    locked = "SELECT pg_try_advisory_xact_lock(hashtext($1))"
    return connection.execute(locked, [lock_name(schema)]).fetchone() == (True,)


def status(dsn: str, schema: str = DEFAULT_SCHEMA) -> Status:
    """What is installed and what is not."""
    with _session(dsn) as connection:
        applied = _applied(connection, schema)
    known = {m.name for m in migrations()} | {FUNCTIONS, INSTALLED}
    pending = tuple(m.name for m in migrations() if m.name not in applied)
    if applied.get(FUNCTIONS) != functions_checksum():
        pending += (FUNCTIONS,)
    names = tuple(sorted(n for n in applied if n != INSTALLED))
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
        elif _installed(connection, schema) != applied.get(INSTALLED):
            problems.append(
                "functions: changed by hand since they were installed; `skiplock db migrate --force` restores them"
            )
    return problems


def restore(dsn: str, schema: str = DEFAULT_SCHEMA) -> list[str]:
    """Put the functions back as they should be, even if they are recorded as current."""
    return migrate(dsn, schema, force=True)


def script(schema: str = DEFAULT_SCHEMA) -> str:
    """All of it as one SQL script for psql, for those who apply migrations by other means. Needs no database."""
    return _script({}, check_schema(schema))


def upgrade_script(dsn: str, schema: str = DEFAULT_SCHEMA) -> str:
    """What `migrate` would do now, as such a script."""
    with _session(dsn) as connection:
        return _script(_applied(connection, check_schema(schema)), schema)


@contextmanager
def _session(dsn: str) -> Iterator[Connection[Any]]:
    connection = connect(dsn, application_name="skiplock db")
    try:
        yield connection
    finally:
        connection.close()


@contextmanager
def _transaction(connection: Connection[Any], lock_timeout: float) -> Iterator[None]:
    connection.isolation_level = IsolationLevel.READ_COMMITTED
    connection.read_only = False
    settings = {**_SETTINGS, "lock_timeout": f"{lock_timeout * 1000:.0f}ms"}
    if connection.info.server_version < 170000:
        del settings["transaction_timeout"]
    with connection.transaction():
        # All in one statement: none of them must strike before it is set.
        set_them = ", ".join([f"set_config('{name}', '{value}', true)" for name, value in settings.items()])
        connection.execute(f"SELECT {set_them}".encode())
        # If this process is killed, its transaction should not hold its locks until a long statement has ended.
        with suppress(errors.InvalidParameterValue), connection.transaction():  # a server on Windows cannot
            connection.execute("SET LOCAL client_connection_check_interval = '1s'")
        yield


def _depended_on(error: errors.Error) -> MigrationBlockedError | None:
    """Somebody's view, say: named by our own message, or by the server's detail."""
    text, detail = error.diag.message_primary, error.diag.message_detail
    if detail is None and not isinstance(error, errors.DependentObjectsStillExist):
        return None
    more = f" ({detail})" if detail else ""
    return MigrationBlockedError(f"{text}{more}; nothing was changed. Drop that, migrate, and make it anew")


def _applied(connection: Connection[Any], schema: str) -> dict[str, str]:
    if connection.execute("SELECT to_regclass($1) IS NULL", [f"{quoted(schema)}.migrations"]).fetchone() == (True,):
        return {}
    return dict(
        connection.execute(render("SELECT name, checksum FROM skiplock.migrations", schema).encode()).fetchall()
    )


def _steps(applied: dict[str, str], schema: str, *, force: bool = False) -> list[Step]:
    newer = sorted(set(applied) - {m.name for m in migrations()} - {FUNCTIONS, INSTALLED})
    if newer:
        raise SchemaError(
            f"schema {schema} was migrated by a newer skiplock (it has {', '.join(newer)}); upgrade this one"
        )
    steps = [Step(m.name, render(m.text, schema)) for m in migrations() if m.name not in applied]
    if steps or force or applied.get(FUNCTIONS) != functions_checksum():
        steps.append(Step(FUNCTIONS, functions_sql(schema, fresh=not applied)))
    return steps


def _script(applied: dict[str, str], schema: str) -> str:
    steps = _steps(applied, schema)
    if not steps:
        return f"-- schema {schema}: nothing to do\n"
    parts = ["BEGIN;", f"SET LOCAL search_path = {_SETTINGS['search_path']};"]
    if applied:
        # Rather fail than make everybody wait behind it; run it again then.
        parts.append(f"SET LOCAL lock_timeout = '{TRY * 1000:.0f}ms';")
        parts.append(f"SELECT pg_advisory_xact_lock(hashtext('{lock_name(schema)}'));")
    else:
        parts += [f"CREATE SCHEMA IF NOT EXISTS {quoted(schema)};", render(_TABLE, schema) + ";"]
    insert = render("INSERT INTO skiplock.migrations (name, checksum) ", schema)
    for step in steps:
        parts += [f"-- {step.name}", step.sql, f"{insert}VALUES ('{step.name}', '{_checksum(step.name)}') {_UPSERT};"]
    names = ",".join(verb_names())
    installed = _INSTALLED.replace("$1", f"'{quoted(schema)}'").replace("$2", f"'{{{names}}}'")
    parts.append(f"{insert}{installed.replace('SELECT', 'SELECT ' + repr(INSTALLED) + ',', 1)} {_UPSERT};")
    parts += [render("SELECT skiplock.make_days();", schema), "COMMIT;"]
    if applied:
        parts += [f"SELECT pg_sleep({ASIDE_FOR});", drop_aside_sql(schema)]
    return "\n\n".join(parts) + "\n"


def _checksum(name: str) -> str:
    return functions_checksum() if name == FUNCTIONS else next(m.checksum for m in migrations() if m.name == name)


def _record(connection: Connection[Any], schema: str, name: str) -> None:
    upsert = render(f"INSERT INTO skiplock.migrations (name, checksum) VALUES ($1, $2) {_UPSERT}", schema).encode()
    connection.execute(upsert, [name, _checksum(name)])
    if name == FUNCTIONS:
        connection.execute(upsert, [INSTALLED, _installed(connection, schema)])


def _installed(connection: Connection[Any], schema: str) -> str:
    row = connection.execute(_INSTALLED, [quoted(schema), verb_names()]).fetchone()
    return str(row[0]) if row else ""
