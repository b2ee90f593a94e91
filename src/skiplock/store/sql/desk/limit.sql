-- Limits set by people: they count from now on for all jobs, those in line too.

-- Set a limit: `key` is a name as written in the code, and changes all its keys, or a name, U+001F and a value, and changes that
-- one. `slots` is for concurrency (0: nothing starts), the others for a rate (`per` in seconds); what is not given stays.
CREATE OR REPLACE FUNCTION skiplock.set_limit(
    key text, slots integer DEFAULT NULL, rate float8 DEFAULT NULL, per float8 DEFAULT NULL, burst integer DEFAULT NULL
) RETURNS void
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    v_problem text := CASE
        WHEN $1 IS NULL OR length($1) NOT BETWEEN 1 AND 401 THEN 'a key has 1 to 401 characters'
        WHEN $2 IS NULL AND $3 IS NULL THEN 'give slots, or a rate'
        WHEN $2 NOT BETWEEN 0 AND 1000000 THEN format('slots %s: must be from 0 to 1000000', $2)
        WHEN $3 < 0 OR $3 > 1000000 OR $3 = 'NaN' THEN format('rate %s: must be from 0 to 1000000', $3)
        WHEN $4 <= 0 OR $4 > 1e9 OR $4 = 'NaN' THEN format('per %s: must be more than 0 seconds', $4)
        WHEN $5 NOT BETWEEN 1 AND 1000000 THEN format('burst %s: must be from 1 to 1000000', $5) END;
BEGIN
    IF v_problem IS NOT NULL THEN
        RAISE EXCEPTION 'limit %: %', left($1, 100), v_problem USING ERRCODE = 'SK001';
    END IF;
    INSERT INTO skiplock.limits AS l (key, slots, rate, per, burst, by_hand, changed_at)
    VALUES ($1, $2, $3, CASE WHEN $3 IS NOT NULL THEN coalesce($4, 1) END, CASE WHEN $3 IS NOT NULL THEN coalesce($5, 1) END,
            true, skiplock.now())
    ON CONFLICT (key) DO UPDATE
    SET slots = coalesce($2, l.slots), rate = coalesce($3, l.rate), per = coalesce($4, l.per, excluded.per),
        burst = coalesce($5, l.burst, excluded.burst), by_hand = true, changed_at = excluded.changed_at;
    PERFORM skiplock._limit_changed($1);
END $$;

-- Let what the code says count again; answers whether anything had been set.
CREATE OR REPLACE FUNCTION skiplock.unset_limit(key text) RETURNS boolean
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    v_found boolean;
BEGIN
    UPDATE skiplock.limits l
    SET slots = (l.declared ->> 'slots')::integer, rate = (l.declared ->> 'rate')::float8, per = (l.declared ->> 'per')::float8,
        burst = (l.declared ->> 'burst')::integer, by_hand = false, changed_at = skiplock.now()
    WHERE l.key = $1 AND l.by_hand AND l.declared IS NOT NULL;
    v_found := FOUND;
    DELETE FROM skiplock.limits l WHERE l.key = $1 AND l.by_hand;
    v_found := v_found OR FOUND;
    IF v_found THEN
        PERFORM skiplock._limit_changed($1);
    END IF;
    RETURN v_found;
END $$;

-- Whoever stands in line for it is looked at: one key at once, those of a name some at a time (see _nudge_names).
CREATE OR REPLACE FUNCTION skiplock._limit_changed(key text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO skiplock.nudges (key, after) VALUES ($1, CASE WHEN strpos($1, E'\x1f') = 0 THEN '' END);
    PERFORM skiplock._ring_admitter();
END $$;

-- How many jobs of a queue may run at a time, over all workers; NULL: as many as the workers have slots for. Jobs that run already
-- go on, and those that were started without such a limit are not counted.
CREATE OR REPLACE FUNCTION skiplock.limit_queue(queue text, slots integer) RETURNS void
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    IF $2 NOT BETWEEN 0 AND 1000000 THEN
        RAISE EXCEPTION 'queue %: slots %: must be from 0 to 1000000', left($1, 100), $2 USING ERRCODE = 'SK001';
    END IF;
    INSERT INTO skiplock.queues AS q (name, slots) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET slots = excluded.slots;
    PERFORM skiplock._ring(ARRAY[$1]);
END $$;
