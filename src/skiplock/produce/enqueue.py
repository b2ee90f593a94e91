"""Enqueue: checked and encoded jobs become one call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from skiplock.core.job import NewJob
from skiplock.store.call import Call, Row
from skiplock.store.literal import number_array, text_array
from skiplock.store.schema import render

_MANY = """SELECT skiplock.enqueue_many(
    ($1::text)::text[], ($2::text)::json[], ($3::text)::text[], ($4::text)::integer[], ($5::text)::float8[],
    ($6::text)::timestamptz[], ($7::text)::integer[], ($8::text)::text[], ($9::text)::json[], ($10::text)::json[])"""
_FLOW = """SELECT id, is_new FROM skiplock.enqueue_flow(
    ($1::text)::text[], ($2::text)::json[], ($3::text)::text[], ($4::text)::jsonb[], ($5::text)::integer[], ($6::text)::float8[],
    ($7::text)::timestamptz[], ($8::text)::integer[], ($9::text)::text[], ($10::text)::json[], ($11::text)::json[], $12::text::boolean)"""


def enqueue_call(jobs: Sequence[NewJob], schema: str) -> Call[list[int]]:
    """One statement that stores all of these jobs or none; answers their ids in the same order."""
    return Call(render(_MANY, schema), _params(jobs), _ids)


def enqueue_flow_call(jobs: Sequence[NewJob], schema: str, *, admits: bool) -> Call[list[tuple[int, bool]]]:
    """The same for jobs of which some have rules; answers for each the id and whether the job is new. `admits`: the
    transaction ends with this statement."""
    task, args, queue, *others = _params(jobs)
    flows = text_array([j.flow for j in jobs])
    return Call(render(_FLOW, schema), (task, args, queue, flows, *others, "true" if admits else "false"), _pairs)


def _params(jobs: Sequence[NewJob]) -> tuple[str | None, ...]:
    return (
        text_array([j.task for j in jobs]),
        text_array([j.args for j in jobs]),
        text_array([j.queue for j in jobs]),
        number_array([j.priority for j in jobs]) if any([j.priority for j in jobs]) else None,
        number_array([j.delay for j in jobs]) if any([j.delay is not None for j in jobs]) else None,
        _times(jobs),
        number_array([j.max_attempts for j in jobs]),
        _optional([text_array(j.tags) if j.tags else None for j in jobs]),
        _optional([j.meta for j in jobs]),
        _optional([j.options for j in jobs]),
    )


def _times(jobs: Sequence[NewJob]) -> str | None:
    return _optional([j.run_at.isoformat() if j.run_at else None for j in jobs])


def _optional(values: list[str | None]) -> str | None:
    return text_array(values) if any(values) else None


def _pairs(rows: Sequence[Row]) -> list[tuple[int, bool]]:
    return [(row[0], row[1]) for row in rows]


def _ids(rows: Sequence[Row]) -> list[int]:
    found: list[Any] = [row[0] for row in rows]
    return found
