"""The SQL files: found, ordered, and turned to another schema name when one is configured."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from skiplock.core.errors import ConfigurationError

DEFAULT_SCHEMA = "skiplock"
_ROOMS = ("clock", "produce", "work", "upkeep", "desk")
_LITERAL = re.compile(r"\bskiplock\.")


@dataclass(frozen=True, slots=True)
class SqlFile:
    """One file of SQL: `name` as shown to people, `text` with the literal schema `skiplock.`"""

    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]


def check_schema(schema: str) -> str:
    """The name, if it can be used: 1 to 40 bytes (a NOTIFY channel is made of it), no quotes, backslashes, dots or `$`."""
    if (
        not isinstance(schema, str)
        or not 1 <= len(schema.encode("utf-8", "replace")) <= 40
        or re.search(r"[\"'\\$.\0-\x1f]", schema)
    ):
        raise ConfigurationError(
            f"schema={schema!r}: use a name of 1 to 40 bytes without quotes, backslashes, dots or dollar signs"
        )
    return schema


def quoted(schema: str) -> str:
    """The schema as an SQL identifier."""
    return schema if re.fullmatch(r"[a-z_][a-z0-9_]*", schema) and schema == DEFAULT_SCHEMA else f'"{schema}"'


@cache
def render(text: str, schema: str) -> str:
    """`text` for this schema. The files say `skiplock.` literally, so that they run in psql as they stand."""
    if schema == DEFAULT_SCHEMA:
        return text
    return _LITERAL.sub(lambda _: quoted(check_schema(schema)) + ".", text)


def channel(kind: str, schema: str) -> str:
    """The NOTIFY channel `bell` or `cancel` of a schema, as the SQL files spell it."""
    return render(f"skiplock.{kind}", schema)


@cache
def migrations() -> tuple[SqlFile, ...]:
    """The table changes, oldest first. A released one is never edited."""
    folder = files("skiplock.store").joinpath("sql/migrations")
    return tuple(
        SqlFile(f.name.removesuffix(".sql"), f.read_text("utf-8"))
        for f in sorted(folder.iterdir(), key=lambda f: f.name)
        if f.name.endswith(".sql")
    )


@cache
def functions() -> tuple[SqlFile, ...]:
    """The verbs, one file each; replaced as a whole by every migration."""
    root = files("skiplock.store").joinpath("sql")
    return tuple(
        SqlFile(f"{room}/{f.name}", f.read_text("utf-8"))
        for room in _ROOMS
        for f in sorted(root.joinpath(room).iterdir(), key=lambda f: f.name)
        if f.name.endswith(".sql")
    )


def functions_checksum() -> str:
    """One checksum over all verbs."""
    return hashlib.sha256("".join(f.text for f in functions()).encode()).hexdigest()[:16]
