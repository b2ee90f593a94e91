-- Fairness: jobs with a fair key take places in line as if each key had a line of its own and all lines were served in turn.
-- It is start-time fair queueing (Goyal, Vin, Cheng 1996) with the position as the virtual time: a key's next job stands at the
-- head of the line, or right behind the key's last one. No row is locked for it, so producers do not wait for each other.

--
-- A key's next job stands 1 / weight behind its last one in line, or behind the head of the line if it has none there: never at the
-- head itself, for a key that always has just one job waiting (each enqueues the next) would then be served for ever, and the others
-- never. In an empty line the places are the numbers just drawn. So with weights of at least 1 no place is ever beyond the numbers
-- drawn so far: a job without a key, whose place is its number, finds its place at the end, before the cursors of all claims.

-- For each of these jobs (arrays of one length, in the order of entering) its place. The caller has drawn a number of the sequence
-- for each, be it the id.
CREATE OR REPLACE FUNCTION skiplock._fair_places(ids bigint[], queues text[], priorities smallint[], keys text[], weights float8[])
RETURNS TABLE (id bigint, place bigint)
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    WITH job AS MATERIALIZED (  -- all of them: else what is found out for a key is found out for each of its jobs
        SELECT u.*, row_number() OVER (PARTITION BY u.queue, u.priority, u.key ORDER BY u.nth) - 1 AS behind
        FROM unnest($1, $2, $3, $4, $5) WITH ORDINALITY AS u (id, queue, priority, key, weight, nth)
    ), line AS MATERIALIZED (
        SELECT d.queue, d.priority, (SELECT s.last_value FROM skiplock.job_numbers s) - d.jobs + 1 AS start,
               -- From where claims had got to on: what lies before may be full of dead entries.
               (SELECT r.position FROM skiplock.jobs_ready r
                WHERE r.queue = d.queue AND r.losses = 0 AND r.priority = d.priority
                  AND r.position >= coalesce((SELECT l.position FROM skiplock.lanes l WHERE l.queue = d.queue AND l.priority = d.priority), 0)
                ORDER BY r.position LIMIT 1) AS head
        FROM (SELECT j.queue, j.priority, count(*) AS jobs FROM job j GROUP BY 1, 2) d
    ), tail AS MATERIALIZED (
        SELECT d.queue, d.priority, d.key, d.weight, l.start, l.head,
               -- Only what stands behind the head counts; without that bound this would walk all that the key ever had in line.
               (SELECT r.position FROM skiplock.jobs_ready r
                WHERE r.queue = d.queue AND r.priority = d.priority AND r.flow ? 'fair' AND r.flow ->> 'fair' = d.key
                  AND r.position >= l.head
                ORDER BY r.position DESC LIMIT 1) AS last
        FROM (SELECT j.queue, j.priority, j.key, min(j.weight) AS weight FROM job j GROUP BY 1, 2, 3) d
        JOIN line l ON l.queue = d.queue AND l.priority = d.priority
    ), begun AS MATERIALIZED (
        SELECT t.queue, t.priority, t.key,
               coalesce(t.last, t.head + greatest(1, floor(1 / t.weight)), t.start)::bigint AS base,
               -- With a weight above one several jobs share a place: how many already do. (So do some of producers that did not
               -- see each other's; the next one makes up for it.)
               CASE WHEN t.last IS NOT NULL
                    THEN (SELECT count(*) FROM skiplock.jobs_ready r
                          WHERE r.queue = t.queue AND r.priority = t.priority AND r.flow ? 'fair' AND r.flow ->> 'fair' = t.key
                            AND r.position = t.last)
                    ELSE 0 END AS sharing
        FROM tail t
    )
    SELECT j.id, (b.base + floor((b.sharing + j.behind) / j.weight))::bigint
    FROM job j JOIN begun b ON b.queue = j.queue AND b.priority = j.priority AND b.key = j.key;
END $$;
