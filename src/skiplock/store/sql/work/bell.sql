-- Arm the bells of these queues: whoever makes a job ready there from now on sends a NOTIFY. Refreshed only when older
-- than half a second, so that many workers going to sleep write little.
CREATE OR REPLACE FUNCTION skiplock.arm(queues text[]) RETURNS void
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_now timestamptz := skiplock.now();
BEGIN
    IF EXISTS (SELECT FROM unnest(queues) AS q (name)
               LEFT JOIN skiplock.bells b ON b.queue = q.name
               WHERE b.armed_at IS NULL OR b.armed_at < v_now - interval '0.5 s') THEN
        INSERT INTO skiplock.bells AS b (queue, armed_at)
        SELECT DISTINCT q.name, v_now FROM unnest(queues) AS q (name) ORDER BY q.name
        ON CONFLICT (queue) DO UPDATE SET armed_at = excluded.armed_at
        WHERE b.armed_at IS NULL OR b.armed_at < v_now - interval '0.5 s';
    END IF;
END $$;

-- Disarm them: this worker is busy and asks often enough. A bell armed within the last second is someone else's who is
-- just going to sleep, and stays. Locked in the order of names, as `arm` does.
CREATE OR REPLACE FUNCTION skiplock.disarm(queues text[]) RETURNS void
LANGUAGE sql
AS $$
    UPDATE skiplock.bells b SET armed_at = NULL
    WHERE b.queue = ANY (ARRAY(
        SELECT x.queue FROM skiplock.bells x
        WHERE x.queue = ANY (queues) AND x.queue <> '' AND x.armed_at < skiplock.now() - interval '1 s'
        ORDER BY x.queue FOR UPDATE))
$$;
