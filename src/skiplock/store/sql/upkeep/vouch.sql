-- A supervisor vouches for these worker processes of its own: they live, although nothing comes from them (a handler holds
-- the interpreter, or the machine is overloaded). Nothing but their heartbeat is touched. Returns those that are still
-- registered; the others were declared lost already, and that stands.
CREATE OR REPLACE FUNCTION skiplock.vouch(workers bigint[]) RETURNS bigint[]
LANGUAGE sql
AS $$
    WITH vouched AS (
        UPDATE skiplock.workers w SET beat_at = skiplock.now() WHERE w.id = ANY ($1) RETURNING w.id
    )
    SELECT coalesce(array_agg(v.id ORDER BY v.id), '{}') FROM vouched v
$$;
