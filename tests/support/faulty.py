"""skiplock's SQL functions, made to fail: each does its work and then raises, so that the server has to undo it.

with FaultyVerbs(dsn, "claim", "settle") as faults:
    faults.fail("40P01", times=1)        # the next call of each of them
    ...
    assert faults.called("claim") >= 1
"""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import psycopg

from tests.support.databases import connect

_MAKE = """
CREATE SCHEMA faults;
CREATE TABLE faults.plan (verb text PRIMARY KEY, code text NOT NULL, times bigint NOT NULL);
CREATE FUNCTION faults.strike(verb text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_plan faults.plan;
BEGIN
    SELECT * INTO v_plan FROM faults.plan p WHERE p.verb = $1;
    -- A sequence counts on, whatever is rolled back.
    IF FOUND AND nextval(format('faults.%I', $1)) <= v_plan.times THEN
        RAISE EXCEPTION 'injected into %', $1 USING ERRCODE = v_plan.code;
    END IF;
END $$;
"""
_FIND = """SELECT pg_get_function_identity_arguments(p.oid), pg_get_function_arguments(p.oid), pg_get_function_result(p.oid),
    p.proretset, p.pronargs
FROM pg_proc p WHERE p.pronamespace = 'skiplock'::regnamespace AND p.proname = %s"""


class FaultyVerbs:
    """Wraps functions of schema skiplock in one database, for good: give it a database of its own."""

    def __init__(self, dsn: str, *verbs: str) -> None:
        self.verbs = verbs
        self._connection: psycopg.Connection[Any] = connect(dsn)
        self._run(_MAKE)
        for verb in verbs:
            self._run(f"CREATE SEQUENCE faults.{verb}")
            self.wrap(verb, f"PERFORM faults.strike('{verb}');")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._connection.close()

    def _run(self, statement: str, *params: object) -> list[Any]:
        cursor = self._connection.execute(statement, params or None)  # type: ignore[call-overload]
        return cursor.fetchall() if cursor.description else []

    def wrap(self, verb: str, afterwards: str, before: str = "") -> None:
        """Have plpgsql statements run before and after a function; `$1` … are its arguments."""
        [[identity, arguments, result, is_set, number]] = self._run(_FIND, verb)
        real = f"{verb}_unharmed"
        self._run(f"ALTER FUNCTION skiplock.{verb}({identity}) RENAME TO {real}")
        call = f"skiplock.{real}({', '.join(f'${n + 1}' for n in range(number))})"
        if is_set:
            body = f"{before} RETURN QUERY SELECT * FROM {call}; {afterwards}"
        elif result == "void":
            body = f"{before} PERFORM {call}; {afterwards}"
        else:
            body = f"{before} DECLARE v_answer {result} := {call}; BEGIN {afterwards} RETURN v_answer; END;"
        self._run(
            f"CREATE FUNCTION skiplock.{verb}({arguments}) RETURNS {result} LANGUAGE plpgsql AS $faulty$\n"
            f"#variable_conflict use_column\nBEGIN {body} END $faulty$"
        )

    def fail(self, code: str, *verbs: str, times: int = 1) -> None:
        """The next so many calls of these (default: all) end with that SQLSTATE."""
        for verb in verbs or self.verbs:
            self._run("SELECT setval(%s, 1, false)", f"faults.{verb}")
            self._run(
                "INSERT INTO faults.plan VALUES (%s, %s, %s) ON CONFLICT (verb) DO UPDATE "
                "SET code = excluded.code, times = excluded.times",
                verb,
                code,
                times,
            )

    def heal(self) -> None:
        """Nothing fails from now on."""
        self._run("DELETE FROM faults.plan")

    def called(self, verb: str) -> int:
        """How often it was called since `fail`, whether that failed or not."""
        [[last, is_called]] = self._run(f"SELECT last_value, is_called FROM faults.{verb}")
        return int(last) if is_called else 0
