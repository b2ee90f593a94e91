-- Bounded queues: an enqueue that would pass a queue's bound is refused as a whole, with SQLSTATE SK006, before anything is stored.
-- Only new jobs are refused. What was accepted once is never lost, so retries, promoted and released jobs may pass the bound.

-- True, or the error. Enqueues ask only if one of their queues is bounded (see enqueue.sql). A queue is counted anew only once so
-- many numbers have been drawn, for whatever job in whatever queue, that it might be full by now: far from its bound it costs one look.
CREATE OR REPLACE FUNCTION skiplock._check_depth(queues text[]) RETURNS boolean
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_number CONSTANT bigint := (SELECT s.last_value FROM skiplock.job_numbers s);
    v_one record;
    v_depth integer;
BEGIN
    FOR v_one IN
        SELECT q.name, q.max_depth, n.jobs, d.counted + v_number - d.number AS most FROM (SELECT u.name, count(*) AS jobs FROM unnest($1) AS u (name) GROUP BY u.name) n
        JOIN skiplock.queues q ON q.name = n.name LEFT JOIN skiplock.depths d ON d.queue = q.name
        WHERE q.max_depth IS NOT NULL ORDER BY q.name
    LOOP
        CONTINUE WHEN v_one.most + v_one.jobs <= v_one.max_depth;
        v_depth := skiplock._depth(v_one.name, v_one.max_depth);
        IF v_depth + v_one.jobs > v_one.max_depth THEN
            RAISE EXCEPTION 'queue % is full: it holds % jobs, and % more would pass its bound of %',
                v_one.name, v_depth, v_one.jobs, v_one.max_depth USING ERRCODE = 'SK006';
        END IF;
        IF v_one.max_depth - v_depth > 100 THEN  -- else it would not last
            UPDATE skiplock.depths d SET counted = v_depth, number = v_number
            WHERE d.ctid = (SELECT x.ctid FROM skiplock.depths x WHERE x.queue = v_one.name FOR UPDATE SKIP LOCKED);
        END IF;
    END LOOP;
    RETURN true;
END $$;

-- How many jobs of a queue are ready or wait; never counts further than `most`. What others are just enqueueing is not seen, and
-- of the ready ones those that claims have passed by are left out, for the dead rows among them may be many: an estimate, if a close one.
CREATE OR REPLACE FUNCTION skiplock._depth(queue text, most integer) RETURNS integer
LANGUAGE plpgsql STABLE
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_lane record;
    v_depth integer;
BEGIN
    SELECT count(*) INTO v_depth FROM (SELECT FROM skiplock.jobs_waiting w WHERE w.queue = $1 LIMIT $2) n;
    FOR v_lane IN SELECT l.priority, l.position FROM skiplock.lanes(ARRAY[$1]) l LOOP
        EXIT WHEN v_depth >= $2;
        SELECT v_depth + count(*) INTO v_depth FROM (
            SELECT FROM skiplock.jobs_ready r
            WHERE r.queue = $1 AND r.losses = 0 AND r.priority = v_lane.priority AND r.position >= v_lane.position LIMIT $2 - v_depth) n;
    END LOOP;
    RETURN v_depth;
END $$;
