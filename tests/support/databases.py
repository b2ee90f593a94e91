"""Databases by the dozen: each a file-level copy of one that was migrated once."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import urlsplit

import psycopg

TEMPLATE = "skiplock_template"


def in_database(dsn: str, database: str) -> str:
    """The same server, another database."""
    return urlsplit(dsn)._replace(path=f"/{database}").geturl()


def connect(dsn: str) -> psycopg.Connection[Any]:
    """A plain connection in autocommit, for arranging and for looking."""
    return psycopg.connect(dsn, autocommit=True)


def make_template(server: str) -> None:
    from skiplock.store.migrate import migrate

    with connect(server) as connection:
        connection.execute(f"CREATE DATABASE {TEMPLATE}")
    migrate(in_database(server, TEMPLATE))
    with connect(server) as connection:
        # A connection to it, autovacuum's included, would make cloning fail.
        connection.execute(f"ALTER DATABASE {TEMPLATE} ALLOW_CONNECTIONS false")


def clone(server: str) -> str:
    """The DSN of a new database with skiplock's schema in it."""
    return _create(server, f"TEMPLATE {TEMPLATE}")


def create_empty(server: str) -> str:
    """The DSN of a new database without skiplock's schema."""
    return _create(server, "TEMPLATE template0")


def _create(server: str, how: str) -> str:
    name = f"t_{uuid.uuid4().hex[:12]}"
    with connect(server) as connection:
        connection.execute(f"CREATE DATABASE {name} {how}")
    return in_database(server, name)


def drop(server: str, dsn: str) -> None:
    """FORCE: a test that leaves a connection open must not fail the next one."""
    with connect(server) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {urlsplit(dsn).path[1:]} WITH (FORCE)")
