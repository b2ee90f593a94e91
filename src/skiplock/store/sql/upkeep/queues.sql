-- What the leader does for queues in time: resume those whose pause is over, and let jobs rise that have waited long. At most `batch`
-- jobs; answers how many jobs rose and pauses ended.
CREATE OR REPLACE FUNCTION skiplock.tend_queues(batch integer DEFAULT 1000) RETURNS integer
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := skiplock.now();
    v_names text[];
    v_tasks integer;
    v_rule record;
    v_done integer := 0;
BEGIN
    IF skiplock._next_tending() > v_now IS NOT FALSE THEN
        RETURN 0;
    END IF;
    -- Claims go by the clock themselves; these wake who sleeps.
    WITH over AS (
        UPDATE skiplock.queues q SET paused_at = NULL, resume_at = NULL
        WHERE q.ctid = ANY (ARRAY(
            SELECT x.ctid FROM skiplock.queues x WHERE x.resume_at <= v_now ORDER BY x.resume_at LIMIT $1 FOR UPDATE SKIP LOCKED))
        RETURNING q.name
    )
    SELECT array_agg(o.name) INTO v_names FROM over o;
    DELETE FROM skiplock.paused_tasks t WHERE t.ctid = ANY (ARRAY(
        SELECT x.ctid FROM skiplock.paused_tasks x WHERE x.resume_at <= v_now ORDER BY x.resume_at LIMIT $1 FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_tasks = ROW_COUNT;
    v_done := coalesce(cardinality(v_names), 0) + v_tasks;
    IF v_tasks > 0 THEN
        PERFORM skiplock._ring_all();
    ELSIF v_names IS NOT NULL THEN
        PERFORM skiplock._ring(v_names);
    END IF;
    FOR v_rule IN SELECT a.queue, a.every FROM skiplock.ageing a WHERE a.look_at <= v_now ORDER BY a.look_at FOR UPDATE SKIP LOCKED LOOP
        v_done := v_done + skiplock._age(v_rule.queue, v_rule.every, $1 - v_done);
        EXIT WHEN v_done >= $1;  -- the rest at the next call, which comes at once
        UPDATE skiplock.ageing a SET look_at = v_now + make_interval(secs => least(60, greatest(1, a.every / 10))) WHERE a.queue = v_rule.queue;
    END LOOP;
    RETURN v_done;
END $$;

-- When there is something to do; NULL: never.
CREATE OR REPLACE FUNCTION skiplock._next_tending() RETURNS timestamptz
LANGUAGE sql STABLE
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT least(
        (SELECT q.resume_at FROM skiplock.queues q WHERE q.resume_at IS NOT NULL ORDER BY q.resume_at LIMIT 1),
        (SELECT t.resume_at FROM skiplock.paused_tasks t WHERE t.resume_at IS NOT NULL ORDER BY t.resume_at LIMIT 1),
        (SELECT min(a.look_at) FROM skiplock.ageing a))
$$;

-- Whoever sleeps, whatever its queues: a task may have jobs in any.
CREATE OR REPLACE FUNCTION skiplock._ring_all() RETURNS void
LANGUAGE sql
AS $$
    SELECT skiplock._ring(ARRAY(SELECT b.queue FROM skiplock.bells b WHERE b.armed_at IS NOT NULL AND b.queue <> ''))
$$;

-- Let jobs of one queue rise by one in priority for each `every` seconds that they have been ready, at most `batch`; answers how
-- many did. What a job has risen by so far is in its `flow`. They keep their positions, and so stand before those of their
-- new priority that became ready after them. Of each priority as many are looked at as may rise, from the head of the line: those behind are younger.
CREATE OR REPLACE FUNCTION skiplock._age(queue text, every float8, batch integer) RETURNS integer
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := skiplock.now();
    v_priority integer := 32767;  -- those have arrived
    v_rows integer;
    v_done integer := 0;
BEGIN
    WHILE v_done < $3 LOOP
        -- From the top, so that nobody rises twice.
        SELECT r.priority INTO v_priority FROM skiplock.jobs_ready r
        WHERE r.queue = $1 AND r.losses = 0 AND r.priority < v_priority ORDER BY r.priority DESC LIMIT 1;
        EXIT WHEN NOT FOUND;
        -- Nobody is locked but those that rise: a claim that comes meanwhile passes by whoever is locked.
        UPDATE skiplock.jobs_ready r
        SET priority = least(32767, r.priority + floor(extract(epoch FROM v_now - coalesce(r.run_at, r.enqueued_at)) / $2) - coalesce((r.flow ->> 'aged')::integer, 0)),
            flow = coalesce(r.flow, '{}') || jsonb_build_object('aged', floor(extract(epoch FROM v_now - coalesce(r.run_at, r.enqueued_at)) / $2)::bigint)
        WHERE r.ctid = ANY (ARRAY(
            SELECT l.ctid FROM skiplock.jobs_ready l WHERE l.ctid = ANY (ARRAY(
                SELECT x.ctid FROM (
                    SELECT y.ctid, y.run_at, y.enqueued_at, y.flow FROM skiplock.jobs_ready y
                    WHERE y.queue = $1 AND y.losses = 0 AND y.priority = v_priority
                    ORDER BY y.position LIMIT $3 - v_done) x
                WHERE floor(extract(epoch FROM v_now - coalesce(x.run_at, x.enqueued_at)) / $2) > coalesce((x.flow ->> 'aged')::integer, 0)))
            FOR UPDATE SKIP LOCKED));
        GET DIAGNOSTICS v_rows = ROW_COUNT;
        v_done := v_done + v_rows;
    END LOOP;
    RETURN v_done;
END $$;
