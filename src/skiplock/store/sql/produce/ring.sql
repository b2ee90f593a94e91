-- Wake sleeping workers of these queues. A NOTIFY takes a cluster-wide lock at commit, so it is sent only to queues whose
-- bell a worker armed before going to sleep, once a statement. When the server's notification queue is filling up
-- (a stuck listener elsewhere), none is sent: polling finds the job, while a full queue would make the commit fail.
CREATE OR REPLACE FUNCTION skiplock._ring(queues text[]) RETURNS void
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    PERFORM pg_notify('skiplock.bell', b.queue) FROM skiplock.bells b
    WHERE b.queue = ANY (queues) AND b.armed_at IS NOT NULL AND pg_notification_queue_usage() < 0.5;
END $$;

-- Tell the leader that a job is due before it means to wake. The empty payload is the timer's.
CREATE OR REPLACE FUNCTION skiplock._ring_timer(due timestamptz) RETURNS void
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    IF EXISTS (SELECT FROM skiplock.bells b WHERE b.queue = '' AND b.until > due) AND pg_notification_queue_usage() < 0.5 THEN
        PERFORM pg_notify('skiplock.bell', '');
    END IF;
END $$;
