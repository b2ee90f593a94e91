-- Unique keys. `uniques` has one row a key, inserted by whoever enqueues and taken away by the very statement that ends the job,
-- so there is no moment at which two jobs can have one key, and none at which a key is left with nobody.

-- Take keys for jobs: answers for each key who has it now. A key that another transaction is about to take or to free is waited
-- for; one whose job is live is only read, never locked, so that a transaction left open holds up no worker. Keys are taken in
-- their own order whatever the caller's is, so that two batches never wait for each other.
CREATE OR REPLACE FUNCTION skiplock._take_unique(
    keys text[], ids bigint[], hold_untils timestamptz[], hold_fors float8[]
) RETURNS TABLE (key text, job_id bigint)
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
    v_left text[] := $1;
    v_found bigint;
BEGIN
    FOR v_try IN 1..20 LOOP
        v_now := skiplock.now();
        INSERT INTO skiplock.uniques AS u (key, job_id, hold_until, hold_for)
        SELECT n.key, n.job_id, n.hold_until, n.hold_for
        FROM unnest($1, $2, $3, $4) AS n (key, job_id, hold_until, hold_for)
        WHERE n.key = ANY (v_left) ORDER BY n.key
        ON CONFLICT (key) DO NOTHING;
        -- Keys kept for a while after their job had ended, and that while is over.
        PERFORM u.key FROM skiplock.uniques u WHERE u.key = ANY (v_left) AND u.free_at <= v_now ORDER BY u.key FOR UPDATE;
        UPDATE skiplock.uniques u
        SET job_id = n.job_id, hold_until = n.hold_until, hold_for = n.hold_for, free_at = NULL
        FROM unnest($1, $2, $3, $4) AS n (key, job_id, hold_until, hold_for)
        WHERE u.key = n.key AND u.key = ANY (v_left) AND u.free_at <= v_now;
        RETURN QUERY SELECT u.key, u.job_id FROM skiplock.uniques u WHERE u.key = ANY (v_left);
        -- A key that was there a moment ago and is gone now has just come free: once more.
        v_left := ARRAY(SELECT l.key FROM unnest(v_left) AS l (key)
                        WHERE NOT EXISTS (SELECT FROM skiplock.uniques u WHERE u.key = l.key));
        EXIT WHEN v_left = '{}';
    END LOOP;
END $$;

-- The jobs have ended: their keys are free, or free later.
CREATE OR REPLACE FUNCTION skiplock._free_unique(keys text[], ids bigint[]) RETURNS void
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := skiplock.now();
BEGIN
    PERFORM u.key FROM skiplock.uniques u WHERE u.key = ANY ($1) ORDER BY u.key FOR UPDATE;
    UPDATE skiplock.uniques u
    SET free_at = greatest(u.hold_until, v_now + make_interval(secs => coalesce(u.hold_for, 0)))
    FROM unnest($1, $2) AS e (key, job_id)
    WHERE u.key = e.key AND u.job_id = e.job_id AND u.free_at IS NULL AND (u.hold_until > v_now OR u.hold_for > 0);
    DELETE FROM skiplock.uniques u USING unnest($1, $2) AS e (key, job_id)
    WHERE u.key = e.key AND u.job_id = e.job_id AND u.free_at IS NULL;
END $$;

-- Forget keys that came free, at most `batch`. Nothing depends on it: they count as free already.
CREATE OR REPLACE FUNCTION skiplock.sweep_uniques(batch integer DEFAULT 1000) RETURNS integer
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_rows integer;
BEGIN
    DELETE FROM skiplock.uniques u WHERE u.ctid = ANY (ARRAY(
        SELECT f.ctid FROM skiplock.uniques f WHERE f.free_at <= skiplock.now() ORDER BY f.free_at LIMIT $1 FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows;
END $$;
