-- What the leader does now and then, so that nothing stays held up for ever whatever happened to single rows: jobs deleted by hand
-- (DELETE FROM skiplock.jobs …) leave their slots behind. Looks at the next `batch` keys after `after`, takes away slots whose job
-- neither is ready nor runs nor keeps them, nudges keys with room, and forgets meters that have run out and free unique keys.
-- `upto`: what to give as `after` next time ('': from the start).
CREATE OR REPLACE FUNCTION skiplock.sweep_limits(after text DEFAULT '', batch integer DEFAULT 1000)
RETURNS TABLE (upto text, freed integer, nudged integer)
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := skiplock.now();
    v_last text;
    v_keys text[];
    v_jobs bigint[];
BEGIN
    upto := $1; freed := 0; nudged := 0;
    PERFORM skiplock.sweep_uniques($2);
    -- Nobody lets jobs in meanwhile, so a slot that has no job is not about to get one.
    PERFORM FROM skiplock.duties d WHERE d.name = 'admit' FOR UPDATE SKIP LOCKED;
    IF NOT FOUND OR current_setting('transaction_isolation') <> 'read committed' THEN
        RETURN NEXT;
        RETURN;
    END IF;
    v_keys := ARRAY(
        SELECT k.key FROM (
            SELECT l.key FROM skiplock._keys_in_line($1, $2) l
            UNION SELECT s.key FROM skiplock._keys_held($1, $2) s
            UNION (SELECT m.key FROM skiplock.meters m WHERE m.key > $1 ORDER BY m.key LIMIT $2)) k
        ORDER BY k.key LIMIT $2);
    v_last := v_keys[$2];

    v_jobs := ARRAY(SELECT DISTINCT s.job_id FROM unnest(v_keys) AS k (key), LATERAL (
        SELECT h.job_id FROM skiplock.slots h WHERE h.key = k.key ORDER BY h.job_id LIMIT $2) s);
    -- One statement, so one snapshot: a job that moves meanwhile is seen in one of its two places. An ordered job
    -- may stand in line or wait for a retry with its slots, and so may one that was sent from line to line.
    WITH gone AS (
        DELETE FROM skiplock.slots s
        WHERE s.key = ANY (v_keys) AND s.job_id = ANY (ARRAY(
            SELECT j.id FROM unnest(v_jobs) AS j (id)
            EXCEPT SELECT f.id FROM skiplock.find(v_jobs) f
            WHERE f.state IN ('ready', 'running') OR f.state IN ('blocked', 'retryable') AND f.flow ?| '{order,turned}'))
        RETURNING s.key
    ), told AS (
        INSERT INTO skiplock.nudges (key) SELECT DISTINCT g.key FROM gone g
    )
    SELECT count(*) INTO freed FROM gone;
    WITH told AS (
        INSERT INTO skiplock.nudges (key) SELECT k.key FROM unnest(v_keys) AS k (key)
        WHERE skiplock._has_room_and_line(k.key, v_now) RETURNING 1
    )
    SELECT count(*) INTO nudged FROM told;
    DELETE FROM skiplock.meters m
    WHERE m.key = ANY (v_keys) AND m.tat < v_now AND (m.wake_at IS NULL OR m.wake_at < v_now - interval '1 minute');
    IF freed + nudged > 0 THEN
        PERFORM skiplock._ring_admitter();
    END IF;
    upto := coalesce(v_last, '');
    RETURN NEXT;
END $$;

-- The keys of which slots are held, in their order, by skipping through the index.
CREATE OR REPLACE FUNCTION skiplock._keys_held(after text, batch integer) RETURNS TABLE (key text)
LANGUAGE sql STABLE
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    WITH RECURSIVE held AS (
        (SELECT s.key, 1 AS nth FROM skiplock.slots s WHERE s.key > $1 ORDER BY s.key LIMIT 1)
        UNION ALL
        SELECT (SELECT s.key FROM skiplock.slots s WHERE s.key > h.key ORDER BY s.key LIMIT 1), h.nth + 1
        FROM held h WHERE h.key IS NOT NULL AND h.nth < $2
    )
    SELECT h.key FROM held h WHERE h.key IS NOT NULL
$$;
