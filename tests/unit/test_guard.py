"""What each error of a database means: the table of store/guard.py, and what callers are told.

Kinds: transient errors, lost connections, servers that take no writes (DB-35, DB-53, DB-56), errors wrapped by other libraries.
"""

from __future__ import annotations

import psycopg
import pytest
from psycopg import errors

from skiplock.core.errors import ConfigurationError, DatabaseUnavailableError, LeaseLostError, OptionError, SchemaError
from skiplock.store.guard import Meaning, failed, is_repeated, is_too_much, meaning, translate, unavailable

MEANINGS = {
    Meaning.AGAIN: ("40001", "40P01", "55P03", "57014"),
    Meaning.RECONNECT: (
        "08000", "08001", "08003", "08006", "08P01", "25006", "53000", "53100", "53200", "53300", "57P01", "57P02", "57P03",
        "57P05", "58000", "58030", "XX000", "XX001",
    ),
    Meaning.SCHEMA: ("3F000", "42P01", "42883", "42703"),
    Meaning.CONFIGURATION: ("28000", "28P01", "3D000"),
    Meaning.OURS: ("SK001", "SK002", "SK003", "SK004"),
    Meaning.BUG: ("22P02", "22021", "23505", "42501", "42601", "54000", "0A000"),
}  # fmt: skip
CODES = [(code, kind) for kind, codes in MEANINGS.items() for code in codes]


class Refusal(psycopg.Error):
    """An error with a SQLSTATE of its own, and no result of libpq behind it."""

    def __init__(self, code: str, text: str = "told so") -> None:
        super().__init__(text)
        self.sqlstate = code


class Wrapped(Exception):
    """As SQLAlchemy does."""

    def __init__(self, orig: BaseException) -> None:
        super().__init__("wrapped")
        self.orig = orig


@pytest.mark.parametrize(("code", "kind"), CODES)
def test_a_sqlstate_means(code: str, kind: Meaning) -> None:
    assert meaning(Refusal(code)) is kind
    assert meaning(Wrapped(Refusal(code))) is kind
    chained = RuntimeError("as Django does")
    chained.__cause__ = Refusal(code)
    assert meaning(chained) is kind


def test_without_a_sqlstate() -> None:
    for error in (psycopg.OperationalError("gone"), psycopg.InterfaceError("closed"), OSError("reset"), TimeoutError()):
        assert meaning(error) is Meaning.RECONNECT
    for error in (ValueError("?"), psycopg.DataError("?"), KeyError("?")):
        assert meaning(error) is Meaning.BUG


def test_what_is_made_again_was_undone() -> None:
    assert [code for code, _ in CODES if is_repeated(Refusal(code))] == ["40001", "40P01", "55P03", "25006"]
    assert not is_repeated(psycopg.OperationalError("the connection is gone: nobody knows"))


def test_a_smaller_statement_may_do() -> None:
    assert [code for code, _ in CODES if is_too_much(Refusal(code))] == ["57014", "53200"]


def test_what_callers_are_told() -> None:
    for code in MEANINGS[Meaning.AGAIN]:
        assert "nothing was done: told so" in str(failed(Refusal(code)))
    for error in (Refusal("57P01"), errors.AdminShutdown("told so"), psycopg.OperationalError("told so")):
        assert "may or may not have been done: told so" in str(failed(error))
    for code in (*MEANINGS[Meaning.BUG], *MEANINGS[Meaning.OURS]):
        assert failed(Refusal(code)) is None
    assert isinstance(failed(Refusal("40001")), DatabaseUnavailableError)


def test_answers_of_our_own() -> None:
    assert isinstance(translate(Refusal("SK001", "job 3: bad\nCONTEXT: …")), OptionError)
    assert str(translate(Refusal("SK001", "job 3: bad\nCONTEXT: …"))) == "job 3: bad"
    assert isinstance(translate(Refusal("SK004")), LeaseLostError)
    assert isinstance(translate(Refusal("42P01")), SchemaError)
    assert translate(Refusal("40001")) is None


REFUSALS = {
    'connection failed: FATAL:  password authentication failed for user "app"': ConfigurationError,
    'connection failed: FATAL:  database "shop" does not exist': ConfigurationError,
    'connection failed: FATAL:  role "app" does not exist': ConfigurationError,
    "connection failed: fe_sendauth: no password supplied": ConfigurationError,
    'connection failed: FATAL:  no pg_hba.conf entry for host "10.0.0.7"': ConfigurationError,
    "connection failed: Connection refused": DatabaseUnavailableError,
    "connection failed: FATAL:  the database system is starting up": DatabaseUnavailableError,
    "connection failed: FATAL:  sorry, too many clients already": DatabaseUnavailableError,
    "connection failed: FATAL:  no more connections allowed (max_client_conn)": DatabaseUnavailableError,
    "connection timeout expired": DatabaseUnavailableError,
}


@pytest.mark.parametrize("text", REFUSALS)
def test_why_there_is_no_connection(text: str) -> None:
    """A worker that starts ends where repeating is of no use, and waits where it is."""
    found = unavailable(psycopg.OperationalError(text), "postgresql://app:secret@db/shop")
    assert type(found) is REFUSALS[text]
    assert "secret" not in str(found)
