-- Queues: paused until a time, bounded, ageing; and paused tasks. All tables are tiny, and empty where nobody asked for any of it.
ALTER TABLE skiplock.queues
    ADD COLUMN resume_at timestamptz,                 -- paused until then; NULL: until somebody resumes it
    ADD COLUMN max_depth integer CHECK (max_depth > 0); -- an enqueue beyond so many ready and waiting jobs is refused
CREATE INDEX queues_bounded ON skiplock.queues (name) WHERE max_depth IS NOT NULL;
CREATE INDEX queues_resume ON skiplock.queues (resume_at) WHERE resume_at IS NOT NULL;

CREATE TABLE skiplock.paused_tasks (
    task      text        PRIMARY KEY,
    paused_at timestamptz NOT NULL,
    resume_at timestamptz
);
CREATE INDEX paused_tasks_resume ON skiplock.paused_tasks (resume_at) WHERE resume_at IS NOT NULL;

-- Queues whose jobs rise by one in priority for each `every` seconds that they are ready and not claimed. Not a column of queues,
-- whose rows claims lock.
CREATE TABLE skiplock.ageing (
    queue   text        PRIMARY KEY,
    every   float8      NOT NULL CHECK (every BETWEEN 1 AND 31622400),
    look_at timestamptz NOT NULL                      -- when the leader looks at it next
);

-- What a bounded queue held when it was counted last, and the number drawn latest by then. Written by enqueues, and never waited for.
CREATE TABLE skiplock.depths (
    queue   text    PRIMARY KEY,
    counted integer NOT NULL,
    number  bigint  NOT NULL
) WITH (fillfactor = 50);

-- A bounded queue counts what waits in it.
CREATE INDEX jobs_waiting_queue ON skiplock.jobs_waiting (queue);

-- Whoever works has been given rights before there were these tables.
DO $$
DECLARE
    v_grant text;
BEGIN
    FOR v_grant IN
        SELECT 'GRANT ' || string_agg(r.privilege_type, ', ') || ' ON skiplock.paused_tasks, skiplock.ageing, skiplock.depths TO '
               || CASE r.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(r.grantee)) END
        FROM pg_class c, aclexplode(c.relacl) r
        WHERE c.oid = 'skiplock.queues'::regclass AND r.grantee <> c.relowner GROUP BY r.grantee
    LOOP
        EXECUTE v_grant;
    END LOOP;
END $$;
