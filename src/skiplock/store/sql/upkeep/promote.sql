-- Move waiting jobs that are due to ready, earliest first, at most `batch`. Returns how many moved and in how many seconds
-- the next one is due (NULL: none; not positive: call again). With `arm`, leaves word when the caller means to wake, so
-- that an enqueue due sooner rings the timer.
-- Any worker may run it at any time: rows being moved by another are skipped.
CREATE OR REPLACE FUNCTION skiplock.promote(batch integer DEFAULT 1000, arm boolean DEFAULT false)
RETURNS TABLE (moved integer, due_in float8)
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := skiplock.now();
    v_next timestamptz;
    v_queues text[];
BEGIN
    WITH gone AS (
        DELETE FROM skiplock.jobs_waiting w
        WHERE w.ctid = ANY (ARRAY(
            SELECT d.ctid FROM skiplock.jobs_waiting d
            WHERE d.run_at <= v_now AND d.state <> 'blocked'
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
        RETURNING j.queue
    )
    SELECT count(*)::integer, array_agg(DISTINCT e.queue) INTO moved, v_queues FROM entered e;
    IF moved > 0 THEN
        PERFORM skiplock._ring(v_queues);
    END IF;
    SELECT w.run_at INTO v_next FROM skiplock.jobs_waiting w WHERE w.state <> 'blocked' ORDER BY w.run_at LIMIT 1;
    due_in := extract(epoch FROM v_next - skiplock.now());
    IF $2 THEN
        UPDATE skiplock.bells b SET until = coalesce(v_next, 'infinity')
        WHERE b.queue = '' AND b.until IS DISTINCT FROM coalesce(v_next, 'infinity');
    END IF;
    RETURN NEXT;
END $$;
