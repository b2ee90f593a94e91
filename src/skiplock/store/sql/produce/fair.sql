-- Fairness: jobs with a fair key take places in line as if each key had a line of its own and all lines were served in turn.
-- It is start-time fair queueing (Goyal, Vin, Cheng 1996) with the position as the virtual time: a key's next job stands at the
-- head of the line, or right behind the key's last one. No row is locked for it, so producers do not wait for each other.

-- For each of these jobs (arrays of one length, in the order of entering) its place.
CREATE OR REPLACE FUNCTION skiplock._fair_places(ids bigint[], queues text[], priorities smallint[], keys text[], weights float8[])
RETURNS TABLE (id bigint, place bigint)
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH job AS (
        SELECT u.*, row_number() OVER (PARTITION BY u.queue, u.priority, u.key ORDER BY u.nth) - 1 AS behind
        FROM unnest($1, $2, $3, $4, $5) WITH ORDINALITY AS u (id, queue, priority, key, weight, nth)
    ), line AS (
        SELECT d.queue, d.priority, coalesce(
            (SELECT r.position FROM skiplock.jobs_ready r
             WHERE r.queue = d.queue AND r.losses = 0 AND r.priority = d.priority
               AND r.position >= coalesce((SELECT l.position FROM skiplock.lanes l WHERE l.queue = d.queue AND l.priority = d.priority), 0)
             ORDER BY r.position LIMIT 1),
            (SELECT s.last_value FROM skiplock.job_numbers s)) AS head
        FROM (SELECT DISTINCT j.queue, j.priority FROM job j) d
    ), tail AS (
        SELECT d.queue, d.priority, d.key, l.head,
               (SELECT r.position FROM skiplock.jobs_ready r
                WHERE r.queue = d.queue AND r.priority = d.priority AND r.flow ? 'fair' AND r.flow ->> 'fair' = d.key
                ORDER BY r.position DESC LIMIT 1) AS last
        FROM (SELECT DISTINCT j.queue, j.priority, j.key FROM job j) d JOIN line l ON l.queue = d.queue AND l.priority = d.priority
    ), begun AS (
        -- With a weight above one several jobs share a place: how many already do.
        SELECT t.*, CASE WHEN t.last >= t.head
            THEN (SELECT count(*) FROM skiplock.jobs_ready r
                  WHERE r.queue = t.queue AND r.priority = t.priority AND r.flow ? 'fair' AND r.flow ->> 'fair' = t.key AND r.position = t.last)
            ELSE 0 END AS sharing
        FROM tail t
    )
    SELECT j.id, (greatest(b.head, b.last) + floor((b.sharing + j.behind) / j.weight))::bigint
    FROM job j JOIN begun b ON b.queue = j.queue AND b.priority = j.priority AND b.key = j.key;
END $$;
