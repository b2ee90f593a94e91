"""Find and show: jobs, queues, workers. Bounded reads for people and programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from skiplock.core.codec import check_text
from skiplock.core.depth import decode_json
from skiplock.core.errors import JobNotFoundError, OptionError
from skiplock.core.inspect_value import shown
from skiplock.core.job import AttemptRecord, JobRecord, JobState
from skiplock.store.call import Call, Row
from skiplock.store.literal import text_array
from skiplock.store.schema import render

_COLUMNS = """j.id, j.state, j.task, j.queue, j.priority, j.args::text, j.attempt, j.max_attempts, j.losses, j.enqueued_at,
    j.run_at, j.started_at, j.finished_at, j.worker, j.error, j.result::text, array_to_json(j.tags)::text, j.meta::text, j.options::text, j.flow::text,
    j.blocked_on, j.expires_at"""
_GET = f"""SELECT {_COLUMNS}, (
    SELECT json_agg(json_build_object('attempt', a.attempt, 'verdict', a.verdict, 'error_class', a.error_class, 'message', a.message,
        'traceback', a.traceback, 'worker', a.worker_name, 'started_at', a.started_at, 'ended_at', a.ended_at) ORDER BY a.ended_at)
    FROM skiplock.attempts a WHERE a.job_id = j.id)::text
FROM skiplock.find(ARRAY[$1::text::bigint]) j"""
# Newest first, by id: one merge over the partitions' id indexes where there is one, and a bounded sort elsewhere.
# Large arguments are looked up for the jobs of the page only.
_LISTED = _COLUMNS.replace("j.args", "coalesce(j.args, (SELECT p.args FROM skiplock.payloads p WHERE p.job_id = j.id))")
_LIST = f"""SELECT {_LISTED}, NULL
FROM (SELECT * FROM skiplock.jobs j
WHERE ($1::text IS NULL OR j.state = ANY (($1::text)::text[]))
  AND ($2::text IS NULL OR j.queue = $2::text) AND ($3::text IS NULL OR j.task = $3::text)
  AND ($4::text IS NULL OR j.id < $4::text::bigint) AND ($5::text IS NULL OR $5::text = ANY (j.tags))
ORDER BY j.id DESC LIMIT $6::text::integer) j ORDER BY j.id DESC"""
# Queues with waiting, ready, running or dead jobs, plus the paused ones. The finished are counted for today only.
_QUEUES = """SELECT q.queue, sum(q.waiting)::bigint, sum(q.ready)::bigint, sum(q.running)::bigint, sum(q.dead)::bigint,
    bool_or(q.paused), extract(epoch FROM skiplock.now() - min(q.oldest))::float8, max(q.slots), max(q.resume_at), max(q.max_depth), max(q.every)
FROM (
    SELECT queue, count(*) AS waiting, 0 AS ready, 0 AS running, 0 AS dead, false AS paused, NULL::timestamptz AS oldest, NULL::integer AS slots,
        NULL::timestamptz AS resume_at, NULL::integer AS max_depth, NULL::float8 AS every
    FROM skiplock.jobs_waiting GROUP BY queue
    UNION ALL SELECT queue, 0, count(*), 0, 0, false, min(coalesce(run_at, enqueued_at)), NULL, NULL, NULL, NULL FROM skiplock.jobs_ready GROUP BY queue
    UNION ALL SELECT queue, 0, 0, count(*), 0, false, NULL, NULL, NULL, NULL, NULL FROM skiplock.jobs_running GROUP BY queue
    UNION ALL SELECT queue, 0, 0, 0, count(*), false, NULL, NULL, NULL, NULL, NULL FROM skiplock.jobs_dead GROUP BY queue
    UNION ALL SELECT name, 0, 0, 0, 0, p.paused, NULL, slots, CASE WHEN p.paused THEN resume_at END, max_depth, NULL
    FROM skiplock.queues, LATERAL (SELECT paused_at IS NOT NULL AND (resume_at IS NULL OR resume_at > skiplock.now()) AS paused) p
    WHERE p.paused OR slots IS NOT NULL OR max_depth IS NOT NULL
    UNION ALL SELECT queue, 0, 0, 0, 0, false, NULL, NULL, NULL, NULL, every FROM skiplock.ageing
) q GROUP BY q.queue ORDER BY q.queue"""
_WORKERS = """SELECT w.id, w.name, w.host, w.pid, w.queues::text, w.version, w.started_at,
    extract(epoch FROM skiplock.now() - w.beat_at)::float8, w.state, w.running, skiplock.now() - w.beat_at > w.lost_after
FROM skiplock.workers w ORDER BY w.id LIMIT 1000"""


@dataclass(frozen=True, slots=True)
class QueueRecord:
    """One queue: jobs by stage, whether it is paused, the age in seconds of its longest ready job, and
    how many may run at a time over all workers (None: as many as they have slots for).

    `resume_at`: when a pause ends by itself; `max_depth`: enqueues beyond so many ready and waiting jobs are refused;
    `age_every`: seconds for which a ready job waits until it rises by one in priority. None: no such rule.
    """

    name: str
    waiting: int
    ready: int
    running: int
    dead: int
    paused: bool
    oldest_ready: float | None
    slots: int | None = None
    resume_at: datetime | None = None
    max_depth: int | None = None
    age_every: float | None = None


@dataclass(frozen=True, slots=True)
class WorkerRecord:
    """One worker process. `silent_for` are the seconds since its latest beat; `lost` means too long."""

    id: int
    name: str
    host: str
    pid: int
    queues: dict[str, int]
    version: str
    started_at: datetime
    silent_for: float
    state: str
    running: int
    lost: bool


def get_call(job_id: int, schema: str) -> Call[JobRecord]:
    """One job with its failed attempts. Raises JobNotFoundError."""

    def read(rows: Sequence[Row]) -> JobRecord:
        if not rows:
            raise JobNotFoundError(f"job {job_id}: there is no job with that id")
        return _record(rows[0])

    return Call(render(_GET, schema), (str(check_id(job_id)),), read)


def list_call(
    schema: str,
    *,
    states: Sequence[str] = (),
    queue: str | None = None,
    task: str | None = None,
    tag: str | None = None,
    before: int | None = None,
    limit: int = 50,
) -> Call[list[JobRecord]]:
    """Jobs, newest first; `before` is the id to go on from (keyset pagination). At most 1,000 a call."""
    for state in states:
        if state not in list(JobState):
            raise OptionError(f"state {state!r}: use one of {', '.join(JobState)}")
    if not 1 <= limit <= 1000:
        raise OptionError(f"limit {limit!r}: must be from 1 to 1000")
    params = (
        text_array(states) if states else None,
        None if queue is None else check_text(queue, "queue"),
        None if task is None else check_text(task, "task"),
        None if before is None else str(check_id(before)),
        None if tag is None else check_text(tag, "tag"),
        str(limit),
    )
    return Call(render(_LIST, schema), params, lambda rows: [_record(row) for row in rows])


def queues_call(schema: str) -> Call[list[QueueRecord]]:
    """All queues that hold live or dead jobs, are paused or have rules."""
    return Call(render(_QUEUES, schema), (), lambda rows: [QueueRecord(*row) for row in rows])


def workers_call(schema: str) -> Call[list[WorkerRecord]]:
    """All registered worker processes."""

    def read(rows: Sequence[Row]) -> list[WorkerRecord]:
        return [WorkerRecord(*[*row[:4], msgspec.json.decode(row[4]), *row[5:]]) for row in rows]

    return Call(render(_WORKERS, schema), (), read)


def check_id(job_id: int) -> int:
    """The id, if it can be one. Raises OptionError."""
    if not isinstance(job_id, int) or isinstance(job_id, bool) or not 0 <= job_id < 2**63:
        raise OptionError(f"job id {shown(job_id)}: an id is a whole number from 1 to {2**63 - 1}")
    return job_id


def _record(row: Row) -> JobRecord:
    (job_id, state, *middle, result, tags, meta, options, flow, blocked_on, expires_at, attempts) = row
    args = middle[3]
    kept = msgspec.json.decode(attempts, type=list[AttemptRecord]) if attempts else []
    fields: list[Any] = [job_id, JobState(state), *middle[:3], _json(args), *middle[4:], _json(result)]
    fields += [tuple(_json(tags) or ()), _json(meta), _json(options), _json(flow), blocked_on, expires_at, tuple(kept)]
    return JobRecord(*fields)


def _json(text: str | None) -> Any:
    """The value, or the text itself where only PostgreSQL can read it (nested too deep, lone surrogates, numbers without end:
    enqueued through SQL): one such row must not break a list."""
    if text is None:
        return None
    try:
        return decode_json(text)
    except ValueError:
        return text
