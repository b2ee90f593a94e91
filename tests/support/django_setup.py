"""Django inside a test process: configured once, its default database pointed at whichever one a test has.

    with django_on(dsn) as connection:          # `django.db.connection`; `transaction.atomic()` works as in an application
        ...

Only the thread that entered the block has its connection closed at the end; other threads close their own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

# One list for the whole test run, since `settings.configure` can be called once per process.
INSTALLED_APPS: list[str] = []


def configure() -> None:
    """Configure Django unless it is; cheap when repeated."""
    import django
    from django.conf import settings

    if settings.configured:
        return
    settings.configure(
        INSTALLED_APPS=INSTALLED_APPS,
        DATABASES={"default": {}},
        USE_TZ=True,
        TIME_ZONE="UTC",
        SECRET_KEY="only for tests",
    )
    django.setup()


def database_settings(dsn: str, **changed: Any) -> dict[str, Any]:
    """`dsn` as an entry of DATABASES, with all the defaults Django fills in."""
    from django.db.utils import ConnectionHandler

    given = conninfo_to_dict(dsn)
    entry: dict[str, Any] = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": given.pop("dbname", ""),
        "USER": given.pop("user", ""),
        "PASSWORD": given.pop("password", ""),
        "HOST": given.pop("host", ""),
        "PORT": str(given.pop("port", "")),
        "OPTIONS": given,
    }
    completed: dict[str, Any] = ConnectionHandler().configure_settings({"default": entry | changed})["default"]
    return completed


@contextmanager
def django_on(dsn: str, **changed: Any) -> Iterator[Any]:
    """Make `dsn` Django's default database for the block; `changed` are keys of its DATABASES entry."""
    configure()
    from django.db import DEFAULT_DB_ALIAS, connection, connections

    before = connections.settings[DEFAULT_DB_ALIAS]
    _forget(connections, DEFAULT_DB_ALIAS)
    connections.settings[DEFAULT_DB_ALIAS] = database_settings(dsn, **changed)
    try:
        yield connection
    finally:
        _forget(connections, DEFAULT_DB_ALIAS)
        connections.settings[DEFAULT_DB_ALIAS] = before


def _forget(connections: Any, alias: str) -> None:
    for connection in connections.all(initialized_only=True):
        if connection.alias == alias:
            try:
                connection.close()
            except psycopg.Error:
                pass
            del connections[alias]
