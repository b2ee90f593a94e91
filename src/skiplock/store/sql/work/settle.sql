-- Settle attempts: only rows that still run under the lease shown are touched. Returns the (id, lease) pairs that were
-- refused. Idempotent: a pair that was settled before under the same lease is accepted again in silence, so a batch can be
-- repeated after a cut connection.
--
-- `ids`, `leases`, `tooks` (seconds), `results`: completed attempts; the arrays sorted by id, as everywhere, so that two
-- batches never lock in opposite order. `others`: a JSON list of
--   {"id", "lease", "verdict": retry|snooze|cancelled|dead|release, "took", "delay", "failure": {error_class, message, traceback}}
CREATE OR REPLACE FUNCTION skiplock.settle(
    ids bigint[], leases bigint[], tooks real[] DEFAULT NULL, results json[] DEFAULT NULL, others json DEFAULT NULL
) RETURNS TABLE (refused_id bigint, refused_lease bigint)
LANGUAGE plpgsql
SET jit = off
AS $$
DECLARE
    v_done bigint[] := '{}';
    v_all bigint[] := ids;
    v_all_leases bigint[] := leases;
    v_places tid[];
BEGIN
    IF cardinality(ids) > 0 THEN
        v_done := skiplock._finish(ids, leases, 'completed', tooks, results, NULL);
    END IF;
    IF others IS NOT NULL THEN
        v_done := v_done || skiplock._settle_others(others);
        SELECT v_all || array_agg(o.id), v_all_leases || array_agg(o.lease) INTO v_all, v_all_leases
        FROM json_to_recordset(others) AS o (id bigint, lease bigint);
    END IF;
    IF cardinality(v_done) < cardinality(v_all) THEN
        -- A job shown under two leases is judged pair by pair: at most one of them was its own.
        v_done := ARRAY(SELECT d.id FROM unnest(v_done) AS d (id)
                        WHERE d.id <> ALL (ARRAY(SELECT a.id FROM unnest(v_all) AS a (id) GROUP BY a.id HAVING count(*) > 1)));
        SELECT array_agg(u.id), array_agg(u.lease) INTO v_all, v_all_leases
        FROM skiplock._not_settled(v_all, v_all_leases, v_done) AS u (id, lease);
        -- Released, or due again meanwhile: looked for last, because ready has no index on id.
        IF v_all IS NOT NULL THEN
            v_places := ARRAY(SELECT p.place FROM skiplock._ready_places(v_all) p);
            RETURN QUERY
            SELECT u.id, u.lease FROM unnest(v_all, v_all_leases) AS u (id, lease)
            WHERE NOT EXISTS (SELECT FROM skiplock.jobs_ready r WHERE r.ctid = ANY (v_places) AND r.id = u.id AND r.lease = u.lease);
        END IF;
    END IF;
END $$;

-- Those of the pairs that are neither among `done` nor in waiting, dead or finished under their lease. Probed pair by pair
-- (a scalar subselect cannot be turned into a join): as a join with `jobs` it scanned the whole history, 20,000 pages for 100
-- jobs of half a million, whenever a batch was sent again after a cut connection.
CREATE OR REPLACE FUNCTION skiplock._not_settled(ids bigint[], leases bigint[], done bigint[])
RETURNS TABLE (id bigint, lease bigint)
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT u.id, u.lease FROM unnest($1, $2) AS u (id, lease)
    WHERE u.id <> ALL ($3)
      AND (SELECT true FROM skiplock.jobs_waiting w WHERE w.id = u.id AND w.lease = u.lease LIMIT 1) IS NULL
      AND (SELECT true FROM skiplock.jobs_dead d WHERE d.id = u.id AND d.lease = u.lease LIMIT 1) IS NULL
      AND (SELECT true FROM skiplock.jobs_finished f WHERE f.id = u.id AND f.lease = u.lease LIMIT 1) IS NULL;
END $$;

-- How the rows are found, here and below: an uncorrelated ARRAY(…) of their places, made by one index probe a pair (the
-- LATERAL with LIMIT cannot be turned around), then a hash join for what comes with each. A plain `DELETE … USING
-- unnest(…)` lets the planner walk the whole of jobs_running and scan the array for every row when it has no statistics:
-- 1,000 jobs took a million steps. The planner settings keep that shape whatever it believes. Without `jit = off`, servers
-- before 18 compile each of these statements anew (a disabled node counts as a cost of 10¹⁰): 0.3 s a call.

-- Each pair is joined to the row it moves, so the very same pair twice in a batch would make two jobs of one.
CREATE OR REPLACE FUNCTION skiplock._check_twice(moved bigint[], gone bigint) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF cardinality(moved) > gone THEN
        RAISE EXCEPTION 'settle: a job is listed twice under the same lease' USING ERRCODE = 'SK002';
    END IF;
END $$;

-- Running → completed, cancelled or dead: every move into a final state goes through here, so that whoever must hear of
-- it (unique keys, limits, workflows) has one place to listen. Returns the ids that moved.
CREATE OR REPLACE FUNCTION skiplock._finish(
    ids bigint[], leases bigint[], new_state text, tooks real[], results json[], errors text[], admits boolean DEFAULT true
) RETURNS bigint[]
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := skiplock.now();
    v_moved bigint[];
    v_rows bigint;
    v_flows jsonb;
BEGIN
    IF new_state = 'dead' THEN
        WITH gone AS (
            DELETE FROM skiplock.jobs_running r WHERE r.ctid = ANY (ARRAY(
                SELECT f.place FROM unnest($1, $2) AS u (id, lease),
                    LATERAL (SELECT x.ctid AS place FROM skiplock.jobs_running x WHERE x.id = u.id AND x.lease = u.lease LIMIT 1) f))
            RETURNING r.*
        ), moved AS (
            INSERT INTO skiplock.jobs_dead AS j
                (id, position, lease, worker, enqueued_at, run_at, started_at, finished_at, attempt, max_attempts, priority,
                 losses, state, queue, task, args, tags, meta, options, error, flow)
            SELECT g.id, g.position, g.lease, g.worker, g.enqueued_at, g.run_at,
                   coalesce(v_now - u.took * interval '1 s', g.started_at), v_now, g.attempt, g.max_attempts,
                   g.priority, g.losses, $3, g.queue, g.task, g.args, g.tags, g.meta, g.options, coalesce(u.error, g.error), g.flow
            FROM gone g JOIN unnest($1, $2, $4, $6) AS u (id, lease, took, error) ON u.id = g.id AND u.lease = g.lease
            RETURNING j.id, j.flow
        )
        SELECT array_agg(m.id), (SELECT count(*) FROM gone), jsonb_agg(m.flow || jsonb_build_object('id', m.id)) FILTER (WHERE m.flow IS NOT NULL)
        INTO v_moved, v_rows, v_flows FROM moved m;
    ELSE
        WITH gone AS (
            DELETE FROM skiplock.jobs_running r WHERE r.ctid = ANY (ARRAY(
                SELECT f.place FROM unnest($1, $2) AS u (id, lease),
                    LATERAL (SELECT x.ctid AS place FROM skiplock.jobs_running x WHERE x.id = u.id AND x.lease = u.lease LIMIT 1) f))
            RETURNING r.*
        ), moved AS (
            INSERT INTO skiplock.jobs_finished AS j
                (id, position, lease, worker, enqueued_at, run_at, started_at, finished_at, attempt, max_attempts, priority,
                 losses, state, queue, task, args, tags, meta, options, result, error, flow)
            SELECT g.id, g.position, g.lease, g.worker, g.enqueued_at, g.run_at,
                   coalesce(v_now - u.took * interval '1 s', g.started_at), v_now, g.attempt, g.max_attempts,
                   g.priority, g.losses, $3, g.queue, g.task, g.args, g.tags, g.meta, g.options, u.result,
                   CASE WHEN $3 <> 'completed' THEN coalesce(u.error, g.error) END, g.flow
            FROM gone g JOIN unnest($1, $2, $4, $5, $6) AS u (id, lease, took, result, error) ON u.id = g.id AND u.lease = g.lease
            RETURNING j.id, j.flow
        )
        SELECT array_agg(m.id), (SELECT count(*) FROM gone), jsonb_agg(m.flow || jsonb_build_object('id', m.id)) FILTER (WHERE m.flow IS NOT NULL)
        INTO v_moved, v_rows, v_flows FROM moved m;
    END IF;
    PERFORM skiplock._check_twice(v_moved, v_rows);
    IF EXISTS (SELECT FROM skiplock.cancellations) THEN
        DELETE FROM skiplock.cancellations c WHERE c.job_id = ANY (v_moved);
    END IF;
    IF v_flows IS NOT NULL THEN
        PERFORM skiplock._let_go(v_flows, true, $7);
    END IF;
    RETURN coalesce(v_moved, '{}');
END $$;

-- Running → ready, attempt given back, place in line kept: the job was never started, or was interrupted by a shutdown.
-- A cancel request wins here too: the job would otherwise run again, under a worker that never hears of it.
CREATE OR REPLACE FUNCTION skiplock._release(ids bigint[], leases bigint[]) RETURNS bigint[]
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_moved bigint[];
    v_queues text[];
    v_expiry timestamptz;
    v_cancelled bigint[];
    v_cancelled_leases bigint[];
BEGIN
    -- Locked first: a cancel that comes meanwhile is either seen below, or waits and finds the job where it has gone.
    PERFORM f.id FROM unnest($1, $2) AS u (id, lease),
        LATERAL (SELECT x.id FROM skiplock.jobs_running x WHERE x.id = u.id AND x.lease = u.lease LIMIT 1 FOR UPDATE) f;
    SELECT array_agg(u.id), array_agg(u.lease) INTO v_cancelled, v_cancelled_leases
    FROM unnest($1, $2) AS u (id, lease) JOIN skiplock.cancellations c ON c.job_id = u.id;
    IF v_cancelled IS NOT NULL THEN
        v_cancelled := skiplock._finish(v_cancelled, v_cancelled_leases, 'cancelled', NULL, NULL, NULL);
    END IF;
    WITH gone AS (
        DELETE FROM skiplock.jobs_running r WHERE r.ctid = ANY (ARRAY(
            SELECT f.place FROM unnest($1, $2) AS u (id, lease),
                LATERAL (SELECT x.ctid AS place FROM skiplock.jobs_running x WHERE x.id = u.id AND x.lease = u.lease LIMIT 1) f))
        RETURNING r.*
    ), moved AS (
        INSERT INTO skiplock.jobs_ready AS j
            (id, position, lease, enqueued_at, run_at, attempt, max_attempts, priority, losses, state, queue, task, args,
             tags, meta, options, error, flow, expires_at)
        SELECT g.id, g.position, g.lease, g.enqueued_at, g.run_at, g.attempt - 1, g.max_attempts, g.priority, g.losses,
               'ready', g.queue, g.task, g.args, g.tags, g.meta, g.options, g.error, g.flow, g.expires_at
        FROM gone g
        RETURNING j.id, j.queue, j.expires_at
    )
    SELECT array_agg(m.id), array_agg(DISTINCT m.queue), min(m.expires_at) INTO v_moved, v_queues, v_expiry FROM moved m;
    IF v_expiry IS NOT NULL THEN
        PERFORM skiplock._ring_timer(v_expiry);
    END IF;
    IF v_queues IS NOT NULL THEN
        PERFORM skiplock._ring(v_queues);
    END IF;
    RETURN coalesce(v_moved, '{}') || coalesce(v_cancelled, '{}');
END $$;

-- Running → retryable. `spend` false gives the attempt back (snooze).
CREATE OR REPLACE FUNCTION skiplock._retry_later(
    ids bigint[], leases bigint[], delays float8[], errors text[], spend boolean
) RETURNS bigint[]
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := skiplock.now();
    v_moved bigint[];
    v_due timestamptz;
    v_rows bigint;
    v_flows jsonb;
BEGIN
    WITH gone AS (
        DELETE FROM skiplock.jobs_running r WHERE r.ctid = ANY (ARRAY(
            SELECT f.place FROM unnest($1, $2) AS u (id, lease),
                LATERAL (SELECT x.ctid AS place FROM skiplock.jobs_running x WHERE x.id = u.id AND x.lease = u.lease LIMIT 1) f))
        RETURNING r.*
    ), moved AS (
        INSERT INTO skiplock.jobs_waiting AS j
            (id, lease, enqueued_at, run_at, attempt, max_attempts, priority, losses, state, queue, task, args, tags, meta,
             options, error, flow)
        SELECT g.id, g.lease, g.enqueued_at, v_now + coalesce(u.delay, 0) * interval '1 s',
               CASE WHEN $5 THEN g.attempt ELSE g.attempt - 1 END, g.max_attempts, g.priority, 0, 'retryable', g.queue,
               g.task, g.args, g.tags, g.meta, g.options, coalesce(u.error, g.error), g.flow
        FROM gone g JOIN unnest($1, $2, $3, $4) AS u (id, lease, delay, error) ON u.id = g.id AND u.lease = g.lease
        RETURNING j.id, j.run_at, j.flow
    )
    SELECT array_agg(m.id), min(m.run_at), (SELECT count(*) FROM gone), jsonb_agg(m.flow || jsonb_build_object('id', m.id)) FILTER (WHERE m.flow ?| '{limits,in_queue}')
    INTO v_moved, v_due, v_rows, v_flows FROM moved m;
    PERFORM skiplock._check_twice(v_moved, v_rows);
    IF v_due IS NOT NULL THEN
        PERFORM skiplock._ring_timer(v_due);
    END IF;
    IF v_flows IS NOT NULL THEN
        PERFORM skiplock._let_go(v_flows, false, true);
    END IF;
    RETURN coalesce(v_moved, '{}');
END $$;

-- Everything but plain success. A cancel request wins over another attempt; a retry without attempts left is death.
CREATE OR REPLACE FUNCTION skiplock._settle_others(others json) RETURNS bigint[]
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := skiplock.now();
    v_done bigint[] := '{}';
    v_row record;
BEGIN
    -- Locked first, in the order given (of ids): a cancel that comes meanwhile either was here before, and is seen below, or waits
    -- and finds the job where it has gone.
    PERFORM r.id FROM json_to_recordset($1) AS o (id bigint, lease bigint),
        LATERAL (SELECT x.id FROM skiplock.jobs_running x WHERE x.id = o.id AND x.lease = o.lease LIMIT 1 FOR UPDATE) r;
    -- The attempts are kept while the rows still tell who ran them and since when.
    INSERT INTO skiplock.attempts (job_id, attempt, verdict, error_class, message, traceback, worker, worker_name, started_at, ended_at)
    SELECT r.id, r.attempt, o.verdict, o.failure ->> 'error_class', o.failure ->> 'message', o.failure ->> 'traceback',
           r.worker, w.name, coalesce(v_now - make_interval(secs => o.took), r.started_at), v_now
    FROM json_to_recordset($1) AS o (id bigint, lease bigint, verdict text, took float8, failure json)
    JOIN LATERAL (SELECT * FROM skiplock.jobs_running x WHERE x.id = o.id AND x.lease = o.lease LIMIT 1) r ON true
    LEFT JOIN skiplock.workers w ON w.id = r.worker
    WHERE o.verdict NOT IN ('release', 'snooze');

    FOR v_row IN
        SELECT s.verdict, array_agg(s.id ORDER BY s.id) AS ids, array_agg(s.lease ORDER BY s.id) AS leases,
               array_agg(s.took ORDER BY s.id) AS tooks, array_agg(s.delay ORDER BY s.id) AS delays,
               array_agg(s.error ORDER BY s.id) AS errors
        FROM (
            SELECT o.id, o.lease, o.took::real, o.delay,
                   left((o.failure ->> 'error_class') || coalesce(': ' || nullif(split_part(o.failure ->> 'message', E'\n', 1), ''), ''), 200) AS error,
                   CASE
                       WHEN o.verdict IN ('retry', 'snooze', 'release') AND c.job_id IS NOT NULL THEN 'cancelled'
                       WHEN o.verdict = 'retry' AND r.attempt >= r.max_attempts THEN 'dead'
                       ELSE o.verdict
                   END AS verdict
            FROM json_to_recordset($1) AS o (id bigint, lease bigint, verdict text, took float8, delay float8, failure json)
            JOIN LATERAL (SELECT * FROM skiplock.jobs_running x WHERE x.id = o.id AND x.lease = o.lease LIMIT 1) r ON true
            LEFT JOIN skiplock.cancellations c ON c.job_id = o.id
        ) s
        GROUP BY s.verdict ORDER BY s.verdict
    LOOP
        v_done := v_done || CASE v_row.verdict
            WHEN 'retry' THEN skiplock._retry_later(v_row.ids, v_row.leases, v_row.delays, v_row.errors, true)
            WHEN 'snooze' THEN skiplock._retry_later(v_row.ids, v_row.leases, v_row.delays, v_row.errors, false)
            WHEN 'release' THEN skiplock._release(v_row.ids, v_row.leases)
            ELSE skiplock._finish(v_row.ids, v_row.leases, v_row.verdict, v_row.tooks, NULL, v_row.errors)
        END;
    END LOOP;
    RETURN v_done;
END $$;

-- Complete one job inside the caller's own transaction. Raises SK004 if the attempt no longer owns it, so that the
-- transaction cannot commit.
CREATE OR REPLACE FUNCTION skiplock.complete(id bigint, lease bigint, took real DEFAULT NULL, result json DEFAULT NULL) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    -- In a transaction that may stay open: whoever may admit next is told, and does not wait for it.
    IF skiplock._finish(ARRAY[$1], ARRAY[$2], 'completed', ARRAY[$3], ARRAY[$4], NULL, false) = '{}' THEN
        RAISE EXCEPTION 'job %: this attempt no longer owns it (another worker was given it, or it was cancelled)', $1
            USING ERRCODE = 'SK004';
    END IF;
END $$;
