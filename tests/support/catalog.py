"""What a database holds, as far as a migration makes it."""

from __future__ import annotations

from typing import Any

from tests.support.databases import connect


def run(dsn: str, sql: str, *params: Any) -> list[Any]:
    with connect(dsn) as connection:
        cursor = connection.execute(sql, params or None)
        return cursor.fetchall() if cursor.description else []


def contents(dsn: str, schema: str = "skiplock") -> list[Any]:
    """Everything in a schema that a migration makes: relations, columns, indexes, constraints, functions, rights."""
    queries = [
        "SELECT relname, relkind, reloptions FROM pg_class WHERE relnamespace = to_regnamespace(%s) ORDER BY 1",
        "SELECT table_name, column_name, ordinal_position, data_type, is_nullable, column_default FROM information_schema.columns "
        "WHERE table_schema = trim('\"' from %s) ORDER BY 1, 3",
        "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = trim('\"' from %s) ORDER BY 1",
        "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = to_regnamespace(%s) ORDER BY 1, 2",
        "SELECT proname, pg_get_functiondef(oid), proacl::text FROM pg_proc WHERE pronamespace = to_regnamespace(%s) ORDER BY 1, 2",
    ]
    return [run(dsn, query, f'"{schema}"') for query in queries]
