-- The value recorded for this job's step, as JSON text; no row if it was not completed yet.
CREATE OR REPLACE FUNCTION skiplock.recall(id bigint, name text) RETURNS SETOF json
LANGUAGE sql
AS $$ SELECT s.value FROM skiplock.steps s WHERE s.job_id = $1 AND s.name = $2 $$;

-- Record that a step was completed, with its value. Fenced: only the attempt that owns the job may. The row lock makes a
-- rescue that comes meanwhile wait until this transaction has ended. Raises SK004 if the lease is lost.
CREATE OR REPLACE FUNCTION skiplock.record(id bigint, lease bigint, name text, value json) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_attempt integer;
BEGIN
    SELECT r.attempt INTO v_attempt FROM skiplock.jobs_running r WHERE r.id = $1 AND r.lease = $2 FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'job %, step %: this attempt no longer owns the job', $1, $3 USING ERRCODE = 'SK004';
    END IF;
    INSERT INTO skiplock.steps (job_id, name, value, attempt, recorded_at) VALUES ($1, $3, $4, v_attempt, skiplock.now());
END $$;
