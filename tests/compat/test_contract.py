"""The contract of an upgrade, checked without running anything: what a released version says to its schema is understood.

Kinds: N-1 on schema N (UPG-14, case 24), an upgrade from every version (UPG-18) gives what a fresh install gives (UPG-19).

To see them fail: give `skiplock.leave` a second parameter without a default, rename one of `settle`'s answers, or make
`promote` answer `moved` as a bigint (each in its .sql file).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from psycopg.pq import ExecStatus

from skiplock.store.migrate import migrate, status, upgrade_script, verify
from skiplock.store.replace import verb_names
from tests.compat.releases import NEW, Release
from tests.compat.statements import collect
from tests.support.catalog import contents, run

SIGNATURES = """SELECT p.proname, p.proargnames, p.proargmodes::text[], p.pronargdefaults, p.pronargs, p.prorettype::regtype::text, p.proretset,
    ARRAY(SELECT t::regtype::text FROM unnest(coalesce(p.proallargtypes, p.proargtypes::oid[])) WITH ORDINALITY u (t, n) ORDER BY n)
FROM pg_proc p WHERE p.pronamespace = 'skiplock'::regnamespace AND p.proname NOT LIKE '\\_%' ORDER BY 1, 5"""


@pytest.fixture
def old_dsn(each_release: Release, empty_dsn: str) -> str:
    """A database on the schema of a release."""
    each_release.install(empty_dsn)
    return empty_dsn


# --- statements -------------------------------------------------------------------------------------------------------


class Asker:
    """Has statements parsed and planned, none of them run."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)
        self._connection.execute("SET plan_cache_mode = force_generic_plan")

    def __enter__(self) -> Asker:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def answer(self, statement: str) -> list[tuple[str, int]] | str:
        """The names and types of its columns; or why it cannot be."""
        pgconn = self._connection.pgconn
        prepared = pgconn.prepare(b"s", statement.encode())
        if prepared.status != ExecStatus.COMMAND_OK:
            return prepared.error_message.decode().strip()
        found = pgconn.describe_prepared(b"s")
        nulls = ", ".join(["NULL"] * found.nparams)
        self._connection.execute(f"EXPLAIN EXECUTE s{f'({nulls})' if nulls else ''}".encode())
        self._connection.execute("DEALLOCATE s")
        return [((found.fname(n) or b"").decode(), found.ftype(n)) for n in range(found.nfields)]


def test_what_a_release_says_is_answered_as_before(each_release: Release, old_dsn: str, dsn: str) -> None:
    kept = json.loads(each_release.statements_file.read_text())["statements"]
    assert len(kept) > 20
    with Asker(old_dsn) as before, Asker(dsn) as now:
        changed = {s: (before.answer(s), now.answer(s)) for s in kept if before.answer(s) != now.answer(s)}
    assert changed == {}


def test_the_kept_statements_are_all_that_the_release_sends(each_release: Release) -> None:
    found = json.loads(each_release.run("-m", "tests.compat.statements"))
    assert found == json.loads(each_release.statements_file.read_text())
    assert found["version"] == each_release.version


def test_a_release_that_needs_more_of_the_schema_can_tell_whether_it_is_there(old_dsn: str, dsn: str) -> None:
    """By a migration, be it an empty one: a worker looks for nothing else before it starts (store/required.py).

    To see it fail: add a parameter to a statement of ours and to its function, but no migration.
    """
    with Asker(old_dsn) as before, Asker(dsn) as now:
        statements = collect()
        assert [s for s in statements if isinstance(now.answer(s), str)] == []
        needs_more = [s for s in statements if isinstance(before.answer(s), str)]
    pending = [name for name in status(old_dsn).pending if name != "functions"]
    assert pending or not needs_more, "a statement fails on the schema of the last release: add a migration"


# --- functions --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Signature:
    """What a caller in psql, in a trigger or in another language relies on."""

    name: str
    parameters: list[tuple[str, str]]
    optional: int
    answers: dict[str, str]


def signatures(dsn: str) -> list[Signature]:
    def one(name: str, names: list[str], modes: list[str] | None, optional: int, count: int, *rest: Any) -> Signature:
        returned, is_set, types = rest
        named = list(zip(names or [], types, strict=True))
        answers = dict(named[count:]) if modes else {"": f"{'SETOF ' if is_set else ''}{returned}"}
        return Signature(name, named[:count], optional, answers)

    return [one(*row) for row in run(dsn, SIGNATURES)]


def serves(new: Signature, old: Signature) -> bool:
    """Whether every call of the old one is one of the new one, by position and by name, with the same answer."""
    grown = len(new.parameters) - len(old.parameters)
    return (
        new.parameters[: len(old.parameters)] == old.parameters
        and new.optional >= old.optional + grown
        and old.answers.items() <= new.answers.items()
    )


def test_every_public_function_can_be_called_as_before(old_dsn: str, dsn: str) -> None:
    now = signatures(dsn)
    unserved = [
        old for old in signatures(old_dsn) if not [new for new in now if new.name == old.name and serves(new, old)]
    ]
    assert unserved == []
    assert len({new.name for new in now}) == len(now), "two of one name: a call with defaults may be ambiguous"


def test_signatures_are_compared() -> None:
    old = Signature("f", [("a", "text"), ("b", "integer")], 1, {"x": "text"})
    for worse in (
        Signature("f", [("a", "text")], 0, {"x": "text"}),
        Signature("f", [("b", "text"), ("a", "integer")], 1, {"x": "text"}),
        Signature("f", [("a", "text"), ("b", "bigint")], 1, {"x": "text"}),
        Signature("f", [*old.parameters, ("c", "text")], 1, {"x": "text"}),
        Signature("f", old.parameters, 0, {"x": "text"}),
        Signature("f", old.parameters, 1, {"y": "text"}),
    ):
        assert not serves(worse, old)
    assert serves(Signature("f", [*old.parameters, ("c", "text")], 2, {"y": "text", "x": "text"}), old)


# --- upgrades ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def jobs(old_dsn: str) -> Iterator[list[int]]:
    """Jobs in most stages, made by the release's own functions."""
    run(old_dsn, "SELECT skiplock.register('w', 'h', 1, '{}', '0', 9)")
    made = [run(old_dsn, f"SELECT skiplock.enqueue('t', '{{\"n\": {n}}}')")[0][0] for n in range(3)]
    run(old_dsn, "SELECT skiplock.claim(1, 77, '{default}', '{2}', '{t}')")
    run(old_dsn, "SELECT skiplock.settle(%s, '{77}', '{0.1}', NULL, NULL)", made[:1])
    made += [run(old_dsn, "SELECT skiplock.enqueue('t', delay => '1 hour')")[0][0]]
    run(old_dsn, "SELECT skiplock.cancel(%s)", made[2])
    return made


def test_an_upgrade_gives_what_a_fresh_install_gives(old_dsn: str, dsn: str, jobs: list[int]) -> None:
    before = run(old_dsn, "SELECT id, state, queue, task, attempt, lease FROM skiplock.jobs ORDER BY id")
    assert {row[1] for row in before} == {"completed", "running", "cancelled", "scheduled"}
    assert migrate(old_dsn, force=True)[-1] == "functions"  # there may be nothing new since
    assert verify(old_dsn) == []
    assert migrate(old_dsn) == []
    assert run(old_dsn, "SELECT id, state, queue, task, attempt, lease FROM skiplock.jobs ORDER BY id") == before
    upgraded, fresh = contents(old_dsn), contents(dsn)
    # Helpers of an earlier release that are no longer used are left alone.
    names = set(verb_names())
    upgraded[-1] = [row for row in upgraded[-1] if row[0] in names]
    assert upgraded == fresh


def test_an_upgrade_by_psql_is_the_same(old_dsn: str, dsn: str) -> None:
    run(old_dsn, upgrade_script(old_dsn))
    assert (verify(old_dsn), migrate(old_dsn)) == ([], [])
    assert [row for row in contents(old_dsn)[-1] if row[0] in verb_names()] == contents(dsn)[-1]


def test_the_code_under_test_is_what_it_should_be(previous: Release) -> None:
    """An installed skiplock, or a stray path, would make all of these tests pass for nothing."""
    for code in (previous, NEW):
        assert code.run("-c", "import skiplock; print(skiplock.__file__)").startswith(str(code.path))
