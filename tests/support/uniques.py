"""Unique keys as tests enqueue and check them, on the verbs of `tests.support.verbs`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tests.support.verbs import Verbs


def add(db: Verbs, *keys: str | None, on_conflict: str = "keep", args: Sequence[str] | None = None, **options: Any) -> list[tuple[int, bool]]:  # fmt: skip
    """Enqueue one job a key; `options` are further ones of `unique`, or arrays for enqueue_flow if they are lists."""
    arrays = {name: value for name, value in options.items() if isinstance(value, list)}
    rules = {name: value for name, value in options.items() if not isinstance(value, list)}
    others = rules.pop("others", {})
    flows = [
        None if key is None else json.dumps({"unique": {"key": key, "on_conflict": on_conflict} | rules} | others)
        for key in keys
    ]
    size = len(keys)
    more = "".join(f", {name} => %s" for name in arrays)
    sql = f"SELECT id, is_new FROM skiplock.enqueue_flow(%s, %s::json[], %s, %s::jsonb[]{more})"
    found = db.rows(sql, ["t"] * size, args or ["{}"] * size, ["default"] * size, flows, *arrays.values())
    return [(row.id, row.is_new) for row in found]


def holders(db: Verbs) -> dict[str, int]:
    return {row.key: row.job_id for row in db.rows("SELECT key, job_id FROM skiplock.uniques WHERE free_at IS NULL")}


def live(db: Verbs) -> dict[str, list[int]]:
    """The jobs of each key that have not ended."""
    found: dict[str, list[int]] = {}
    for row in db.rows("SELECT flow ->> 'unique' AS key, id FROM skiplock.jobs WHERE flow ? 'unique' AND state NOT IN ('completed', 'cancelled', 'dead')"):  # fmt: skip
        found.setdefault(row.key, []).append(row.id)
    return found


def check(db: Verbs) -> None:
    """Exactly one live job a held key, and no held key without one."""
    assert live(db) == {key: [job] for key, job in holders(db).items()}


def run(db: Verbs, number: int = 100) -> list[Any]:
    return db.claim(db.register(), number)
