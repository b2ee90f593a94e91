-- A worker process says hello; returns its id. `lost_after` in seconds: without a beat for that long it counts as lost.
-- The id ends in four random digits: an asynchronous failover may set the sequence back and undo a registration, and of two
-- processes under one id each would give back the jobs of the other, again and again.
CREATE OR REPLACE FUNCTION skiplock.register(
    name text, host text, pid integer, queues json, version text, lost_after float8
) RETURNS bigint
LANGUAGE sql
AS $$
    INSERT INTO skiplock.workers (id, name, host, pid, queues, version, started_at, beat_at, lost_after)
    SELECT nextval('skiplock.worker_numbers') * 10000 + floor(random() * 10000)::bigint, name, host, pid, queues, version, t, t, make_interval(secs => lost_after)
    FROM skiplock.now() AS t
    RETURNING id
$$;

-- How far claims have got in these lanes (NULL: nothing new).
CREATE OR REPLACE FUNCTION skiplock._tell_lanes(queues text[], priorities smallint[], positions bigint[]) RETURNS void
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    IF $1 IS NULL THEN
        RETURN;
    END IF;
    INSERT INTO skiplock.lanes AS l (queue, priority, position)
    SELECT u.queue, u.priority, u.position FROM unnest($1, $2, $3) AS u (queue, priority, position)
    ORDER BY u.queue, u.priority
    ON CONFLICT (queue, priority) DO UPDATE SET position = excluded.position WHERE l.position < excluded.position;
END $$;

-- One round trip per worker and interval: I am alive; what should I know?
--   known      false: this worker was declared lost, its leases are gone
--   leader     it holds the upkeep duty (taken here when free)
--   due_in     seconds until the next waiting job is due, negative if overdue; NULL: none
--   waiting    queues of mine that have a ready job (the safety poll behind the bell)
--   suspects   ready jobs that were lost with a worker once (1) or more often (2)
--   cancelled  running jobs of mine that someone wants cancelled
--   fire_in    seconds until someone must look at the schedules, negative if overdue; NULL: never (upkeep/schedules.sql)
--   rescued    lost workers whose jobs were given back just now (the leader does that): [{worker, name, silent_for, jobs}]
-- `asleep`: this worker relies on the bells of its queues; they are armed again if another worker took them down, and the
-- safety poll is made (a busy worker claims anyway). `sweep`: also look for running rows of workers that are not registered.
-- `look`: find out about due_in, waiting and suspects (else NULL, {} and 0). Both walk over dead rows while someone's old
-- snapshot pins them, so the caller bounds how often (core/share.py). `lane_*`: how far this worker's claims have got.
-- `watched`: for how many seconds this worker's beats have come without a gap (see rescue).
CREATE OR REPLACE FUNCTION skiplock.beat(
    worker bigint, running integer DEFAULT 0, state text DEFAULT 'running', queues text[] DEFAULT '{}',
    duty_for float8 DEFAULT 9, asleep boolean DEFAULT true, sweep boolean DEFAULT true,
    look boolean DEFAULT true,
    lane_queues text[] DEFAULT NULL, lane_priorities smallint[] DEFAULT NULL, lane_positions bigint[] DEFAULT NULL,
    watched float8 DEFAULT NULL
) RETURNS TABLE (
    known boolean, leader boolean, due_in float8, waiting text[], suspects integer, cancelled bigint[], rescued json, fire_in float8
)
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := skiplock.now();
BEGIN
    UPDATE skiplock.workers w SET beat_at = v_now, running = $2, state = $3 WHERE w.id = $1;
    known := FOUND;
    leader := false;
    IF known AND $3 = 'running' THEN
        UPDATE skiplock.duties d
        SET worker = $1, term = CASE WHEN d.worker = $1 THEN d.term ELSE d.term + 1 END, until = v_now + make_interval(secs => $5)
        WHERE d.name = 'upkeep' AND (d.worker = $1 OR d.until IS NULL OR d.until < v_now
              OR NOT EXISTS (SELECT FROM skiplock.workers w WHERE w.id = d.worker));
        leader := FOUND;
    END IF;
    IF leader THEN
        SELECT json_agg(r) INTO rescued FROM skiplock.rescue($7, $12) r;
    END IF;
    IF $6 AND EXISTS (SELECT FROM skiplock.bells b WHERE b.queue = ANY ($4) AND b.armed_at IS NULL) THEN
        PERFORM skiplock.arm($4);
    END IF;
    PERFORM skiplock._tell_lanes($9, $10, $11);
    waiting := '{}';
    suspects := 0;
    IF $8 THEN
        due_in := extract(epoch FROM least(
            (SELECT j.run_at FROM skiplock.jobs_waiting j WHERE j.state <> 'blocked' ORDER BY j.run_at LIMIT 1),
            skiplock._next_admission(v_now), skiplock._next_expiry(), skiplock._next_tending()) - v_now);
        waiting := ARRAY(
            SELECT q.name FROM unnest($4) AS q (name)
            -- No EXISTS: as a join it reads the whole line (110,000 pages of half a million jobs).
            WHERE $6 AND (SELECT true FROM skiplock.jobs_ready r WHERE r.queue = q.name AND r.losses = 0 LIMIT 1));
        SELECT CASE WHEN bool_or(s.losses > 1) THEN 2 WHEN count(*) > 0 THEN 1 ELSE 0 END INTO suspects
        FROM (SELECT r.losses FROM skiplock.jobs_ready r WHERE r.queue = ANY ($4) AND r.losses > 0 LIMIT 1000) s;
    END IF;
    fire_in := skiplock._schedules_due_in(leader);
    cancelled := ARRAY(SELECT c.job_id FROM skiplock.cancellations c WHERE c.worker = $1);
    RETURN NEXT;
END $$;

-- A worker says goodbye: what it still holds was not finished and is given back, attempts unspent; `lane_*`: see beat. Rows are
-- locked in the order in which a beat locks them (worker, duty, jobs, lanes), for its last one may still be under way.
CREATE OR REPLACE FUNCTION skiplock.leave(
    worker bigint,
    lane_queues text[] DEFAULT NULL, lane_priorities smallint[] DEFAULT NULL, lane_positions bigint[] DEFAULT NULL
) RETURNS integer
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
    v_ids bigint[];
    v_leases bigint[];
BEGIN
    DELETE FROM skiplock.workers w WHERE w.id = $1;
    UPDATE skiplock.duties d SET worker = NULL, until = NULL WHERE d.worker = $1;
    SELECT coalesce(array_agg(r.id ORDER BY r.id), '{}'), coalesce(array_agg(r.lease ORDER BY r.id), '{}') INTO v_ids, v_leases
    FROM skiplock.jobs_running r WHERE r.worker = $1;
    PERFORM skiplock._release(v_ids, v_leases);
    PERFORM skiplock._tell_lanes($2, $3, $4);
    RETURN cardinality(v_ids);
END $$;
