-- Large arguments are kept once, beside the job: a job is written anew at each of its moves (enqueue, claim, settle), and took
-- its arguments along each time. `args` of a job that is NULL means: in here (see produce/payload.sql).
CREATE TABLE skiplock.payloads (
    job_id bigint PRIMARY KEY,
    args   json   NOT NULL
);

ALTER TABLE skiplock.jobs ALTER COLUMN args DROP NOT NULL;

-- Whoever may move jobs needs their arguments, and may have been given rights before there was this table.
DO $$
DECLARE
    v_grant text;
BEGIN
    FOR v_grant IN
        SELECT 'GRANT ' || string_agg(r.privilege_type, ', ') || ' ON skiplock.payloads TO '
               || CASE r.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(r.grantee)) END
        FROM pg_class c, aclexplode(c.relacl) r
        WHERE c.oid = 'skiplock.jobs_ready'::regclass AND r.grantee <> c.relowner GROUP BY r.grantee
    LOOP
        EXECUTE v_grant;
    END LOOP;
END $$;
