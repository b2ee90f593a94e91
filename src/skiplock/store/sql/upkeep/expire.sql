-- Cancel jobs that were not started in time, at most `batch`; answers how many. A claim does not take them any more by then.
CREATE OR REPLACE FUNCTION skiplock.expire(batch integer DEFAULT 1000) RETURNS integer
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := skiplock.now();
    v_job skiplock.jobs;
    v_rows integer := 0;
BEGIN
    IF (SELECT w.expires_at <= v_now FROM skiplock.jobs_waiting w WHERE w.expires_at IS NOT NULL ORDER BY w.expires_at LIMIT 1) THEN
        FOR v_job IN
            DELETE FROM skiplock.jobs_waiting w WHERE w.ctid = ANY (ARRAY(
                SELECT x.ctid FROM skiplock.jobs_waiting x WHERE x.expires_at <= v_now ORDER BY x.expires_at LIMIT $1 FOR UPDATE SKIP LOCKED))
            RETURNING *
        LOOP
            v_job.error := 'expired: not started in time';
            PERFORM skiplock._cancelled(v_job);
            v_rows := v_rows + 1;
        END LOOP;
    END IF;
    IF (SELECT r.expires_at <= v_now FROM skiplock.jobs_ready r WHERE r.expires_at IS NOT NULL ORDER BY r.expires_at LIMIT 1) THEN
        FOR v_job IN
            DELETE FROM skiplock.jobs_ready r WHERE r.ctid = ANY (ARRAY(
                SELECT x.ctid FROM skiplock.jobs_ready x WHERE x.expires_at <= v_now ORDER BY x.expires_at LIMIT $1 FOR UPDATE SKIP LOCKED))
            RETURNING *
        LOOP
            v_job.error := 'expired: not started in time';
            PERFORM skiplock._cancelled(v_job);
            v_rows := v_rows + 1;
        END LOOP;
    END IF;
    RETURN v_rows;
END $$;

-- When the next one expires.
CREATE OR REPLACE FUNCTION skiplock._next_expiry() RETURNS timestamptz
LANGUAGE sql STABLE
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT least(
        (SELECT w.expires_at FROM skiplock.jobs_waiting w WHERE w.expires_at IS NOT NULL ORDER BY w.expires_at LIMIT 1),
        (SELECT r.expires_at FROM skiplock.jobs_ready r WHERE r.expires_at IS NOT NULL ORDER BY r.expires_at LIMIT 1))
$$;
