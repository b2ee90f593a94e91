-- Move waiting jobs that are due to ready, earliest first, at most `batch`. Returns how many moved and in how many seconds
-- the next one is due (NULL: none; not positive: call again). With `arm`, leaves word when the caller means to wake, so
-- that an enqueue due sooner rings the timer.
-- `since` (seconds from now, so not positive): look only at jobs due since then. NULL: at all, which walks over dead entries
-- while someone's old snapshot pins them, so the caller bounds how often. `upto` says how far this call got, in the same
-- measure: everything due until then was moved, but what another is moving or a transaction commits late.
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
BEGIN
    WITH gone AS (
        DELETE FROM skiplock.jobs_waiting w
        WHERE w.ctid = ANY (ARRAY(
            SELECT d.ctid FROM skiplock.jobs_waiting d
            WHERE d.run_at BETWEEN v_since AND v_now AND d.state <> 'blocked'
            ORDER BY d.run_at LIMIT $1 FOR UPDATE SKIP LOCKED))
        RETURNING w.*
    ), placed AS (
        SELECT nextval('skiplock.job_numbers') AS place, g.* FROM (SELECT * FROM gone ORDER BY gone.run_at, gone.id) g
    ), entered AS (
        INSERT INTO skiplock.jobs_ready AS j
            (id, position, lease, enqueued_at, run_at, attempt, max_attempts, priority, losses, state, queue, task, args,
             tags, meta, options, error)
        SELECT p.id, p.place, p.lease, p.enqueued_at, p.run_at, p.attempt, p.max_attempts, p.priority, p.losses, 'ready',
               p.queue, p.task, p.args, p.tags, p.meta, p.options, p.error
        FROM placed p
        RETURNING j.queue, j.run_at
    )
    SELECT count(*)::integer, array_agg(DISTINCT e.queue), max(e.run_at) INTO moved, v_queues, v_last FROM entered e;
    upto := CASE WHEN moved < $1 THEN 0 ELSE extract(epoch FROM v_last - v_now) END;
    IF moved > 0 THEN
        PERFORM skiplock._ring(v_queues);
    END IF;
    SELECT w.run_at INTO v_next FROM skiplock.jobs_waiting w
    WHERE w.run_at >= coalesce(v_last, v_since) AND w.state <> 'blocked' ORDER BY w.run_at LIMIT 1;
    due_in := extract(epoch FROM v_next - skiplock.now());
    IF $2 THEN
        UPDATE skiplock.bells b SET until = coalesce(v_next, 'infinity')
        WHERE b.queue = '' AND b.until IS DISTINCT FROM coalesce(v_next, 'infinity');
    END IF;
    RETURN NEXT;
END $$;
