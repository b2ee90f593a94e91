"""Defaults that a role has in one database: what an administrator, another application or a pooler may have set.

change_defaults(dsn, default_transaction_isolation="serializable")      # for every session from now on
"""

from __future__ import annotations

from psycopg import sql

from tests.support.databases import connect


def change_defaults(dsn: str, **settings: str) -> None:
    """Set them for the role of `dsn` in the database of `dsn`; gone with the database."""
    with connect(dsn) as connection:
        role, database = connection.info.user, connection.info.dbname
        for name, value in settings.items():
            # One that holds a list must not be quoted as a whole: SET search_path = 'a, b' names one schema.
            connection.execute(
                sql.SQL("ALTER ROLE {} IN DATABASE {} SET {} = {}").format(
                    sql.Identifier(role),
                    sql.Identifier(database),
                    sql.Identifier(name),
                    sql.SQL(value) if name in ("search_path", "DateStyle") else sql.Literal(value),
                )
            )
