CREATE OR REPLACE FUNCTION skiplock._ready_queues() RETURNS TABLE (queue text)
LANGUAGE sql STABLE
SET jit = off SET enable_seqscan = off
AS $$
    WITH RECURSIVE q AS (
        (SELECT r.queue FROM skiplock.jobs_ready r WHERE r.losses = 0 ORDER BY r.queue LIMIT 1)
        UNION ALL
        SELECT (SELECT r.queue FROM skiplock.jobs_ready r WHERE r.losses = 0 AND r.queue > q.queue ORDER BY r.queue LIMIT 1)
        FROM q WHERE q.queue IS NOT NULL
    )
    SELECT q.queue FROM q WHERE q.queue IS NOT NULL
$$;

CREATE OR REPLACE FUNCTION skiplock._lanes() RETURNS TABLE (queue text, priority smallint)
LANGUAGE sql STABLE
SET jit = off SET enable_seqscan = off
AS $$
    WITH RECURSIVE line AS (
        SELECT q.queue, (SELECT r.priority FROM skiplock.jobs_ready r WHERE r.queue = q.queue AND r.losses = 0
                         ORDER BY r.priority DESC LIMIT 1) AS priority
        FROM skiplock._ready_queues() q
        UNION ALL
        SELECT l.queue, (SELECT r.priority FROM skiplock.jobs_ready r
                         WHERE r.queue = l.queue AND r.losses = 0 AND r.priority < l.priority
                         ORDER BY r.priority DESC LIMIT 1)
        FROM line l WHERE l.priority IS NOT NULL
    )
    SELECT l.queue, l.priority FROM line l WHERE l.priority IS NOT NULL
$$;

-- Where a ready job lies. A job that went straight to ready has position = id, so one probe per (queue, priority) lane
-- finds it; one that came back is in the index of moved jobs. Lanes are enumerated by skipping through the index.
CREATE OR REPLACE FUNCTION skiplock._ready_places(ids bigint[]) RETURNS TABLE (place tid)
LANGUAGE sql STABLE
SET jit = off SET enable_seqscan = off
AS $$
    SELECT r.ctid FROM skiplock.jobs_ready r WHERE r.id = ANY (ids) AND r.position <> r.id
    UNION ALL
    SELECT r.place FROM unnest(ids) AS u (id), skiplock._lanes() l,
        -- With LIMIT, and one position at a time: a planner that knows nothing of the table would read whole lanes.
        LATERAL (SELECT r.ctid AS place, r.id FROM skiplock.jobs_ready r
                 WHERE r.queue = l.queue AND r.priority = l.priority AND r.position = u.id AND r.losses = 0 LIMIT 1) r
    WHERE r.id = u.id
$$;

-- Jobs by id, in whatever state, as rows of jobs; with their arguments even where those are kept beside the job.
CREATE OR REPLACE FUNCTION skiplock.find(ids bigint[]) RETURNS SETOF skiplock.jobs
LANGUAGE sql STABLE
SET jit = off SET enable_seqscan = off
AS $$
    SELECT j.id, j.position, j.lease, j.worker, j.enqueued_at, j.run_at, j.started_at, j.finished_at, j.attempt, j.max_attempts,
           j.priority, j.losses, j.state, j.queue, j.task,
           coalesce(j.args, (SELECT p.args FROM skiplock.payloads p WHERE p.job_id = j.id)),
           j.tags, j.meta, j.options, j.result, j.error, j.flow, j.blocked_on, j.expires_at
    FROM (
        SELECT * FROM skiplock.jobs_ready r WHERE r.ctid = ANY (ARRAY(SELECT p.place FROM skiplock._ready_places(ids) p))
        UNION ALL SELECT * FROM skiplock.jobs_waiting w WHERE w.id = ANY (ids)
        UNION ALL SELECT * FROM skiplock.jobs_running r WHERE r.id = ANY (ids)
        UNION ALL SELECT * FROM skiplock.jobs_dead d WHERE d.id = ANY (ids)
        UNION ALL SELECT * FROM skiplock.jobs_finished f WHERE f.id = ANY (ids)
    ) j
$$;
