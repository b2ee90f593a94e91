-- What the code of a worker that starts says of its limits: a list of {"name", "slots"} or {"name", "rate", "per", "burst"}. It counts
-- for all jobs, also for those enqueued by older code, unless somebody has set that limit by hand. Nothing is written if nothing
-- has changed.
CREATE OR REPLACE FUNCTION skiplock.declare_limits(limits jsonb) RETURNS void
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    v_changed text[];
BEGIN
    WITH said AS (
        INSERT INTO skiplock.limits AS l (key, slots, rate, per, burst, by_hand, changed_at, declared)
        SELECT d.item ->> 'name', (d.item ->> 'slots')::integer, (d.item ->> 'rate')::float8, (d.item ->> 'per')::float8,
               (d.item ->> 'burst')::integer, false, skiplock.now(), d.item - 'name'
        FROM jsonb_array_elements($1) AS d (item)
        WHERE NOT EXISTS (SELECT FROM skiplock.limits x WHERE x.key = d.item ->> 'name' AND x.declared = d.item - 'name')
        ORDER BY 1
        ON CONFLICT (key) DO UPDATE SET declared = excluded.declared,
            slots = CASE WHEN l.by_hand THEN l.slots ELSE excluded.slots END, rate = CASE WHEN l.by_hand THEN l.rate ELSE excluded.rate END,
            per = CASE WHEN l.by_hand THEN l.per ELSE excluded.per END, burst = CASE WHEN l.by_hand THEN l.burst ELSE excluded.burst END,
            changed_at = CASE WHEN l.by_hand THEN l.changed_at ELSE excluded.changed_at END
        RETURNING l.key, l.by_hand
    )
    SELECT array_agg(s.key) FILTER (WHERE NOT s.by_hand) INTO v_changed FROM said s;
    PERFORM skiplock._limit_changed(c.key) FROM unnest(v_changed) AS c (key);
END $$;
