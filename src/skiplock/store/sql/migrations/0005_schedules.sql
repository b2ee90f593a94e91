-- Schedules: what is to be enqueued when. One row each, whether declared in code or made by hand; its rule is computed by
-- skiplock/core/schedule.py, since PostgreSQL knows no cron. A row without a living declaration is orphaned and stops.
CREATE TABLE skiplock.schedules (
    name          text        PRIMARY KEY,
    task          text        NOT NULL,
    args          json        NOT NULL DEFAULT '{}',
    queue         text        NOT NULL DEFAULT 'default',
    priority      integer     NOT NULL DEFAULT 0,
    max_attempts  integer     NOT NULL DEFAULT 10,
    tags          text[],
    meta          json,
    options       json,
    cron          text,                                -- one of the two
    every         float8,                              -- seconds
    zone          text        NOT NULL DEFAULT 'UTC',  -- of the IANA database; counts for cron
    anchor        timestamptz,                         -- from where `every` is counted; NULL: 1970-01-01
    start_at      timestamptz,                         -- in force from here on
    end_at        timestamptz,                         -- until before this
    missed        text        NOT NULL DEFAULT 'latest' CHECK (missed IN ('none', 'latest', 'all')),
    missed_most   integer     NOT NULL DEFAULT 100     CHECK (missed_most BETWEEN 1 AND 100),
    overlap       text        NOT NULL DEFAULT 'allow' CHECK (overlap IN ('allow', 'skip', 'queue', 'cancel')),
    waiting_most  integer     NOT NULL DEFAULT 1       CHECK (waiting_most BETWEEN 1 AND 100),
    jitter        float8      NOT NULL DEFAULT 0       CHECK (jitter BETWEEN 0 AND 86400),
    declared      jsonb,                               -- as the code says; NULL: made by hand
    declared_by   bigint,                              -- the worker whose declaration that is
    changed       jsonb,                               -- what people changed of it; kept until reset
    paused_at     timestamptz,
    orphaned_at   timestamptz,                         -- since when no living worker declares it
    created_at    timestamptz NOT NULL,
    checked_until timestamptz NOT NULL,                -- every fire until here has been dealt with
    next_fire     timestamptz,                         -- NULL: to be computed, or never again
    wake_at       timestamptz NOT NULL,                -- when someone must look at this row
    waiting       timestamptz[] NOT NULL DEFAULT '{}', -- fires that wait for the end of the last job (overlap: queue)
    last_fire     timestamptz,
    last_made_at  timestamptz,
    last_job      bigint,
    made          bigint      NOT NULL DEFAULT 0,      -- jobs so far
    skipped       bigint      NOT NULL DEFAULT 0,      -- fires without a job: the last one had not ended
    passed_over   bigint      NOT NULL DEFAULT 0,      -- fires without a job: missed
    problem       text,                                -- why it cannot fire; it is tried again every minute
    CHECK ((cron IS NULL) <> (every IS NULL)),
    CHECK (every BETWEEN 1 AND 31622400),
    -- What Python could not read.
    CHECK (start_at BETWEEN '1900-01-01Z' AND '9999-01-01Z' AND end_at BETWEEN '1900-01-01Z' AND '9999-01-01Z'
           AND anchor BETWEEN '1900-01-01Z' AND '9999-01-01Z')
) WITH (fillfactor = 70);
CREATE INDEX schedules_wake ON skiplock.schedules (wake_at);

-- Which worker declares what. Gone with the worker's row, however that goes.
CREATE TABLE skiplock.schedule_declarations (
    worker   bigint      NOT NULL REFERENCES skiplock.workers (id) ON DELETE CASCADE,
    schedule text        NOT NULL,
    spec     jsonb       NOT NULL,
    since    timestamptz NOT NULL,                     -- when that process started
    PRIMARY KEY (worker, schedule)
);

-- Whoever works has been given rights before there were these tables.
DO $$
DECLARE
    v_grant text;
BEGIN
    FOR v_grant IN
        SELECT 'GRANT ' || string_agg(r.privilege_type, ', ') || ' ON skiplock.schedules, skiplock.schedule_declarations TO '
               || CASE r.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(r.grantee)) END
        FROM pg_class c, aclexplode(c.relacl) r
        WHERE c.oid = 'skiplock.workers'::regclass AND r.grantee <> c.relowner GROUP BY r.grantee
    LOOP
        EXECUTE v_grant;
    END LOOP;
END $$;
