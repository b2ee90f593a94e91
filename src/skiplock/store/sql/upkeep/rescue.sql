-- Rescue the jobs of lost workers: those without a beat for as long as they themselves had promised, and running rows
-- whose worker is not registered any more (a claim that committed while its worker was being declared lost).
-- Guarded by the worker's row: of two rescuers one deletes it, the other skips it. Nothing is judged by elapsed run time.
-- Returns one row a lost worker. `sweep`: look for the latter too. `watched`: for how many seconds the rescuer itself has been
-- able to beat. After an outage of the database (or a night's sleep of the laptop) every worker has been silent, and the first
-- one back would take the jobs from all the others: whoever was away itself must watch them first for as long as they had
-- promised. NULL: judge at once.
CREATE OR REPLACE FUNCTION skiplock.rescue(sweep boolean DEFAULT true, watched float8 DEFAULT NULL) RETURNS TABLE (worker bigint, name text, silent_for float8, jobs integer)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := skiplock.now();
    v_lost record;
BEGIN
    FOR v_lost IN
        SELECT w.id, w.name, w.beat_at FROM skiplock.workers w
        WHERE w.beat_at + w.lost_after < v_now AND ($2 IS NULL OR w.lost_after <= make_interval(secs => $2))
        ORDER BY w.id FOR UPDATE SKIP LOCKED
    LOOP
        worker := v_lost.id; name := v_lost.name; silent_for := extract(epoch FROM v_now - v_lost.beat_at);
        jobs := skiplock._lose(v_lost.id, v_lost.name, NULL, format('worker %s (%s) fell silent', v_lost.id, v_lost.name));
        DELETE FROM skiplock.workers w WHERE w.id = v_lost.id;
        RETURN NEXT;
    END LOOP;
    IF NOT sweep THEN
        RETURN;
    END IF;
    FOR v_lost IN
        WITH RECURSIVE holder AS (
            (SELECT r.worker AS id FROM skiplock.jobs_running r ORDER BY r.worker LIMIT 1)
            UNION ALL
            SELECT (SELECT r.worker FROM skiplock.jobs_running r WHERE r.worker > h.id ORDER BY r.worker LIMIT 1)
            FROM holder h WHERE h.id IS NOT NULL
        )
        SELECT h.id FROM holder h
        WHERE h.id IS NOT NULL AND NOT EXISTS (SELECT FROM skiplock.workers w WHERE w.id = h.id)
        ORDER BY h.id  -- two that sweep at once must not lock rows in opposite order
    LOOP
        worker := v_lost.id; name := NULL; silent_for := NULL;
        jobs := skiplock._lose(v_lost.id, NULL, NULL, format('worker %s is not registered any more', v_lost.id));
        IF jobs > 0 THEN
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

-- A supervisor saw its child die and knows which jobs had started: those spent their attempt, the others were only
-- claimed ahead and are released. Returns the number of jobs the worker held. Safe to repeat.
CREATE OR REPLACE FUNCTION skiplock.report_lost(worker bigint, started bigint[], reason text) RETURNS integer
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_name text;
    v_jobs integer;
BEGIN
    SELECT w.name INTO v_name FROM skiplock.workers w WHERE w.id = $1 FOR UPDATE;
    v_jobs := skiplock._lose($1, v_name, $2, $3);
    DELETE FROM skiplock.workers w WHERE w.id = $1;
    UPDATE skiplock.duties d SET worker = NULL, until = NULL WHERE d.worker = $1;
    RETURN v_jobs;
END $$;

-- Give the jobs of a lost worker back.
--   `started` known:   started → attempt spent, a loss counted, ready again; the rest → as if never claimed
--   `started` unknown: nobody can tell, so no attempt is spent, but a loss is counted
-- A job that has lost three workers in a row, or whose attempts are used up, is dead. A cancel request wins.
CREATE OR REPLACE FUNCTION skiplock._lose(worker bigint, worker_name text, started bigint[], reason text) RETURNS integer
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := skiplock.now();
    v_places tid[];
    v_dead bigint[]; v_dead_leases bigint[];
    v_cancelled bigint[]; v_cancelled_leases bigint[];
    v_unstarted bigint[]; v_unstarted_leases bigint[];
    v_queues text[];
    v_error text := left('JobLostError: ' || $4, 200);
BEGIN
    -- These rows and no others, here and below: a claim of that worker may still be under way on the server, and what it takes
    -- meanwhile has not been looked at. It is swept up later (see rescue).
    v_places := ARRAY(SELECT r.ctid FROM skiplock.jobs_running r WHERE r.worker = $1 ORDER BY r.id FOR UPDATE);
    IF v_places = '{}' THEN
        RETURN 0;
    END IF;
    SELECT array_agg(r.id), array_agg(r.lease) INTO v_unstarted, v_unstarted_leases
    FROM skiplock.jobs_running r WHERE r.ctid = ANY (v_places) AND $3 IS NOT NULL AND r.id <> ALL ($3);
    IF v_unstarted IS NOT NULL THEN
        PERFORM skiplock._release(v_unstarted, v_unstarted_leases);
    END IF;

    INSERT INTO skiplock.attempts (job_id, attempt, verdict, error_class, message, worker, worker_name, started_at, ended_at)
    SELECT r.id, r.attempt, 'lost', 'JobLostError', $4, r.worker, $2, r.started_at, v_now
    FROM skiplock.jobs_running r WHERE r.ctid = ANY (v_places);

    SELECT array_agg(r.id), array_agg(r.lease) INTO v_cancelled, v_cancelled_leases
    FROM skiplock.jobs_running r JOIN skiplock.cancellations c ON c.job_id = r.id WHERE r.ctid = ANY (v_places);
    IF v_cancelled IS NOT NULL THEN
        PERFORM skiplock._finish(v_cancelled, v_cancelled_leases, 'cancelled', NULL, NULL, array_fill(v_error, ARRAY[cardinality(v_cancelled)]));
    END IF;
    SELECT array_agg(r.id), array_agg(r.lease) INTO v_dead, v_dead_leases
    FROM skiplock.jobs_running r
    WHERE r.ctid = ANY (v_places) AND (r.losses >= 2 OR ($3 IS NOT NULL AND r.attempt >= r.max_attempts));
    IF v_dead IS NOT NULL THEN
        PERFORM skiplock._finish(v_dead, v_dead_leases, 'dead', NULL, NULL, array_fill(v_error, ARRAY[cardinality(v_dead)]));
    END IF;

    WITH gone AS (
        DELETE FROM skiplock.jobs_running r WHERE r.ctid = ANY (v_places) RETURNING r.*
    ), entered AS (
        INSERT INTO skiplock.jobs_ready AS j
            (id, position, lease, enqueued_at, run_at, attempt, max_attempts, priority, losses, state, queue, task, args,
             tags, meta, options, error, flow)
        SELECT g.id, nextval('skiplock.job_numbers'), NULL, g.enqueued_at, g.run_at,  -- no lease: a late settle is refused
               CASE WHEN $3 IS NULL THEN g.attempt - 1 ELSE g.attempt END, g.max_attempts, g.priority, g.losses + 1,
               'ready', g.queue, g.task, g.args, g.tags, g.meta, g.options, v_error, g.flow
        FROM gone g
        RETURNING j.queue
    )
    SELECT array_agg(DISTINCT e.queue) INTO v_queues FROM entered e;
    IF v_queues IS NOT NULL THEN
        PERFORM skiplock._ring(v_queues);
    END IF;
    RETURN cardinality(v_places);
END $$;
