-- One logical table of jobs, one partition per stage of a job's life. Rows move between stages by DELETE … INSERT and
-- never by an UPDATE of `state` (a cross-partition UPDATE makes a waiting writer fail with 40001).
--
-- `args`, `meta` and `result` are json, not jsonb: jsonb rewrites numbers (1e22 comes back as an integer) and costs a
-- parse at each end; nothing is indexed inside them.

CREATE SEQUENCE skiplock.job_numbers AS bigint;       -- ids, and the places in line drawn on entering ready
CREATE SEQUENCE skiplock.worker_numbers AS bigint;

CREATE TABLE skiplock.jobs (
    id           bigint      NOT NULL,
    position     bigint,                              -- place in line; drawn from the ids' sequence on entering ready
    lease        bigint,                              -- claim token of the latest attempt; a settle must show it
    worker       bigint,
    enqueued_at  timestamptz NOT NULL,
    run_at       timestamptz,                         -- not before this; NULL: was ready at once
    started_at   timestamptz,                         -- while running: when claimed; afterwards: when the handler began
    finished_at  timestamptz,
    attempt      integer     NOT NULL DEFAULT 0,      -- attempts begun
    max_attempts integer     NOT NULL,
    priority     smallint    NOT NULL DEFAULT 0,      -- larger runs sooner
    losses       smallint    NOT NULL DEFAULT 0,      -- workers lost in a row while holding this job
    state        text        NOT NULL,
    queue        text        NOT NULL,
    task         text        NOT NULL,
    args         json        NOT NULL,
    tags         text[],
    meta         json,
    options      json,                                -- rare per-job settings: timeout, backoff
    result       json,
    error        text                                 -- one line: the latest failure; all of them are in attempts
) PARTITION BY LIST (state);

CREATE TABLE skiplock.jobs_waiting PARTITION OF skiplock.jobs FOR VALUES IN ('scheduled', 'retryable', 'blocked');
CREATE INDEX jobs_waiting_due ON skiplock.jobs_waiting (run_at) WHERE state <> 'blocked';
CREATE INDEX jobs_waiting_id ON skiplock.jobs_waiting (id);

CREATE TABLE skiplock.jobs_ready PARTITION OF skiplock.jobs FOR VALUES IN ('ready');
-- The only index a claim searches. Jobs that lost a worker before are not in it: they are claimed with care, by claim_suspects.
CREATE INDEX jobs_ready_line ON skiplock.jobs_ready (queue, priority DESC, position) WHERE losses = 0;
CREATE INDEX jobs_ready_suspects ON skiplock.jobs_ready (queue, position) WHERE losses > 0;
-- A job that went straight to ready has position = id and is found through the lanes (see _ready_places), so that the hot
-- path pays for no index on id; only jobs that came back are in this one.
CREATE INDEX jobs_ready_moved ON skiplock.jobs_ready (id) WHERE position <> id;

CREATE TABLE skiplock.jobs_running PARTITION OF skiplock.jobs FOR VALUES IN ('running');
CREATE INDEX jobs_running_id ON skiplock.jobs_running (id);
CREATE INDEX jobs_running_worker ON skiplock.jobs_running (worker);

CREATE TABLE skiplock.jobs_dead PARTITION OF skiplock.jobs FOR VALUES IN ('dead');
CREATE INDEX jobs_dead_id ON skiplock.jobs_dead (id);
CREATE INDEX jobs_dead_task ON skiplock.jobs_dead (task, finished_at);

-- One partition a day, made ahead by make_days(); the default one so that a missing day never stops a settle.
CREATE TABLE skiplock.jobs_finished PARTITION OF skiplock.jobs FOR VALUES IN ('completed', 'cancelled')
    PARTITION BY RANGE (finished_at);
CREATE INDEX jobs_finished_id ON skiplock.jobs_finished (id);
CREATE TABLE skiplock.jobs_finished_default PARTITION OF skiplock.jobs_finished DEFAULT;

-- Every failed or lost attempt. A job that succeeds at once has none, so success costs nothing here.
CREATE TABLE skiplock.attempts (
    job_id      bigint      NOT NULL,
    attempt     integer     NOT NULL,
    verdict     text        NOT NULL,                 -- retry, dead, cancelled, lost
    error_class text,
    message     text,
    traceback   text,
    worker      bigint,
    worker_name text,
    started_at  timestamptz,
    ended_at    timestamptz NOT NULL
);
CREATE INDEX attempts_job ON skiplock.attempts (job_id);

-- What ctx.once() recorded: an effect that was completed, and its value.
CREATE TABLE skiplock.steps (
    job_id      bigint      NOT NULL,
    name        text        NOT NULL,
    value       json        NOT NULL,
    attempt     integer     NOT NULL,
    recorded_at timestamptz NOT NULL,
    PRIMARY KEY (job_id, name)
);

-- One row a worker process. No index on a mutable column, so that a beat is a heap-only update.
CREATE TABLE skiplock.workers (
    id         bigint      PRIMARY KEY,
    name       text        NOT NULL,
    host       text        NOT NULL,
    pid        integer     NOT NULL,
    queues     json        NOT NULL,                  -- {"mail": 20}: concurrency by queue
    version    text        NOT NULL,
    started_at timestamptz NOT NULL,
    beat_at    timestamptz NOT NULL,
    lost_after interval    NOT NULL,                  -- no beat for this long: the worker is lost
    state      text        NOT NULL DEFAULT 'running', -- running, stopping
    running    integer     NOT NULL DEFAULT 0         -- attempts in progress at the latest beat
) WITH (fillfactor = 50);

-- Polled by every beat, nearly always empty: a cancel request for a running job.
CREATE TABLE skiplock.cancellations (
    job_id       bigint      PRIMARY KEY,
    worker       bigint      NOT NULL,
    requested_at timestamptz NOT NULL
);

CREATE TABLE skiplock.queues (
    name      text    PRIMARY KEY,
    paused_at timestamptz                             -- NULL: running
) WITH (fillfactor = 70);

-- The bell of each queue: set by a worker that is about to sleep, looked at by whoever makes a job ready.
-- The row with the empty name is the timer's: `until` is when the leader wakes to promote.
CREATE TABLE skiplock.bells (
    queue    text PRIMARY KEY,
    armed_at timestamptz,
    until    timestamptz
) WITH (fillfactor = 50);
INSERT INTO skiplock.bells (queue) VALUES ('');

-- Who does the chores. Not needed for correctness (every chore is guarded by the rows it changes): it only saves work.
CREATE TABLE skiplock.duties (
    name   text   PRIMARY KEY,
    worker bigint,
    term   bigint NOT NULL DEFAULT 0,
    until  timestamptz
) WITH (fillfactor = 50);
INSERT INTO skiplock.duties (name) VALUES ('upkeep');

-- Hot partitions turn over completely within seconds: vacuum them by count, not by share, and without pauses.
ALTER TABLE skiplock.jobs_ready   SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1);
ALTER TABLE skiplock.jobs_running SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1);
ALTER TABLE skiplock.jobs_waiting SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0.1);
