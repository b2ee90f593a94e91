-- Flow control. A job with rules carries them in `flow`, all others NULL there:
--   {"unique": key, "limits": [{"key", "slots"} | {"key", "rate", "per", "burst"}, …], "order": hold|skip, "fair": key, "weight": n}
-- A job that a limit holds up waits as `blocked` in the line of the key named by `blocked_on`, in the order of `position`.
ALTER TABLE skiplock.jobs
    ADD COLUMN flow       jsonb,
    ADD COLUMN blocked_on text,
    ADD COLUMN expires_at timestamptz;                -- not started by then: cancelled

-- A job of an ordered key has no say in when its turn comes.
CREATE INDEX jobs_waiting_line ON skiplock.jobs_waiting
    (blocked_on, (CASE WHEN flow ? 'order' THEN 0 ELSE priority END) DESC, position) WHERE state = 'blocked';
CREATE INDEX jobs_waiting_expiry ON skiplock.jobs_waiting (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX jobs_ready_expiry ON skiplock.jobs_ready (expires_at) WHERE expires_at IS NOT NULL;
CREATE INDEX jobs_ready_fair ON skiplock.jobs_ready (queue, priority, (flow ->> 'fair'), position) WHERE flow ? 'fair';

-- Who holds a unique key: the job that has it, and for how long it stays taken.
CREATE TABLE skiplock.uniques (
    key        text        PRIMARY KEY,
    job_id     bigint      NOT NULL,
    hold_until timestamptz,                           -- taken until then at least (the end of its period)
    hold_for   float8,                                -- and for so many seconds after the job has ended
    free_at    timestamptz                            -- NULL: the job is live
);
CREATE INDEX uniques_free ON skiplock.uniques (free_at) WHERE free_at IS NOT NULL;

-- The slots of limits: one row for each key and job that is ready or running under it (or keeps its place while it waits for
-- a retry). A limit is full when it has as many rows as slots: there is no counter that could be wrong.
CREATE TABLE skiplock.slots (
    key    text   NOT NULL,
    job_id bigint NOT NULL,
    PRIMARY KEY (key, job_id)
);

-- Rate limits, by the generic cell rate algorithm: `tat` is when the next start would be due if all came evenly.
CREATE TABLE skiplock.meters (
    key     text        PRIMARY KEY,
    tat     timestamptz NOT NULL,
    wake_at timestamptz                               -- jobs wait for it: look again then
) WITH (fillfactor = 50);
CREATE INDEX meters_wake ON skiplock.meters (wake_at) WHERE wake_at IS NOT NULL;

-- What limits are at present, for a name or a single key; a job's own rule counts where there is none.
CREATE TABLE skiplock.limits (
    key        text        PRIMARY KEY,               -- a name, or a name, U+001F and the value of the key
    slots      integer,
    rate       float8,
    per        float8,
    burst      integer,
    by_hand    boolean     NOT NULL DEFAULT true,
    changed_at timestamptz NOT NULL
);

-- Keys at which somebody ought to look: a slot came free, or a job was put in line. Written by whoever did that, in the same
-- transaction, so that no such word is lost; taken by the one who admits.
CREATE TABLE skiplock.nudges (
    n   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key text NOT NULL
);

-- Whoever holds this row admits; nobody else does meanwhile.
INSERT INTO skiplock.duties (name) VALUES ('admit');

-- Whoever may move jobs needs these, and may have been given rights before they were there.
DO $$
DECLARE
    v_grant text;
BEGIN
    FOR v_grant IN
        SELECT 'GRANT ' || string_agg(r.privilege_type, ', ') || ' ON skiplock.uniques, skiplock.slots, skiplock.meters, skiplock.limits, skiplock.nudges TO '
               || CASE r.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(r.grantee)) END
        FROM pg_class c, aclexplode(c.relacl) r
        WHERE c.oid = 'skiplock.jobs_ready'::regclass AND r.grantee <> c.relowner GROUP BY r.grantee
    LOOP
        EXECUTE v_grant;
    END LOOP;
END $$;
