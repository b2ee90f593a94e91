"""A full database for plan budgets: half a million rows a stage, and what the planner may have been told of them."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import psycopg

from tests.support import connect, in_database
from tests.support.databases import TEMPLATE

FILLED, FILLING = "skiplock_filled", "skiplock_filling"
QUEUES = [f"q{n:02}" for n in range(20)]
PRIORITIES = [5, 0, -5]
WORKERS = 20
STAGES = ("jobs_ready", "jobs_waiting", "jobs_running", "jobs_finished", "jobs_dead")
FULL = (500_000, 500_000, 100_000, 500_000, 20_000)
EMPTIED = (6_000, 6_000, 6_000, 6_000, 1_000)
# Ids by stage; every lease is its job's id.
FIRST = dict(zip(STAGES, (0, 1_000_000, 2_000_000, 3_000_000, 4_000_000), strict=True))
AFTER_ALL = 5_000_000
DUE = 5_000
FEW = 25  # in the queue `few`
LARGE = 200  # in the queue `large`: their arguments are beside the job, among half a million others
FIRST_LARGE = AFTER_ALL - 10_000
LONGEST = 5  # seconds: a plan may also be quadratic without touching a page twice

# Two fifths of the jobs are in `main`, the others in 60 lanes that lie mixed in the heap.
_COMMON = "id, enqueued_at, max_attempts, task, args, queue, priority"
_VALUES = f"""{{first}} + n, now(), 10, 't', '{{{{"to": "ann@example.org"}}}}',
    CASE WHEN n % 5 < 2 THEN 'main' ELSE 'q' || to_char(n / 5 % {len(QUEUES)}, 'FM00') END,
    CASE WHEN n % 5 < 2 THEN 0 ELSE 5 - n / {5 * len(QUEUES)} % {len(PRIORITIES)} * 5 END"""
_OWN = {
    "jobs_ready": ("state, position", "'ready', n"),
    "jobs_waiting": (
        "lease, state, run_at",
        f"""{{first}} + n, CASE WHEN n % 10 = 0 THEN 'retryable' ELSE 'scheduled' END,
        now() + CASE WHEN n <= {DUE} THEN -n ELSE 3600 + n * 977 % {FULL[1]} END * interval '1 s'""",
    ),
    "jobs_running": (
        "state, attempt, position, lease, started_at, worker",
        f"'running', 1, n, {{first}} + n, now(), 1 + n / 100 % {WORKERS}",
    ),
    "jobs_finished": (
        "state, attempt, position, lease, started_at, worker, finished_at",
        "'completed', 1, n, {first} + n, now(), 1, now() - CASE WHEN n % 5 = 0 THEN interval '40 d' ELSE interval '0' END",
    ),
    "jobs_dead": ("state, attempt, lease, finished_at", "'dead', 10, {first} + n, now()"),
}

# What ANALYZE leaves in pg_class, and nothing in pg_statistic: of a table it never saw, one it saw with all rows deleted,
# and one it saw with a single row. Tables, then indexes.
NEVER, NO_ROWS, ONE_ROW, CORRECT, LONG_AGO = "never analysed", "seen empty", "seen with one row", "correct", "seen full"
TOLD = (NEVER, NO_ROWS, ONE_ROW, CORRECT, LONG_AGO)
_IN_CATALOGUE = {NEVER: ((0, -1), (1, -1)), NO_ROWS: ((1, 0), (2, 0)), ONE_ROW: ((1, 1), (2, 1))}
_OURS = "oid IN (SELECT oid FROM pg_class WHERE relnamespace = 'skiplock'::regnamespace AND relkind IN ('r', 'i'))"

LEANINGS = {
    "as usual": "",
    "nested loops": "SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off",
    "no nested loops": "SET LOCAL enable_nestloop = off",
    "seq scans": "SET LOCAL random_page_cost = 100",
    "jit": "SET LOCAL jit = on; SET LOCAL jit_above_cost = 0",
}


class Verb(NamedTuple):
    """A call, the number of rows it must answer, and the number of pages it may touch."""

    name: str
    sql: str
    params: tuple[Any, ...]
    answers: int
    budget: int


class Planner:
    """One connection to the full database, in a transaction that is rolled back."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def run(self, sql: str, *params: Any) -> list[Any]:
        cursor = self.connection.execute(sql, params or None)
        return cursor.fetchall() if cursor.description else []

    @contextmanager
    def believing(self, told: str, leaning: str) -> Iterator[None]:
        with self.connection.transaction(force_rollback=True):
            if told in _IN_CATALOGUE:
                self.run(f"DELETE FROM pg_statistic WHERE starelid IN (SELECT oid FROM pg_class WHERE {_OURS})")
                for kind, values in zip("ri", _IN_CATALOGUE[told], strict=True):
                    self.run(
                        f"UPDATE pg_class SET relpages = %s, reltuples = %s WHERE {_OURS} AND relkind = %s",
                        *values,
                        kind,
                    )
            elif told == LONG_AGO:
                self.run(
                    f"CREATE TEMP TABLE seen ON COMMIT DROP AS SELECT oid AS o, relpages AS p, reltuples AS t FROM pg_class WHERE {_OURS}"
                )
                self.run("TRUNCATE skiplock.jobs")
                fill_stages(self.connection, EMPTIED)
                fill_large(self.connection)
                self.run("UPDATE pg_class SET relpages = p, reltuples = t FROM seen WHERE oid = o")
            self.run(LEANINGS[leaning] or "SELECT")
            self.run(f"SET LOCAL statement_timeout = '{LONGEST}s'")
            yield
        self.run("DISCARD PLANS")  # a generic plan outlives the settings it was made under

    def excess(self, verb: Verb) -> str:
        """What is wrong with the pages it touches, if anything. The first call, which also reads the catalogue, is not
        counted; nor is a later one in which that happens again, because the catalogue was vacuumed or another test has made
        a database meanwhile: of three the best one counts."""
        try:
            with self.connection.transaction(force_rollback=True):
                self.run(verb.sql, *verb.params)
            for _ in range(3):
                with self.connection.transaction(force_rollback=True):
                    pages, answers = pages_and_rows(self.connection, verb.sql, *verb.params)
                if pages <= verb.budget:
                    break
        except psycopg.errors.QueryCanceled:
            return f"{verb.name}: more than {LONGEST} s"
        assert answers == verb.answers, f"{verb.name}: {answers} rows"
        return f"{verb.name}: {pages:,} of {verb.budget:,} pages" if pages > verb.budget else ""


def pages_and_rows(connection: psycopg.Connection[Any], sql: str, *params: Any) -> tuple[int, int]:
    """How many pages a statement touches, those of the functions it calls included, and how many rows it answers."""
    [[[found]]] = connection.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT json) {sql}", params or None).fetchall()
    plan = found["Plan"]
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]), int(plan["Actual Rows"])


def fill_stages(connection: psycopg.Connection[Any], rows: Sequence[int]) -> None:
    for (stage, first), count in zip(FIRST.items(), rows, strict=True):
        columns, values = _OWN[stage]
        connection.execute(
            f"INSERT INTO skiplock.{stage} ({_COMMON}, {columns}) "
            f"SELECT {_VALUES.format(first=first)}, {values.format(first=first)} FROM generate_series(1, {count}) n"
        )


def fill_large(connection: psycopg.Connection[Any]) -> None:
    connection.execute(
        "INSERT INTO skiplock.jobs_ready (id, position, state, enqueued_at, max_attempts, task, args, queue, priority) "
        "SELECT %s + n, %s + n, 'ready', now(), 10, 't', NULL, 'large', 0 FROM generate_series(1, %s) n",
        [FIRST_LARGE, FIRST_LARGE, LARGE],
    )


def fill_database(dsn: str) -> None:
    """Full, with correct statistics, and from now on neither vacuumed nor analysed."""
    with connect(dsn) as c:
        tables = [row[0] for row in c.execute(f"SELECT relname FROM pg_class WHERE {_OURS} AND relkind = 'r'")]
        for table in tables:
            c.execute(f"ALTER TABLE skiplock.{table} SET (autovacuum_enabled = off)")
        # Indexes are made afterwards, but for those of a partitioned table: half the time.
        own = "schemaname = 'skiplock' AND tablename = ANY (%s) AND tablename !~ 'finished'"
        indexes = c.execute(f"SELECT indexname, indexdef FROM pg_indexes WHERE {own}", [list(FIRST)]).fetchall()
        for name, _ in indexes:
            c.execute(f"DROP INDEX skiplock.{name}")
        fill_stages(c, FULL)
        c.execute(
            "INSERT INTO skiplock.jobs_ready (id, position, state, enqueued_at, max_attempts, task, args, queue, priority) "
            "SELECT %s - n, %s - n, 'ready', now(), 10, 't', '{}', 'few', n %% 3 FROM generate_series(1, %s) n",
            [AFTER_ALL, AFTER_ALL, FEW],
        )
        fill_large(c)
        for _, definition in indexes:
            c.execute(definition)
        c.execute(
            "INSERT INTO skiplock.payloads (job_id, args) SELECT CASE WHEN n <= %s THEN %s + n ELSE n END, '{}' "
            "FROM generate_series(1, %s) n",
            [LARGE, FIRST_LARGE, FULL[0]],
        )
        c.execute("SELECT setval('skiplock.job_numbers', %s)", [AFTER_ALL])
        register = "SELECT skiplock.register('w' || n, 'host', 1, '{}', '0', 1e6) FROM generate_series(1, %s) n"
        c.execute(register, [WORKERS])
        c.execute(
            "UPDATE skiplock.workers SET id = id / 10000"
        )  # without the random digits: 1 to WORKERS, as the jobs say
        c.execute("SELECT skiplock.arm(%s)", [["main", *QUEUES]])
        c.execute("UPDATE skiplock.bells SET until = now() WHERE queue = ''")
        for table in tables:
            c.execute(f"ANALYZE skiplock.{table}")


def clone_full(server: str) -> str:
    """The DSN of a full database. The first process of the run that asks fills one, which the others wait for and copy."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    with connect(server) as c:
        while not c.execute("SELECT FROM pg_database WHERE datname = %s", [FILLED]).fetchall():
            try:
                c.execute(f"CREATE DATABASE {FILLING} TEMPLATE {TEMPLATE}")
            except (psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                time.sleep(0.1)
                continue
            try:
                fill_database(in_database(server, FILLING))
                c.execute(f"ALTER DATABASE {FILLING} RENAME TO {FILLED}")
            except BaseException:
                c.execute(f"DROP DATABASE {FILLING} WITH (FORCE)")
                raise
        c.execute(f"CREATE DATABASE {name} TEMPLATE {FILLED} STRATEGY file_copy")
    return in_database(server, name)
