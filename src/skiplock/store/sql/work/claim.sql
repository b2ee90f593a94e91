-- Claim up to rooms[i] jobs of queues[i], best priority and longest ready first, and start an attempt of each.
--
-- `lanes_*` are the cursors: for each (queue, priority) lane a position to seek past, in order of falling priority within
-- a queue. NULL: search from the left end of the index, which finds everything but walks over dead entries while
-- someone's old snapshot pins them; the caller bounds how often it does that (skiplock.core.cursor).
-- `lease` is drawn by the caller (63 random bits), so that a claim whose answer was lost in a cut connection can be given
-- back by it (release_claim), and so that no crash or failover can make the fence repeat.
--
-- The rows are picked by one aggregate: it runs exactly once and locks no more than was asked for.
-- A bare `IN (SELECT … LIMIT)` may be run twice by the planner. The planner settings keep that plan whatever the
-- statistics say: these tables turn over within seconds, so there never are good ones.
CREATE OR REPLACE FUNCTION skiplock.claim(
    worker           bigint,
    lease            bigint,
    queues           text[],
    rooms            integer[],
    tasks            text[],
    lane_queues      text[]     DEFAULT NULL,
    lane_priorities  smallint[] DEFAULT NULL,
    lane_positions   bigint[]   DEFAULT NULL
) RETURNS TABLE (
    id bigint, job_lease bigint, queue text, priority smallint, "position" bigint, task text, args json, attempt integer,
    max_attempts integer, losses smallint, enqueued_at timestamptz, meta json, options json
)
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := skiplock.now();
    v_tasks text[] := skiplock._not_paused($5, v_now);
    v_places tid[];
BEGIN
    IF $6 IS NULL THEN
        SELECT array_agg(picked.place) INTO v_places
        FROM unnest($3, $4) AS u (queue, room) LEFT JOIN skiplock.queues p ON p.name = u.queue,
                 LATERAL (SELECT u.queue,
                                 CASE WHEN p.paused_at IS NOT NULL AND (p.resume_at IS NULL OR p.resume_at > v_now) THEN 0
                                      WHEN p.slots IS NOT NULL THEN skiplock._queue_room(u.queue, u.room) ELSE u.room END AS room OFFSET 0) q,
                 LATERAL (SELECT r.ctid AS place FROM skiplock.jobs_ready r
                          WHERE r.queue = q.queue AND r.losses = 0 AND r.task = ANY (v_tasks)
                            AND (r.expires_at IS NULL OR r.expires_at > v_now)
                          ORDER BY r.priority DESC, r.position
                          LIMIT q.room FOR UPDATE SKIP LOCKED) picked
        WHERE u.room > 0;
    ELSE
        -- Nested loops pull one lane after the other, and the outer limit stops them: what is not needed is not locked.
        SELECT array_agg(picked.place) INTO v_places
        FROM unnest($3, $4) AS u (queue, room) LEFT JOIN skiplock.queues p ON p.name = u.queue,
                 LATERAL (SELECT u.queue,
                                 CASE WHEN p.paused_at IS NOT NULL AND (p.resume_at IS NULL OR p.resume_at > v_now) THEN 0
                                      WHEN p.slots IS NOT NULL THEN skiplock._queue_room(u.queue, u.room) ELSE u.room END AS room OFFSET 0) q,
                 LATERAL (SELECT seen.place
                          FROM unnest($6, $7, $8) AS lane (queue, priority, position),
                               LATERAL (SELECT r.ctid AS place FROM skiplock.jobs_ready r
                                        WHERE r.queue = lane.queue AND r.priority = lane.priority
                                          AND r.position >= lane.position AND r.losses = 0 AND r.task = ANY (v_tasks)
                                          AND (r.expires_at IS NULL OR r.expires_at > v_now)
                                        ORDER BY r.position
                                        LIMIT q.room FOR UPDATE SKIP LOCKED) seen
                          WHERE lane.queue = q.queue
                          LIMIT q.room) picked
        WHERE u.room > 0;
    END IF;
    IF v_places IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT * FROM skiplock._start($1, $2, v_places, v_now, skiplock._limited($3));
END $$;

-- Those of the tasks that are not paused.
CREATE OR REPLACE FUNCTION skiplock._not_paused(tasks text[], at timestamptz) RETURNS text[]
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN EXISTS (SELECT FROM skiplock.paused_tasks)
        THEN ARRAY(SELECT u.task FROM unnest($1) AS u (task)
                   WHERE NOT EXISTS (SELECT FROM skiplock.paused_tasks t WHERE t.task = u.task AND (t.resume_at IS NULL OR t.resume_at > $2)))
        ELSE $1 END
$$;

-- Those of the queues that have slots of their own. Looked up once a claim: told by each row picked, it cost 0.12 µs a job.
CREATE OR REPLACE FUNCTION skiplock._limited(queues text[]) RETURNS text[]
LANGUAGE sql STABLE
AS $$ SELECT array_agg(p.name) FROM skiplock.queues p WHERE p.name = ANY ($1) AND p.slots IS NOT NULL $$;

-- How many more may start in a queue with slots of its own, at most `room`. One at a time finds out, who holds the queue's row until
-- the jobs it takes are seen to run: others get nothing meanwhile.
CREATE OR REPLACE FUNCTION skiplock._queue_room(queue text, room integer) RETURNS bigint
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_slots bigint;
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN 0;  -- an old snapshot does not show what others have started
    END IF;
    SELECT p.slots INTO v_slots FROM skiplock.queues p WHERE p.name = $1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    IF v_slots IS NULL THEN
        RETURN $2;  -- lifted this moment
    END IF;
    RETURN least($2, v_slots - (
        SELECT count(*) FROM (SELECT FROM skiplock.jobs_running r WHERE r.flow ? 'in_queue' AND r.flow ->> 'in_queue' = $1 LIMIT v_slots) n));
END $$;

-- Move these ready rows (locked by the caller) to running: the attempt is spent here. `limited`: queues with slots of their own;
-- their jobs say so in their flow, for whoever ends them.
CREATE OR REPLACE FUNCTION skiplock._start(worker bigint, lease bigint, places tid[], at timestamptz, limited text[] DEFAULT NULL)
RETURNS TABLE (
    id bigint, job_lease bigint, queue text, priority smallint, "position" bigint, task text, args json, attempt integer,
    max_attempts integer, losses smallint, enqueued_at timestamptz, meta json, options json
)
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH gone AS (
        DELETE FROM skiplock.jobs_ready r WHERE r.ctid = ANY ($3) RETURNING r.*
    ), started AS (
        INSERT INTO skiplock.jobs_running AS j
            (id, position, lease, worker, enqueued_at, run_at, started_at, attempt, max_attempts, priority, losses, state,
             queue, task, args, tags, meta, options, error, flow, expires_at)
        SELECT g.id, g.position, $2, $1, g.enqueued_at, g.run_at, $4, g.attempt + 1, g.max_attempts, g.priority, g.losses,
               'running', g.queue, g.task, g.args, g.tags, g.meta, g.options, g.error,
               CASE WHEN g.queue = ANY ($5) THEN coalesce(g.flow, '{}') || jsonb_build_object('in_queue', g.queue)
                    WHEN g.flow ? 'in_queue' THEN nullif(g.flow - 'in_queue', '{}') ELSE g.flow END, g.expires_at
        FROM gone g
        RETURNING j.id, j.lease, j.queue, j.priority, j.position, j.task,
                  coalesce(j.args, (SELECT p.args FROM skiplock.payloads p WHERE p.job_id = j.id)), -- a look only where it is NULL
                  j.attempt, j.max_attempts, j.losses, j.enqueued_at, j.meta, j.options
    )
    SELECT * FROM started s ORDER BY s.priority DESC, s.position;
END $$;

-- Claim jobs that were lost with a worker before, one level of care at a time. `losses` = 1: into a slot that is free now,
-- never ahead. `alone`: one that was lost at least twice, to be run with nothing else in the process.
CREATE OR REPLACE FUNCTION skiplock.claim_suspects(
    worker bigint, lease bigint, queues text[], rooms integer[], tasks text[], alone boolean
) RETURNS TABLE (
    id bigint, job_lease bigint, queue text, priority smallint, "position" bigint, task text, args json, attempt integer,
    max_attempts integer, losses smallint, enqueued_at timestamptz, meta json, options json
)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := skiplock.now();
    v_tasks text[] := skiplock._not_paused($5, v_now);
    v_places tid[];
BEGIN
    SELECT array_agg(p.place) INTO v_places FROM (
        SELECT picked.place
        FROM unnest($3, $4) AS u (queue, room),
             -- In here, so that the queues come in the order given.
             LATERAL (SELECT u.queue,
                             CASE WHEN p.paused_at IS NOT NULL AND (p.resume_at IS NULL OR p.resume_at > v_now) THEN 0
                                  WHEN p.slots IS NOT NULL THEN skiplock._queue_room(u.queue, u.room) ELSE u.room END AS room
                      FROM (SELECT) one LEFT JOIN skiplock.queues p ON p.name = u.queue OFFSET 0) q,
             LATERAL (SELECT r.ctid AS place FROM skiplock.jobs_ready r
                      WHERE r.queue = q.queue AND r.losses > 0 AND r.task = ANY (v_tasks)
                        AND CASE WHEN $6 THEN r.losses > 1 ELSE r.losses = 1 END
                      ORDER BY r.position
                      LIMIT q.room FOR UPDATE SKIP LOCKED) picked
        WHERE u.room > 0
        LIMIT CASE WHEN $6 THEN 1 END) p;
    IF v_places IS NULL THEN
        RETURN;
    END IF;
    RETURN QUERY SELECT * FROM skiplock._start($1, $2, v_places, v_now, skiplock._limited($3));
END $$;

-- Give back a claim whose answer never arrived: whatever runs under that lease was not started. Returns how many.
CREATE OR REPLACE FUNCTION skiplock.release_claim(worker bigint, lease bigint) RETURNS integer
LANGUAGE plpgsql
AS $$
DECLARE
    v_ids bigint[] := ARRAY(SELECT r.id FROM skiplock.jobs_running r WHERE r.worker = $1 AND r.lease = $2 ORDER BY r.id);
BEGIN
    RETURN cardinality(skiplock._release(v_ids, array_fill($2, ARRAY[cardinality(v_ids)])));
END $$;

-- Where a worker that starts may go on: how far the claims of these queues had got when workers last told (see beat), and
-- between those lanes any that nobody has told of, so that no priority waits for one below it. Known lanes are skipped,
-- not walked: their left ends may be full of dead entries.
CREATE OR REPLACE FUNCTION skiplock.lanes(queues text[]) RETURNS TABLE (queue text, priority smallint, "position" bigint)
LANGUAGE plpgsql STABLE
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_queue text;
    v_known record;
    v_above integer;
BEGIN
    FOREACH v_queue IN ARRAY queues LOOP
        v_above := 32768;
        FOR v_known IN
            SELECT l.priority::integer, l.position FROM skiplock.lanes l WHERE l.queue = v_queue
            UNION ALL SELECT -32769, NULL
            ORDER BY 1 DESC
        LOOP
            queue := v_queue;
            LOOP
                SELECT r.priority, r.position INTO priority, position FROM skiplock.jobs_ready r
                WHERE r.queue = v_queue AND r.losses = 0 AND r.priority < v_above AND r.priority > v_known.priority
                ORDER BY r.priority DESC, r.position LIMIT 1;
                EXIT WHEN NOT FOUND;
                RETURN NEXT;
                v_above := priority;
            END LOOP;
            IF v_known.position IS NOT NULL THEN
                priority := v_known.priority;
                position := v_known.position;
                RETURN NEXT;
            END IF;
            v_above := v_known.priority;
        END LOOP;
    END LOOP;
END $$;
