-- Move waiting jobs that are due to ready, earliest first, at most `batch`. Returns how many moved and in how many seconds
-- the next one is due (NULL: none; not positive: call again). With `arm`, leaves word when the caller means to wake, so
-- that an enqueue due sooner rings the timer.
-- `since` (seconds from now, so not positive): look only at jobs due since then. NULL: at all, which walks over dead entries
-- while someone's old snapshot pins them, so the caller bounds how often. `upto` says how far this call got, in the same
-- measure: everything due until then was moved, but what another is moving or a transaction commits late.
-- On the way the other things are done whose time has come: jobs that were not started in time are cancelled (expire.sql),
-- pauses end and old jobs rise (queues.sql), and those that their limits allow now are let in (admit.sql). They count in `moved` and `due_in`.
-- Any worker may run it at any time: rows being moved by another are skipped.
CREATE OR REPLACE FUNCTION skiplock.promote(batch integer DEFAULT 1000, arm boolean DEFAULT false, since float8 DEFAULT NULL)
RETURNS TABLE (moved integer, due_in float8, upto float8)
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := skiplock.now();
    v_since timestamptz := coalesce(v_now + make_interval(secs => since), '-infinity');
    v_last timestamptz;
    v_next timestamptz;
    v_queues text[];
    v_admitted record;
BEGIN
    WITH gone AS (
        DELETE FROM skiplock.jobs_waiting w
        WHERE w.ctid = ANY (ARRAY(
            SELECT d.ctid FROM skiplock.jobs_waiting d
            WHERE d.run_at BETWEEN v_since AND v_now AND d.state <> 'blocked'
            ORDER BY d.run_at LIMIT $1 FOR UPDATE SKIP LOCKED))
        RETURNING w.*
    ), placed AS (
        SELECT nextval('skiplock.job_numbers') AS place,
               CASE WHEN g.flow ? 'limits' THEN skiplock._line(g.flow, g.id) END AS line,
               g.*
        FROM (SELECT * FROM gone ORDER BY gone.run_at, gone.id) g
    ), fair AS (
        SELECT f.* FROM (
            SELECT array_agg(p.id ORDER BY p.place) AS ids, array_agg(p.queue ORDER BY p.place) AS queues,
                   array_agg(p.priority ORDER BY p.place) AS priorities, array_agg(p.flow ->> 'fair' ORDER BY p.place) AS keys,
                   array_agg(coalesce((p.flow ->> 'weight')::float8, 1) ORDER BY p.place) AS weights
            FROM placed p WHERE p.flow ? 'fair' AND p.line IS NULL) a,
            LATERAL skiplock._fair_places(a.ids, a.queues, a.priorities, a.keys, a.weights) f
        WHERE a.ids IS NOT NULL
    ), entered AS (
        INSERT INTO skiplock.jobs_ready AS j
            (id, position, lease, enqueued_at, run_at, attempt, max_attempts, priority, losses, state, queue, task, args,
             tags, meta, options, error, flow, expires_at)
        SELECT p.id, coalesce(f.place, p.place),
               p.lease, p.enqueued_at, p.run_at, p.attempt, p.max_attempts, p.priority, p.losses, 'ready',
               p.queue, p.task, p.args, p.tags, p.meta, p.options, p.error, p.flow, p.expires_at
        FROM placed p LEFT JOIN fair f ON f.id = p.id WHERE p.line IS NULL
        RETURNING j.queue
    ), stopped AS (
        INSERT INTO skiplock.jobs_waiting
            (id, position, lease, enqueued_at, run_at, attempt, max_attempts, priority, losses, state, queue, task, args,
             tags, meta, options, error, flow, expires_at, blocked_on)
        SELECT p.id, CASE WHEN p.flow ? 'order' THEN p.id ELSE p.place END,
               p.lease, p.enqueued_at, p.run_at, p.attempt, p.max_attempts, p.priority, p.losses, 'blocked',
               p.queue, p.task, p.args, p.tags, p.meta, p.options, p.error, p.flow, p.expires_at, p.line
        FROM placed p WHERE p.line IS NOT NULL
    ), nudged AS (
        INSERT INTO skiplock.nudges (key) SELECT DISTINCT p.line FROM placed p WHERE p.line IS NOT NULL
    )
    SELECT count(*)::integer, (SELECT array_agg(DISTINCT e.queue) FROM entered e), max(p.run_at) INTO moved, v_queues, v_last FROM placed p;
    upto := CASE WHEN moved < $1 THEN 0 ELSE extract(epoch FROM v_last - v_now) END;
    IF v_queues IS NOT NULL THEN
        PERFORM skiplock._ring(v_queues);
    END IF;
    moved := moved + skiplock.expire($1) + skiplock.tend_queues($1);
    SELECT * INTO v_admitted FROM skiplock.admit(true, $1);
    moved := least(moved + v_admitted.moved, $1);
    SELECT w.run_at INTO v_next FROM skiplock.jobs_waiting w
    WHERE w.run_at >= coalesce(v_last, v_since) AND w.state <> 'blocked' ORDER BY w.run_at LIMIT 1;
    v_next := least(v_next, v_now + make_interval(secs => v_admitted.due_in), skiplock._next_expiry(), skiplock._next_tending());
    due_in := extract(epoch FROM v_next - skiplock.now());
    IF $2 THEN
        UPDATE skiplock.bells b SET until = coalesce(v_next, 'infinity')
        WHERE b.queue = '' AND b.until IS DISTINCT FROM coalesce(v_next, 'infinity');
    END IF;
    RETURN NEXT;
END $$;
