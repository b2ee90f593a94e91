-- Unique keys. `uniques` has one row a key, inserted by whoever enqueues and taken away by the very statement that ends the job,
-- so there is no moment at which two jobs can have one key, and none at which a key is left with nobody.

-- Take a key for a job: answers who has it now. A key that another transaction is about to take or to free is waited for; one
-- whose job is live is only read, never locked, so that a transaction left open holds up no worker. One that is kept for a while
-- after its job has ended is taken when that while is over, or by that very job (which is retried).
CREATE OR REPLACE FUNCTION skiplock._take_unique(key text, id bigint, hold_until timestamptz, hold_for float8) RETURNS bigint
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_holder bigint;
BEGIN
    FOR v_try IN 1..20 LOOP
        INSERT INTO skiplock.uniques (key, job_id, hold_until, hold_for) VALUES ($1, $2, $3, $4) ON CONFLICT (key) DO NOTHING;
        IF FOUND THEN
            RETURN $2;
        END IF;
        UPDATE skiplock.uniques u
        SET job_id = $2, hold_until = CASE WHEN u.job_id = $2 THEN u.hold_until ELSE $3 END, hold_for = $4, free_at = NULL
        WHERE u.key = $1 AND u.free_at IS NOT NULL AND (u.free_at <= skiplock.now() OR u.job_id = $2);
        IF FOUND THEN
            RETURN $2;
        END IF;
        SELECT u.job_id INTO v_holder FROM skiplock.uniques u WHERE u.key = $1;
        IF FOUND THEN
            RETURN v_holder;
        END IF;
        -- It was there a moment ago and is gone now, so it has just come free: once more.
    END LOOP;
    RAISE EXCEPTION 'unique key %: changed hands too often while it was being taken', $1 USING ERRCODE = '40001';
END $$;

-- The jobs have ended: their keys are free, or free later.
CREATE OR REPLACE FUNCTION skiplock._free_unique(keys text[], ids bigint[]) RETURNS void
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := skiplock.now();
BEGIN
    PERFORM u.key FROM skiplock.uniques u WHERE u.key = ANY ($1) ORDER BY u.key FOR UPDATE;
    UPDATE skiplock.uniques u
    SET free_at = greatest(u.hold_until, v_now + make_interval(secs => coalesce(u.hold_for, 0)))
    FROM unnest($1, $2) AS e (key, job_id)
    WHERE u.key = e.key AND u.job_id = e.job_id AND u.free_at IS NULL AND (u.hold_until > v_now OR u.hold_for > 0);
    DELETE FROM skiplock.uniques u USING unnest($1, $2) AS e (key, job_id)
    WHERE u.key = e.key AND u.job_id = e.job_id AND u.free_at IS NULL;
END $$;

-- Forget keys that came free, at most `batch`. Nothing depends on it: they count as free already.
CREATE OR REPLACE FUNCTION skiplock.sweep_uniques(batch integer DEFAULT 1000) RETURNS integer
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_rows integer;
BEGIN
    DELETE FROM skiplock.uniques u WHERE u.ctid = ANY (ARRAY(
        SELECT f.ctid FROM skiplock.uniques f WHERE f.free_at <= skiplock.now() ORDER BY f.free_at LIMIT $1 FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_rows = ROW_COUNT;
    RETURN v_rows;
END $$;

-- The unique key of each row, with its period and the number of that; NULL where it has none.
CREATE OR REPLACE FUNCTION skiplock._unique_keys(flows jsonb[], at timestamptz) RETURNS text[]
LANGUAGE sql STABLE
AS $$
    SELECT array_agg(CASE WHEN u.flow -> 'unique' ? 'period'
                          THEN (u.flow -> 'unique' ->> 'key') || E'\x1f' || (u.flow -> 'unique' ->> 'period')::float8 || E'\x1f'
                               || floor(extract(epoch FROM at) / (u.flow -> 'unique' ->> 'period')::float8)
                          ELSE u.flow -> 'unique' ->> 'key' END ORDER BY u.nth)
    FROM unnest(flows) WITH ORDINALITY AS u (flow, nth)
$$;

-- Who has the unique keys of these rows: `owners`, and `writes`: whether that job is to be written with what the row says (it is
-- new, or its waiting predecessor was taken out of its line to be replaced; then with the `attempts` it has made, `since` when it
-- was enqueued, its `places` in line and `fairs`, the fair keys these belong to). Of rows with one key in one batch the first
-- one takes it, and the last one that replaces is what is written. A predecessor that runs is kept.
-- Keys are gone through one by one in their own order, each with its job, whatever the caller's order is: so two batches never
-- wait for each other. In bulk, a key that comes free meanwhile would have to be taken when later ones are already held.
CREATE OR REPLACE FUNCTION skiplock._unique_owners(ids bigint[], flows jsonb[], at timestamptz)
RETURNS TABLE (owners bigint[], writes boolean[], attempts integer[], since timestamptz[], places bigint[], fairs text[])
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_nestloop = off SET enable_mergejoin = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_keys text[] := skiplock._unique_keys($2, $3);
    v_held_keys text[] := '{}';
    v_holders bigint[] := '{}';
    v_holder bigint;
    v_row record;
    v_taken record;
    v_fate text;
    v_olds skiplock.jobs[] := '{}';
BEGIN
    IF array_remove(v_keys, NULL) = '{}' OR v_keys IS NULL THEN
        owners := $1;
        writes := array_fill(true, ARRAY[cardinality($1)]);
        RETURN NEXT;
        RETURN;
    END IF;
    FOR v_row IN
        SELECT u.key, (array_agg(u.id ORDER BY u.nth))[1] AS id, min(u.nth) AS nth, (array_agg(u.rule ORDER BY u.nth))[1] AS rule,
               bool_or(u.rule ->> 'on_conflict' IN ('replace', 'reschedule')) AS replaces,
               min(u.nth) FILTER (WHERE u.rule ->> 'on_conflict' = 'raise') AS raises,
               (array_agg(u.nth ORDER BY u.nth) FILTER (WHERE u.rule ->> 'on_conflict' = 'raise'))[2] AS raises_next
        FROM (SELECT x.key, x.id, x.flow -> 'unique' AS rule, x.nth FROM unnest(v_keys, $1, $2) WITH ORDINALITY AS x (key, id, flow, nth)) u
        WHERE u.key IS NOT NULL GROUP BY u.key ORDER BY u.key
    LOOP
        FOR v_try IN 1..20 LOOP
            v_holder := skiplock._take_unique(
                v_row.key, v_row.id, to_timestamp((floor(extract(epoch FROM $3) / (v_row.rule ->> 'period')::float8) + 1) * (v_row.rule ->> 'period')::float8),
                (v_row.rule ->> 'hold')::float8);
            v_fate := NULL;
            EXIT WHEN v_holder = v_row.id OR v_row.raises IS NOT NULL OR NOT v_row.replaces;
            SELECT * INTO v_taken FROM skiplock._take_out(v_holder, v_row.key);
            v_fate := v_taken.fate;
            EXIT WHEN v_fate <> 'gone';  -- else the key came free with it
        END LOOP;
        IF v_holder = v_row.id AND v_row.raises = v_row.nth THEN
            v_row.raises := v_row.raises_next;  -- the one that has it is in conflict with nobody
        END IF;
        IF v_row.raises IS NOT NULL THEN
            RAISE EXCEPTION 'job %: its unique key is that of %; nothing is stored. Wait for that one, or use on_conflict keep, replace or reschedule',
                v_row.raises, CASE WHEN v_holder = v_row.id THEN format('number %s of the same list', v_row.nth)
                                   ELSE format('job %s, which is there already', v_holder) END USING ERRCODE = 'SK005';
        END IF;
        v_held_keys := array_append(v_held_keys, v_row.key);
        v_holders := array_append(v_holders, v_holder);
        IF v_fate = 'gone' THEN
            RAISE EXCEPTION 'unique key %: changed hands too often while its job was being replaced', v_row.key USING ERRCODE = '40001';
        ELSIF v_fate = 'taken' THEN
            v_olds := array_append(v_olds, (v_taken.job)::skiplock.jobs);
        END IF;
    END LOOP;
    SELECT array_agg(coalesce(w.job_id, w.id) ORDER BY w.nth), array_agg(w.key IS NULL OR coalesce(w.nth = w.writer, false) ORDER BY w.nth),
           array_agg(w.attempt ORDER BY w.nth), array_agg(w.enqueued_at ORDER BY w.nth), array_agg(w.position ORDER BY w.nth),
           array_agg(w.fair ORDER BY w.nth)
    INTO owners, writes, attempts, since, places, fairs
    FROM (SELECT u.nth, u.id, u.key, h.job_id, o.attempt, o.enqueued_at, o.position, o.flow ->> 'fair' AS fair,
                 max(u.nth) FILTER (WHERE u.flow -> 'unique' ->> 'on_conflict' IN ('replace', 'reschedule') AND (o.id IS NOT NULL OR f.id IS NOT NULL)
                                          OR u.id = h.job_id) OVER (PARTITION BY u.key) AS writer
          FROM unnest(v_keys, $1, $2) WITH ORDINALITY AS u (key, id, flow, nth)
          LEFT JOIN unnest(v_held_keys, v_holders) AS h (key, job_id) ON h.key = u.key
          LEFT JOIN unnest($1) AS f (id) ON f.id = h.job_id
          LEFT JOIN unnest(v_olds) AS o ON o.id = h.job_id) w;
    RETURN NEXT;
END $$;

-- Take a job that waits or is ready out of its line, to be written anew. `fate`: taken; kept (it runs, or has ended and its key is
-- held on); gone (it has ended and the key is free). Whoever is just moving it is waited for: what replaces must not be lost.
CREATE OR REPLACE FUNCTION skiplock._take_out(id bigint, key text) RETURNS TABLE (fate text, job skiplock.jobs)
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_nestloop = on SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    FOR v_try IN 1..20 LOOP
        DELETE FROM skiplock.jobs_waiting w WHERE w.id = $1 RETURNING w.* INTO job;
        IF job.id IS NULL THEN
            DELETE FROM skiplock.jobs_ready r
            WHERE r.ctid = ANY (ARRAY(SELECT p.place FROM skiplock._ready_places(ARRAY[$1]) p)) AND r.id = $1 RETURNING r.* INTO job;
        END IF;
        IF job.id IS NOT NULL THEN
            -- Its steps were done with other arguments.
            DELETE FROM skiplock.steps s WHERE s.job_id = $1;
            DELETE FROM skiplock.payloads p WHERE p.job_id = $1;
            IF job.flow ? 'limits' THEN
                PERFORM skiplock._let_go(jsonb_build_array(job.flow || jsonb_build_object('id', $1) || '{"order": "skip"}'), false, false);
            END IF;
            fate := 'taken';
            EXIT;
        END IF;
        fate := CASE WHEN EXISTS (SELECT FROM skiplock.jobs_running r WHERE r.id = $1) THEN 'kept' END;
        EXIT WHEN fate IS NOT NULL;
        SELECT CASE WHEN u.free_at IS NULL THEN NULL WHEN u.free_at > skiplock.now() THEN 'kept' ELSE 'gone' END INTO fate
        FROM skiplock.uniques u WHERE u.key = $2 AND u.job_id = $1;
        IF NOT FOUND THEN
            fate := 'gone';
        END IF;
        EXIT WHEN fate IS NOT NULL;  -- else it has moved between two of these looks
    END LOOP;
    fate := coalesce(fate, 'kept');
    RETURN NEXT;
END $$;

-- Enqueue one job under a unique key of your choice, which counts over all tasks; answers whose key it is. For psql and triggers:
--   SELECT * FROM skiplock.enqueue_unique('reindex', 'document 5', '{"document": 5}', on_conflict => 'reschedule', delay => '10 seconds');
CREATE OR REPLACE FUNCTION skiplock.enqueue_unique(
    task         text,
    key          text,
    args         json        DEFAULT '{}',
    queue        text        DEFAULT 'default',
    on_conflict  text        DEFAULT 'keep',
    priority     integer     DEFAULT 0,
    delay        interval    DEFAULT NULL,
    run_at       timestamptz DEFAULT NULL,
    max_attempts integer     DEFAULT 10,
    period       interval    DEFAULT NULL,
    hold         interval    DEFAULT NULL,
    longest      interval    DEFAULT NULL
) RETURNS TABLE (id bigint, is_new boolean)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT f.id, f.is_new FROM skiplock.enqueue_flow(
        ARRAY[CASE WHEN task || queue ~ E'[\\u0001-\\u001f\\u007f-\\u009f]' THEN skiplock._check_by_hand(task, queue, NULL, NULL, NULL) ELSE task END],
        ARRAY[args], ARRAY[queue],
        ARRAY[jsonb_build_object('unique', jsonb_strip_nulls(jsonb_build_object(
            'key', key, 'on_conflict', on_conflict, 'period', extract(epoch FROM period), 'hold', extract(epoch FROM hold),
            'longest', extract(epoch FROM longest))))],
        ARRAY[priority], ARRAY[extract(epoch FROM delay)::float8], ARRAY[run_at], ARRAY[max_attempts]) f
$$;
