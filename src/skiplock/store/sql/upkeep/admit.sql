-- Limits. A job under limits never goes to ready by itself: it stands in the line of a key (`blocked_on`) until `admit` lets it in.
-- `admit` is run by one at a time, who holds the row 'admit' of duties: slots are added by nobody else, and taken away by whoever
-- ends a job, so a count of slots can only be too high, never too low, and no limit is ever exceeded.

-- The rule in force for a key: changed by hand for that very key, or for the name, or else what the job says.
CREATE OR REPLACE FUNCTION skiplock._rule(key text, own jsonb) RETURNS jsonb
LANGUAGE sql STABLE
AS $$
    SELECT coalesce(
        (SELECT to_jsonb(l) FROM skiplock.limits l WHERE l.key = $1),
        (SELECT to_jsonb(l) FROM skiplock.limits l WHERE l.key = split_part($1, E'\x1f', 1)),
        $2)
$$;

-- How many more may start under a key now.
CREATE OR REPLACE FUNCTION skiplock._room(key text, rule jsonb, at timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_slots integer := (rule ->> 'slots')::integer;
    v_rate float8 := (rule ->> 'rate')::float8;
    v_gap float8;
    v_ahead float8;
BEGIN
    IF v_slots IS NOT NULL THEN
        RETURN greatest(0, v_slots - (SELECT count(*) FROM skiplock.slots s WHERE s.key = $1));
    END IF;
    IF v_rate IS NULL THEN
        RETURN 1000000;
    END IF;
    IF v_rate <= 0 THEN
        RETURN 0;
    END IF;
    v_gap := (rule ->> 'per')::float8 / v_rate;
    v_ahead := coalesce((SELECT extract(epoch FROM m.tat - $3) FROM skiplock.meters m WHERE m.key = $1), 0);
    RETURN greatest(0, floor(coalesce((rule ->> 'burst')::integer, 1) - greatest(v_ahead, 0) / v_gap + 1e-6))::bigint;
END $$;

-- `number` have just been let in under a rate.
CREATE OR REPLACE FUNCTION skiplock._count_start(key text, rule jsonb, at timestamptz, number bigint) RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO skiplock.meters AS m (key, tat)
    SELECT $1, $3 + make_interval(secs => $4 * (rule ->> 'per')::float8 / (rule ->> 'rate')::float8)
    ON CONFLICT (key) DO UPDATE
    SET tat = greatest(m.tat, $3) + make_interval(secs => $4 * (rule ->> 'per')::float8 / (rule ->> 'rate')::float8)
$$;

-- Jobs have left: `flows` are their rules with their ids. Their slots come free (an ordered key keeps its place for a retry) and,
-- when `ended`, their unique keys. `admits`: let the next ones in at once, unless somebody else is at it.
CREATE OR REPLACE FUNCTION skiplock._let_go(flows jsonb, ended boolean, admits boolean) RETURNS void
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_keys text[];
    v_ids bigint[];
BEGIN
    IF ended THEN
        SELECT array_agg(f ->> 'unique'), array_agg((f ->> 'id')::bigint) INTO v_keys, v_ids
        FROM jsonb_array_elements($1) f WHERE f ? 'unique';
        IF v_keys IS NOT NULL THEN
            PERFORM skiplock._free_unique(v_keys, v_ids);
        END IF;
    END IF;
    SELECT array_agg(l ->> 'key'), array_agg((f ->> 'id')::bigint) INTO v_keys, v_ids
    FROM jsonb_array_elements($1) f, jsonb_array_elements(f -> 'limits') l
    WHERE l ? 'slots' AND ($2 OR f ->> 'order' IS DISTINCT FROM 'hold');
    IF v_keys IS NULL THEN
        RETURN;
    END IF;
    WITH gone AS (
        DELETE FROM skiplock.slots s WHERE s.ctid = ANY (ARRAY(
            SELECT h.place FROM unnest(v_keys, v_ids) AS u (key, id),
                LATERAL (SELECT x.ctid AS place FROM skiplock.slots x WHERE x.key = u.key AND x.job_id = u.id LIMIT 1) h))
        RETURNING s.key
    )
    INSERT INTO skiplock.nudges (key) SELECT DISTINCT g.key FROM gone g;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF admits THEN
        PERFORM skiplock.admit();
    ELSE
        PERFORM skiplock._ring_timer(skiplock.now());
    END IF;
END $$;

-- Let in what the limits of the nudged keys allow, and of the rates whose time has come. Answers how many jobs became ready, and
-- in how many seconds to call again (NULL: when somebody nudges; 0: at once). `returns`: the caller looks
-- again by itself if somebody else is at it just now; else the leader is told that there is more.
CREATE OR REPLACE FUNCTION skiplock.admit(returns boolean DEFAULT false, batch integer DEFAULT 1000)
RETURNS TABLE (moved integer, due_in float8)
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := skiplock.now();
    v_keys text[];
    v_rules jsonb[];
    v_places tid[];
    v_others tid[];
    v_other_keys text[];
    v_unfinished text[];
    v_queues text[];
BEGIN
    moved := 0;
    due_in := extract(epoch FROM skiplock._next_admission(v_now) - v_now);
    IF due_in IS NULL OR due_in > 0 THEN
        RETURN NEXT;
        RETURN;
    END IF;
    PERFORM FROM skiplock.duties d WHERE d.name = 'admit' FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        -- Whoever is at it may not see what we saw any more, and may even be somebody's open transaction: nobody waits for it.
        due_in := 0;
        IF NOT returns THEN
            PERFORM skiplock._ring_timer(v_now);
        END IF;
        RETURN NEXT;
        RETURN;
    END IF;
    v_now := skiplock.now();  -- others may have let jobs in until a moment ago

    WITH taken AS (
        DELETE FROM skiplock.nudges n WHERE n.n = ANY (ARRAY(SELECT x.n FROM skiplock.nudges x ORDER BY x.n LIMIT $2)) RETURNING n.key
    ), due AS (
        UPDATE skiplock.meters m SET wake_at = NULL
        WHERE m.key = ANY (ARRAY(SELECT x.key FROM skiplock.meters x WHERE x.wake_at <= v_now ORDER BY x.wake_at LIMIT $2)) RETURNING m.key
    )
    SELECT array_agg(k.key), array_agg(skiplock._rule(k.key, k.own)) INTO v_keys, v_rules
    FROM (
        SELECT d.key,
               (SELECT l.item FROM skiplock.jobs_waiting w, jsonb_array_elements(w.flow -> 'limits') AS l (item)
                WHERE w.state = 'blocked' AND w.blocked_on = d.key AND l.item ->> 'key' = d.key LIMIT 1) AS own
        FROM (SELECT t.key FROM taken t UNION SELECT e.key FROM due e) d
    ) k WHERE k.own IS NOT NULL;  -- else nobody waits for it

    IF v_keys IS NOT NULL THEN
        -- The first ones in line of each key, as many as it has room for; those with further limits are looked at one by one.
        WITH picked AS MATERIALIZED (
            SELECT k.key, k.rule, c.place, c.others
            FROM unnest(v_keys, v_rules) AS k (key, rule),
                 LATERAL (SELECT w.ctid AS place, jsonb_array_length(w.flow -> 'limits') > 1 AS others
                          FROM skiplock.jobs_waiting w
                          WHERE w.state = 'blocked' AND w.blocked_on = k.key
                          ORDER BY CASE WHEN w.flow ? 'order' THEN 0 ELSE w.priority END DESC, w.position
                          LIMIT least(skiplock._room(k.key, k.rule, v_now), $2) FOR UPDATE SKIP LOCKED) c
        ), counted AS (
            SELECT count(skiplock._count_start(p.key, p.rule, v_now, p.number)) FROM (
                SELECT x.key, x.rule, count(*) AS number FROM picked x WHERE NOT x.others AND x.rule ->> 'rate' IS NOT NULL GROUP BY 1, 2) p
        )
        SELECT array_agg(p.place) FILTER (WHERE NOT p.others), array_agg(p.place) FILTER (WHERE p.others),
               array_agg(p.key) FILTER (WHERE p.others),
               ARRAY(SELECT x.key FROM picked x GROUP BY x.key HAVING count(*) = $2)
        INTO v_places, v_others, v_other_keys, v_unfinished FROM picked p, counted;
        INSERT INTO skiplock.nudges (key) SELECT u.key FROM unnest(v_unfinished) AS u (key);
        -- These take their slots first, so that those after them see what is left.
        SELECT a.number, a.queues INTO moved, v_queues FROM skiplock._enter(coalesce(v_places, '{}')) a;
        IF v_others IS NOT NULL THEN
            SELECT moved + a.number, v_queues || a.queues INTO moved, v_queues
            FROM skiplock._enter(skiplock._admit_strictly(v_others, v_other_keys, v_now)) a;
        END IF;
        -- Whoever still waits for a rate is woken when its next start is due.
        UPDATE skiplock.meters m SET wake_at = greatest(
                   v_now, m.tat - make_interval(secs => (coalesce((k.rule ->> 'burst')::integer, 1) - 1) * (k.rule ->> 'per')::float8 / (k.rule ->> 'rate')::float8))
        FROM unnest(v_keys, v_rules) AS k (key, rule)
        WHERE m.key = k.key AND (k.rule ->> 'rate')::float8 > 0
          AND (SELECT true FROM skiplock.jobs_waiting w WHERE w.state = 'blocked' AND w.blocked_on = k.key LIMIT 1);
        IF v_queues IS NOT NULL THEN
            PERFORM skiplock._ring(v_queues);
        END IF;
    END IF;
    due_in := extract(epoch FROM skiplock._next_admission(v_now) - v_now);
    RETURN NEXT;
END $$;

-- When there is something to admit, or to look at: now if somebody nudged; NULL: not before somebody does.
CREATE OR REPLACE FUNCTION skiplock._next_admission(at timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT CASE WHEN (SELECT true FROM skiplock.nudges LIMIT 1) THEN $1
                ELSE (SELECT m.wake_at FROM skiplock.meters m WHERE m.wake_at IS NOT NULL ORDER BY m.wake_at LIMIT 1) END
$$;

-- Jobs with several limits: each is let in if all of them have room, else it goes to the line of the first that has none, where
-- whoever frees that one finds it. It holds no slot meanwhile, so jobs that share limits cannot block each other for good.
CREATE OR REPLACE FUNCTION skiplock._admit_strictly(places tid[], keys text[], at timestamptz) RETURNS tid[]
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_job record;
    v_full text;
    v_in tid[] := '{}';
BEGIN
    FOR v_job IN
        SELECT w.ctid AS place, w.id, w.flow, p.key FROM unnest($1, $2) WITH ORDINALITY AS p (place, key, nth)
        JOIN LATERAL (SELECT x.ctid, x.* FROM skiplock.jobs_waiting x WHERE x.ctid = p.place) w ON true ORDER BY p.nth
    LOOP
        SELECT l.item ->> 'key' INTO v_full FROM jsonb_array_elements(v_job.flow -> 'limits') AS l (item)
        WHERE skiplock._room(l.item ->> 'key', skiplock._rule(l.item ->> 'key', l.item), $3) < 1 LIMIT 1;
        IF v_full IS NULL THEN
            INSERT INTO skiplock.slots (key, job_id)
            SELECT l.item ->> 'key', v_job.id FROM jsonb_array_elements(v_job.flow -> 'limits') AS l (item) WHERE l.item ? 'slots'
            ON CONFLICT DO NOTHING;
            PERFORM skiplock._count_start(l.item ->> 'key', r.rule, $3, 1)
            FROM jsonb_array_elements(v_job.flow -> 'limits') AS l (item), LATERAL skiplock._rule(l.item ->> 'key', l.item) AS r (rule)
            WHERE (r.rule ->> 'rate')::float8 > 0;
            v_in := v_in || v_job.place;
        ELSE
            IF v_full <> v_job.key THEN
                UPDATE skiplock.jobs_waiting w SET blocked_on = v_full WHERE w.ctid = v_job.place;
            END IF;
            -- The key whose turn it was may have room for another, and the other one must know that somebody waits for it.
            INSERT INTO skiplock.nudges (key)
            SELECT v_job.key WHERE v_full <> v_job.key
            UNION ALL SELECT v_full FROM skiplock.meters m WHERE m.key = v_full AND m.wake_at IS NULL;
        END IF;
    END LOOP;
    RETURN v_in;
END $$;

-- Blocked → ready, with the slots of their limits.
CREATE OR REPLACE FUNCTION skiplock._enter(places tid[]) RETURNS TABLE (number integer, queues text[])
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    WITH gone AS MATERIALIZED (
        DELETE FROM skiplock.jobs_waiting w WHERE w.ctid = ANY ($1) RETURNING w.*
    ), held AS (
        INSERT INTO skiplock.slots (key, job_id)
        SELECT l.item ->> 'key', g.id FROM gone g, jsonb_array_elements(g.flow -> 'limits') AS l (item) WHERE l.item ? 'slots'
        ON CONFLICT DO NOTHING
    ), fair AS (
        SELECT f.* FROM (
            SELECT array_agg(g.id ORDER BY g.position) AS ids, array_agg(g.queue ORDER BY g.position) AS queues,
                   array_agg(g.priority ORDER BY g.position) AS priorities, array_agg(g.flow ->> 'fair' ORDER BY g.position) AS keys,
                   array_agg(coalesce((g.flow ->> 'weight')::float8, 1) ORDER BY g.position) AS weights
            FROM gone g WHERE g.flow ? 'fair') a,
            LATERAL skiplock._fair_places(a.ids, a.queues, a.priorities, a.keys, a.weights) f
        WHERE a.ids IS NOT NULL
    ), entered AS (
        INSERT INTO skiplock.jobs_ready AS j
            (id, position, lease, enqueued_at, run_at, attempt, max_attempts, priority, losses, state, queue, task, args,
             tags, meta, options, error, flow, expires_at)
        SELECT p.id, p.place, p.lease, p.enqueued_at, p.run_at, p.attempt, p.max_attempts, p.priority, p.losses, 'ready',
               p.queue, p.task, p.args, p.tags, p.meta, p.options, p.error, p.flow, p.expires_at
        FROM (SELECT coalesce((SELECT f.place FROM fair f WHERE f.id = g.id), nextval('skiplock.job_numbers')) AS place, g.*
              FROM (SELECT * FROM gone ORDER BY gone.position) g) p
        RETURNING j.queue
    )
    SELECT count(*)::integer, array_agg(DISTINCT e.queue) INTO number, queues FROM entered e;
    RETURN NEXT;
END $$;
