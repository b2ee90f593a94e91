"""The real server beside the reference: the same verbs, answering in the reference's words, and a clock that stands still."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from typing import Any

import psycopg

from tests.model.reference import Tables
from tests.model.values import Beat, Job, Kept, NewJob, Outcome, Pair, Worker
from tests.support.databases import connect
from tests.support.verbs import Verbs

NAMES = ["default", "mail"]  # of the queues
PAD = "x" * 9000  # makes arguments large
OWNERSHIP_LOST, KEY_TAKEN = "SK004", "SK005"
# The clock of the session, so that all comparisons of times are exact.
_CLOCK = """CREATE OR REPLACE FUNCTION skiplock.now() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT timestamptz '2030-01-01 00:00:00+00' + pg_catalog.current_setting('protocol.now')::integer * interval '1 s' $$"""
_SECONDS = "extract(epoch FROM {} - timestamptz '2030-01-01 00:00:00+00')::integer"
_READ = f"""SELECT json_build_object(
    'jobs', (SELECT json_agg(json_build_array(j.id, j.queue, j.priority, j.max_attempts, j.state, j.position,
        {_SECONDS.format("j.run_at")}, j.attempt, j.losses, j.lease, j.worker, split_part(j.error, ':', 1), j.args IS NULL, j.flow ->> 'unique'))
        FROM skiplock.jobs j),
    'workers', (SELECT json_agg(json_build_array(w.id, {_SECONDS.format("w.beat_at")},
        extract(epoch FROM w.lost_after)::integer, w.state)) FROM skiplock.workers w),
    'cancellations', (SELECT json_agg(json_build_array(c.job_id, c.worker)) FROM skiplock.cancellations c),
    'attempts', (SELECT json_agg(json_build_array(a.job_id, a.attempt, a.verdict, a.worker)) FROM skiplock.attempts a),
    'steps', (SELECT json_agg(json_build_array(s.job_id, s.name)) FROM skiplock.steps s),
    'paused', (SELECT json_agg(q.name) FROM skiplock.queues q WHERE q.paused_at IS NOT NULL),
    'payloads', (SELECT json_agg(p.job_id) FROM skiplock.payloads p),
    'uniques', (SELECT json_agg(json_build_array(u.key, u.job_id)) FROM skiplock.uniques u),
    'duty', (SELECT json_build_array(d.worker, {_SECONDS.format("d.until")}) FROM skiplock.duties d WHERE d.name <> 'admit'))"""
_CLAIMED = "id, job_lease, queue, priority, position, attempt, max_attempts, losses, (args ->> 'n')::integer AS n"


class TwoOfOne(AssertionError):
    """A job is in two places."""


class Reality:
    """One session of a database of its own. `other` sessions see the same clock."""

    def __init__(self, dsn: str) -> None:
        self.connection = connect(dsn)
        # Servers before 18 would compile every statement that a disabled plan makes look expensive.
        self.connection.execute("SET jit = off")
        self.db = Verbs(self.connection)
        self.db.rows(_CLOCK)
        self.set_clock(0)

    def set_clock(self, now: int) -> None:
        self.db.rows("SELECT set_config('protocol.now', %s, false)", str(now))

    def reset(self) -> None:
        """As after the migration, numbers included, so that an example can be run again."""
        self.db.empty()
        self.db.rows("DELETE FROM skiplock.payloads")
        for sequence in ("job_numbers", "worker_numbers"):
            self.db.rows(f"SELECT setval('skiplock.{sequence}', 1, false)")
        self.set_clock(0)

    @contextmanager
    def undone(self, undo: bool) -> Iterator[None]:
        """What is done within comes to nothing, as when the connection is cut before the commit."""
        if not undo:
            yield
            return
        with self.connection.transaction(force_rollback=True):
            yield

    def read(self) -> Tables:
        found = self.db.value(_READ)
        payloads = found["payloads"] or []
        jobs = [Job(*row) for row in found["jobs"] or []]
        tables = Tables(
            jobs={job.id: job for job in jobs},
            workers={row[0]: Worker(*row[1:]) for row in found["workers"] or []},
            cancellations=dict(found["cancellations"] or []),
            attempts=[Kept(*row) for row in found["attempts"] or []],
            steps={(job, name) for job, name in found["steps"] or []},
            paused=set(found["paused"] or []),
            uniques=dict(found["uniques"] or []),
            leader=found["duty"][0],
            leads_until=found["duty"][1],
        )
        if len(tables.jobs) < len(jobs) or sorted(payloads) != sorted(job.id for job in jobs if job.large):
            raise TwoOfOne(f"jobs {sorted(job.id for job in jobs)}, payloads {sorted(payloads)}")
        return tables

    # -- verbs -------------------------------------------------------------------------------------------------------

    def enqueue(self, new: Sequence[NewJob], first: int) -> list[int]:
        """One by `enqueue`, several by `enqueue_many`. Their arguments are numbered from `first` on."""
        args = [json.dumps({"n": first + nth, "pad": PAD if job.large else ""}) for nth, job in enumerate(new)]
        if any(job.unique for job in new):
            return self._enqueue_with_keys(new, args)
        if len(new) == 1:
            [job], [text] = new, args
            delay = None if job.delay is None else f"{job.delay} s"
            sql = "SELECT skiplock.enqueue('t', %s, %s, %s, %s, max_attempts => %s)"
            return [self.db.value(sql, text, job.queue, job.priority, delay, job.max_attempts)]
        delays = [job.delay for job in new]
        rows = self.db.rows(
            "SELECT skiplock.enqueue_many(%s, %s::json[], %s, %s, %s, max_attempts => %s)",
            ["t" for _ in new],
            args,
            [job.queue for job in new],
            [job.priority for job in new],
            None if all(delay is None for delay in delays) else delays,
            [job.max_attempts for job in new],
        )
        return [row[0] for row in rows]

    def _enqueue_with_keys(self, new: Sequence[NewJob], args: Sequence[str]) -> list[int]:
        rules = [
            json.dumps({"unique": {"key": job.unique, "on_conflict": "replace" if job.replaces else "keep"}})
            if job.unique
            else None
            for job in new
        ]
        rows = self.db.rows(
            "SELECT id FROM skiplock.enqueue_flow(%s, %s::json[], %s, %s::jsonb[], %s, %s::float8[], max_attempts => %s)",
            ["t" for _ in new],
            list(args),
            [job.queue for job in new],
            rules,
            [job.priority for job in new],
            [job.delay for job in new],
            [job.max_attempts for job in new],
        )
        return [row.id for row in rows]

    def claim(
        self, worker: int, lease: int, rooms: Mapping[str, int], lanes: Sequence[tuple[str, int, int]] | None
    ) -> list[Any]:
        cursors = [None] * 3 if lanes is None else [[lane[n] for lane in lanes] for n in range(3)]
        sql = f"SELECT {_CLAIMED} FROM skiplock.claim(%s, %s, %s, %s, '{{t}}', %s, %s::smallint[], %s)"
        return self.db.rows(sql, worker, lease, list(rooms), list(rooms.values()), *cursors)

    def claim_suspects(self, worker: int, lease: int, rooms: Mapping[str, int], alone: bool) -> list[Any]:
        sql = f"SELECT {_CLAIMED} FROM skiplock.claim_suspects(%s, %s, %s, %s, '{{t}}', %s)"
        return self.db.rows(sql, worker, lease, list(rooms), list(rooms.values()), alone)

    def settle(self, outcomes: Sequence[Outcome]) -> set[Pair]:
        """The arrays sorted by id, as settle.sql asks for."""
        done = sorted([found for found in outcomes if found.verdict == "completed"], key=astuple)
        others = sorted([found for found in outcomes if found.verdict != "completed"], key=lambda found: found.pair)
        rows = self.db.rows(
            "SELECT * FROM skiplock.settle(%s::bigint[], %s::bigint[], NULL, NULL, %s)",
            [found.id for found in done],
            [found.lease for found in done],
            json.dumps([_as_sent(found) for found in others]) if others else None,
        )
        return {tuple(row) for row in rows}

    def complete(self, job_id: int, lease: int) -> bool:
        return self._owning("SELECT skiplock.complete(%s, %s)", job_id, lease)

    def record(self, job_id: int, lease: int, name: str) -> bool:
        return self._owning("SELECT skiplock.record(%s, %s, %s, '1')", job_id, lease, name)

    def _owning(self, sql: str, *params: Any) -> bool:
        try:
            self.db.rows(sql, *params)
        except psycopg.Error as error:
            if error.sqlstate != OWNERSHIP_LOST:
                raise
            return False
        return True

    def release_claim(self, worker: int, lease: int) -> Any:
        return self.db.value("SELECT skiplock.release_claim(%s, %s)", worker, lease)

    def reconcile(self, worker: int, held: Collection[Pair]) -> tuple[set[Pair], set[Pair]]:
        sql = "SELECT * FROM skiplock.reconcile(%s, %s, %s)"
        rows = self.db.rows(sql, worker, [pair[0] for pair in held], [pair[1] for pair in held])[1:]
        unheld = {(row.job_id, row.job_lease) for row in rows if row.held}
        return unheld, {(row.job_id, row.job_lease) for row in rows if not row.held}

    def register(self, lost_after: int) -> int:
        return int(self.db.value("SELECT skiplock.register('w', 'host', 1, '{}', '0', %s)", lost_after))

    def beat(self, worker: int, state: str, queues: Sequence[str], duty_for: int, *, sweep: bool, asleep: bool) -> Beat:
        sql = "SELECT * FROM skiplock.beat(%s, 1, %s, %s, %s, asleep => %s, sweep => %s)"
        [row] = self.db.rows(sql, worker, state, list(queues), duty_for, asleep, sweep)
        due_in = None if row.due_in is None else round(row.due_in)
        rescued = [(lost["worker"], lost["jobs"]) for lost in row.rescued or []]
        return Beat(row.known, row.leader, due_in, row.waiting, row.suspects, sorted(row.cancelled), rescued)

    def vouch(self, workers: Collection[int]) -> Any:
        return self.db.value("SELECT skiplock.vouch(%s)", list(workers))

    def rescue(self, sweep: bool) -> list[tuple[int, int]]:
        return [(row.worker, row.jobs) for row in self.db.rows("SELECT * FROM skiplock.rescue(%s)", sweep)]

    def report_lost(self, worker: int, started: Collection[int] | None) -> Any:
        known = None if started is None else list(started)
        return self.db.value("SELECT skiplock.report_lost(%s, %s::bigint[], 'killed by signal 9')", worker, known)

    def leave(self, worker: int) -> Any:
        return self.db.value("SELECT skiplock.leave(%s)", worker)

    def promote(self, batch: int) -> tuple[int, int | None]:
        [row] = self.db.rows("SELECT moved, due_in FROM skiplock.promote(%s, true)", batch)
        return row.moved, None if row.due_in is None else round(row.due_in)

    def act(self, what: str, job_id: int) -> tuple[bool, str | None]:
        try:
            with self.connection.transaction():
                [row] = self.db.rows(f"SELECT * FROM skiplock.{what}(%s)", job_id)
        except psycopg.Error as error:
            if error.sqlstate != KEY_TAKEN:
                raise
            return False, "taken"
        return row.done, row.was

    def set_paused(self, queue: str, paused: bool) -> None:
        self.db.rows(f"SELECT skiplock.{'pause' if paused else 'resume'}(%s)", queue)


def _as_sent(outcome: Outcome) -> dict[str, Any]:
    failure = {"error_class": outcome.error, "message": "why", "traceback": None} if outcome.error else None
    sent = {"id": outcome.id, "lease": outcome.lease, "verdict": outcome.verdict}
    return {**sent, "took": 0.5, "delay": outcome.delay, "failure": failure}
