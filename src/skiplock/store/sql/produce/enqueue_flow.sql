-- Enqueue jobs of which some have rules: like enqueue_many, with one more array; answers each job's id and whether it is new.
--   {"unique": {"key": text, "on_conflict": keep|replace|reschedule|raise, "period": seconds, "hold": seconds, "longest": seconds},
--    "limits": [{"key": text, "slots": n} | {"key": text, "rate": n, "per": seconds, "burst": n}, …],
--    "order": hold|skip (of the first limit, which has one slot), "fair": text, "weight": n, "expires": seconds from now | point in time}
-- `admits`: let jobs in at once that their limits allow. Only for a transaction that ends with this statement: nobody else
-- lets jobs in until then.
-- Of these a row keeps, in `flow`: unique (the key, with its period), hold, limits, order, fair, weight.
-- A statement of its own, so that jobs without rules pay nothing for those of others.
CREATE OR REPLACE FUNCTION skiplock.enqueue_flow(
    tasks        text[],
    args         json[],
    queues       text[],
    flows        jsonb[],
    priorities   integer[]     DEFAULT NULL,
    delays       float8[]      DEFAULT NULL,
    run_ats      timestamptz[] DEFAULT NULL,
    max_attempts integer[]     DEFAULT NULL,
    tags         text[]        DEFAULT NULL,
    metas        json[]        DEFAULT NULL,
    options      json[]        DEFAULT NULL,
    admits       boolean       DEFAULT false
) RETURNS TABLE (id bigint, is_new boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET jit = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := skiplock.now();
    v_ids bigint[] := ARRAY(SELECT nextval('skiplock.job_numbers') FROM generate_series(1, cardinality($1)));
    v_owners bigint[];  -- for each row the job it stands for: itself, or the one that has its unique key
    v_writes boolean[];  -- whether its job is to be written: new, or replaced
    v_attempts integer[];
    v_since timestamptz[];
    v_places bigint[];
    v_fairs text[];
    v_queues text[];
    v_due timestamptz;
    v_blocked boolean;
BEGIN
    PERFORM skiplock._check_depth($3) FROM skiplock.queues q WHERE q.name = ANY ($3) AND q.max_depth IS NOT NULL LIMIT 1;
    PERFORM skiplock._check_flow(u.nth, u.flow) FROM unnest($4) WITH ORDINALITY AS u (flow, nth) WHERE u.flow IS NOT NULL;
    SELECT t.owners, t.writes, t.attempts, t.since, t.places, t.fairs INTO v_owners, v_writes, v_attempts, v_since, v_places, v_fairs
    FROM skiplock._unique_owners(v_ids, $4, v_now) t;

    WITH n AS MATERIALIZED (
        SELECT v.nth, v.owner AS id,
               skiplock._admit(v.owner, v.nth, v.task, v.args, v.queue, v.priority, v.delay, v.run_at, v.max_attempts) AS args,
               v.task, v.queue, coalesce(v.priority, 0)::smallint AS priority,
               -- The attempts made with other arguments stay on record and count for nothing.
               least(coalesce(v.max_attempts, 10)::bigint + coalesce(v.attempt, 0), 2147483647)::integer AS max_attempts, v.attempt, coalesce(v.since, v_now) AS since, v.tags::text[] AS tags, v.meta, v.options, v.flow,
               -- A delay that is drawn out again and again ends at some time.
               least(d.due, CASE WHEN d.due IS NOT NULL
                                 THEN coalesce(v.since, v_now) + make_interval(secs => (v.flow -> 'unique' ->> 'longest')::float8) END) AS due,
               CASE jsonb_typeof(v.flow -> 'expires')
                   WHEN 'number' THEN v_now + make_interval(secs => (v.flow ->> 'expires')::float8)
                   WHEN 'string' THEN (v.flow ->> 'expires')::timestamptz END AS expires_at,
               nullif(jsonb_strip_nulls(v.flow - 'expires' || jsonb_build_object('unique', v.unique_key, 'hold', v.flow -> 'unique' -> 'hold')), '{}') AS rules,
               -- Whoever is replaced again and again would never come to the head of the line if it went to its end each time.
               CASE WHEN v.fair IS NOT DISTINCT FROM v.flow ->> 'fair' THEN v.place END AS place
        FROM (SELECT x.* FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, v_owners, v_writes, v_attempts, v_since, v_places,
                         v_fairs, skiplock._unique_keys($4, v_now)) WITH ORDINALITY
                  AS x (task, args, queue, flow, priority, delay, run_at, max_attempts, tags, meta, options, owner, writes, attempt,
                        since, place, fair, unique_key, nth)) v,
             LATERAL (SELECT coalesce(v.run_at, v_now + make_interval(secs => v.delay))) AS d (due)
        WHERE v.writes
    ), fair AS (
        SELECT f.* FROM (
            SELECT array_agg(x.id ORDER BY x.nth) AS ids, array_agg(x.queue ORDER BY x.nth) AS queues,
                   array_agg(x.priority ORDER BY x.nth) AS priorities, array_agg(x.rules ->> 'fair' ORDER BY x.nth) AS keys,
                   array_agg(coalesce((x.rules ->> 'weight')::float8, 1) ORDER BY x.nth) AS weights
            FROM n x WHERE x.place IS NULL AND x.rules ? 'fair' AND NOT x.rules ? 'limits' AND (x.due <= v_now OR x.due IS NULL)) a,
            LATERAL skiplock._fair_places(a.ids, a.queues, a.priorities, a.keys, a.weights) f
        WHERE a.ids IS NOT NULL
    ), ready AS (
        INSERT INTO skiplock.jobs_ready
            (id, position, enqueued_at, run_at, attempt, max_attempts, priority, state, queue, task, args, tags, meta, options, flow, expires_at)
        SELECT x.id, coalesce(x.place, f.place, CASE WHEN x.attempt IS NULL THEN x.id ELSE nextval('skiplock.job_numbers') END),
               x.since, x.due, coalesce(x.attempt, 0), x.max_attempts, x.priority, 'ready', x.queue, x.task, x.args, x.tags, x.meta,
               x.options, x.rules, x.expires_at
        FROM n x LEFT JOIN fair f ON f.id = x.id WHERE NOT coalesce(x.rules ? 'limits', false) AND (x.due <= v_now OR x.due IS NULL)
    ), waiting AS (
        INSERT INTO skiplock.jobs_waiting
            (id, position, enqueued_at, run_at, attempt, max_attempts, priority, state, queue, task, args, tags, meta, options, flow,
             expires_at, blocked_on)
        SELECT x.id, CASE WHEN x.due > v_now THEN NULL WHEN x.place IS NOT NULL THEN x.place
                          WHEN x.attempt IS NULL OR x.rules ? 'order' THEN x.id ELSE nextval('skiplock.job_numbers') END,
               x.since, x.due, coalesce(x.attempt, 0), x.max_attempts, x.priority,
               CASE WHEN x.due > v_now THEN 'scheduled' ELSE 'blocked' END, x.queue, x.task, x.args, x.tags, x.meta, x.options,
               x.rules, x.expires_at, CASE WHEN x.due > v_now THEN NULL ELSE x.rules -> 'limits' -> 0 ->> 'key' END
        FROM n x WHERE x.due > v_now OR x.rules ? 'limits'
    ), nudged AS (
        INSERT INTO skiplock.nudges (key)
        SELECT DISTINCT x.rules -> 'limits' -> 0 ->> 'key' FROM n x
        WHERE x.rules ? 'limits' AND (x.due <= v_now OR x.due IS NULL)
        RETURNING 1
    )
    SELECT least(min(x.due) FILTER (WHERE x.due > v_now), min(x.expires_at)),
           array_agg(DISTINCT x.queue) FILTER (WHERE (x.due <= v_now OR x.due IS NULL) AND NOT coalesce(x.rules ? 'limits', false)),
           (SELECT count(*) > 0 FROM nudged)
    INTO v_due, v_queues, v_blocked FROM n x;

    IF v_blocked AND admits THEN
        PERFORM skiplock.admit();
    ELSIF v_blocked THEN
        PERFORM skiplock._ring_admitter();
    END IF;
    IF v_due IS NOT NULL THEN
        PERFORM skiplock._ring_timer(v_due);
    END IF;
    IF v_queues IS NOT NULL THEN
        PERFORM skiplock._ring(v_queues);
    END IF;
    RETURN QUERY SELECT o.owner, o.owner = o.id FROM unnest(v_ids, v_owners) WITH ORDINALITY AS o (id, owner, nth) ORDER BY o.nth;
END $$;

-- Refuse rules that make no sense, with SQLSTATE SK001 and the job's place in the list.
CREATE OR REPLACE FUNCTION skiplock._check_flow(nth bigint, flow jsonb) RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_limit jsonb;
    v_problem text;
BEGIN
    IF jsonb_typeof(flow) <> 'object' THEN
        v_problem := format('flow %s: must be a JSON object', left(flow::text, 60));
    ELSIF flow ? 'unique' AND (flow -> 'unique' ->> 'key' IS NULL OR length(flow -> 'unique' ->> 'key') NOT BETWEEN 1 AND 400) THEN
        v_problem := 'unique: a key has 1 to 400 characters';
    ELSIF flow ? 'unique' AND coalesce(flow -> 'unique' ->> 'on_conflict', 'keep') NOT IN ('keep', 'replace', 'reschedule', 'raise') THEN
        v_problem := format('unique: on_conflict %L: must be keep, replace, reschedule or raise', flow -> 'unique' ->> 'on_conflict');
    ELSIF (flow -> 'unique' ->> 'period')::float8 NOT BETWEEN 1 AND 3.2e9 OR (flow -> 'unique' ->> 'hold')::float8 NOT BETWEEN 0 AND 3.2e9
          OR (flow -> 'unique' ->> 'longest')::float8 NOT BETWEEN 0 AND 3.2e9 THEN
        v_problem := format('unique %s: period must be at least 1 second, hold and longest not negative, none of them more than 100 years', flow -> 'unique');
    ELSIF flow ? 'limits' AND (jsonb_typeof(flow -> 'limits') <> 'array' OR jsonb_array_length(flow -> 'limits') NOT BETWEEN 1 AND 8) THEN
        v_problem := 'limits: must be a list of 1 to 8 rules';
    ELSIF jsonb_typeof(flow -> 'limits') = 'array'
          AND (SELECT count(*) <> count(DISTINCT l ->> 'key') FROM jsonb_array_elements(flow -> 'limits') l) THEN
        v_problem := 'limits: a key is there twice';
    ELSIF flow ? 'order' AND (flow ->> 'order' NOT IN ('hold', 'skip') OR (flow -> 'limits' -> 0 ->> 'slots') IS DISTINCT FROM '1') THEN
        v_problem := format('order %L: must be hold or skip, and needs a first limit with one slot', flow ->> 'order');
    ELSIF length(flow ->> 'fair') NOT BETWEEN 1 AND 200 THEN
        v_problem := 'fair: a key has 1 to 200 characters';
    ELSIF (flow ->> 'weight')::float8 NOT BETWEEN 0.01 AND 1000 THEN
        v_problem := format('weight %s: must be from 0.01 to 1000', flow ->> 'weight');
    END IF;
    IF v_problem IS NULL AND flow ? 'limits' THEN
        FOR v_limit IN SELECT * FROM jsonb_array_elements(flow -> 'limits') LOOP
            IF coalesce(length(v_limit ->> 'key') NOT BETWEEN 1 AND 401, true) THEN
                v_problem := 'limits: a key has 1 to 401 characters';
            ELSIF NOT (v_limit ? 'slots') AND NOT (v_limit ? 'rate') THEN
                v_problem := format('limits %s: needs slots, or rate and per', v_limit);
            ELSIF coalesce((v_limit ->> 'slots')::float8, 1) NOT BETWEEN 1 AND 1000000 THEN
                v_problem := format('limits: slots %s: must be from 1 to 1000000', v_limit ->> 'slots');
            ELSIF v_limit ? 'rate' AND (coalesce((v_limit ->> 'rate')::float8, 0) <= 0 OR coalesce((v_limit ->> 'per')::float8, 0) <= 0
                                        OR coalesce((v_limit ->> 'burst')::float8, 1) NOT BETWEEN 1 AND 1000000) THEN
                v_problem := format('limits %s: rate and per must be more than 0, burst from 1 to 1000000', v_limit);
            END IF;
        END LOOP;
    END IF;
    IF v_problem IS NOT NULL THEN
        RAISE EXCEPTION 'job %: %', nth, v_problem USING ERRCODE = 'SK001';
    END IF;
END $$;
