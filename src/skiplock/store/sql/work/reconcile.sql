-- Compare what a worker holds with what the database thinks it holds. They differ after an asynchronous failover, which
-- undoes the last commits although they were acknowledged, and after a crash of the server, which undoes claims (they do not
-- wait for the disk).
--   the first row  timeline only: another one means another server, or this one restored (NULL: cannot be known here)
--   held = true    shown, and not running under this worker and lease: its claim was undone, or it has been settled meanwhile
--   held = false   running under this worker, and not shown: its settle was undone, or the answer of its claim was lost
-- The caller must have no claim in flight, and shows every outcome that has not been acknowledged.
CREATE OR REPLACE FUNCTION skiplock.reconcile(worker bigint, ids bigint[], leases bigint[])
RETURNS TABLE (timeline text, job_id bigint, job_lease bigint, held boolean)
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    IF pg_is_in_recovery() THEN
        RAISE EXCEPTION 'this server is a standby' USING ERRCODE = '25006';
    END IF;
    BEGIN
        timeline := left(pg_walfile_name(pg_current_wal_lsn()), 8);
    EXCEPTION WHEN insufficient_privilege OR undefined_function OR feature_not_supported OR object_not_in_prerequisite_state THEN
        timeline := NULL;  -- some managed servers hide their log; a cut connection still tells
    END;
    RETURN NEXT;
    RETURN QUERY
    SELECT NULL::text, coalesce(shown.id, mine.id), coalesce(shown.lease, mine.lease), shown.id IS NOT NULL
    FROM (SELECT r.id, r.lease FROM skiplock.jobs_running r WHERE r.worker = $1) mine
    FULL JOIN unnest($2, $3) AS shown (id, lease) ON shown.id = mine.id AND shown.lease = mine.lease
    WHERE shown.id IS NULL OR mine.id IS NULL;
END $$;
