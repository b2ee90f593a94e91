-- Large arguments (produce/payload.sql) of jobs that go with a whole table. Nothing else needs tidying: a payload is made with its
-- job, in one statement, and `delete` takes both, so none of our own verbs can leave one behind.
--
-- Both look at `batch` jobs a call and answer how many payloads were deleted, and `upto`: what to give as `after` next time,
-- NULL when all is done. Each call is a small transaction of its own, and may be repeated.

-- Delete the large arguments of the jobs in `past`, a day of history that was detached (ALTER TABLE … DETACH PARTITION) and is
-- about to be dropped. Refused while it is attached: a cancelled job could be retried after its arguments are gone.
CREATE OR REPLACE FUNCTION skiplock.drop_payloads(past regclass, after bigint DEFAULT 0, batch integer DEFAULT 1000)
RETURNS TABLE (dropped bigint, upto bigint)
LANGUAGE plpgsql
AS $$
BEGIN
    IF (SELECT c.relispartition FROM pg_class c WHERE c.oid = past) THEN
        RAISE EXCEPTION 'drop_payloads: % is still a part of the jobs; detach it first', past USING ERRCODE = 'SK003';
    END IF;
    RETURN QUERY EXECUTE '
        WITH seen AS MATERIALIZED (
            SELECT j.id FROM ' || past || ' j WHERE j.id > $1 ORDER BY j.id LIMIT $2
        ), gone AS (
            DELETE FROM skiplock.payloads p WHERE p.job_id = ANY (ARRAY(SELECT s.id FROM seen s)) RETURNING 1
        )
        SELECT (SELECT count(*) FROM gone), (SELECT max(s.id) FROM seen s HAVING count(*) = $2)' USING after, batch;
END $$;

-- Delete large arguments that have no job: after jobs were deleted by hand (DELETE FROM skiplock.jobs …, DROP TABLE of a day).
CREATE OR REPLACE FUNCTION skiplock.sweep_payloads(after bigint DEFAULT 0, batch integer DEFAULT 1000)
RETURNS TABLE (dropped bigint, upto bigint)
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off
AS $$
BEGIN
    -- One statement, so one snapshot: a job that moves meanwhile is seen in one of its two places.
    RETURN QUERY
    WITH seen AS MATERIALIZED (
        SELECT p.job_id FROM skiplock.payloads p WHERE p.job_id > $1 ORDER BY p.job_id LIMIT $2
    ), gone AS (
        DELETE FROM skiplock.payloads p
        WHERE p.job_id = ANY (ARRAY(
            SELECT s.job_id FROM seen s
            EXCEPT SELECT f.id FROM skiplock.find(ARRAY(SELECT s.job_id FROM seen s)) f))
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM gone), (SELECT max(s.job_id) FROM seen s HAVING count(*) = $2);
END $$;
