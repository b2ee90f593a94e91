-- Acts of people on one job. Each answers what it did; a job in a state that does not allow the act is left alone and its
-- state is returned as `was`. `done` false and `was` NULL: no such job.

-- Retry: dead and cancelled jobs get a new life, with the attempts they had left and at least one; a retryable or scheduled one runs now.
CREATE OR REPLACE FUNCTION skiplock.retry(id bigint) RETURNS TABLE (done boolean, was text)
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_job skiplock.jobs;
    v_fresh boolean := true;
    v_holder bigint;
    v_place bigint;
    v_line text;
BEGIN
    -- A job may move to another stage between two of these looks; then look again.
    FOR v_try IN 1..5 LOOP
        v_fresh := true;
        DELETE FROM skiplock.jobs_dead j WHERE j.id = $1 RETURNING * INTO v_job;
        IF v_job.id IS NULL THEN
            DELETE FROM skiplock.jobs_finished j WHERE j.id = $1 AND j.state = 'cancelled' RETURNING * INTO v_job;
        END IF;
        IF v_job.id IS NULL THEN
            DELETE FROM skiplock.jobs_waiting j WHERE j.id = $1 AND j.state <> 'blocked' RETURNING * INTO v_job;
            v_fresh := false;
        END IF;
        EXIT WHEN v_job.id IS NOT NULL;
        was := (SELECT f.state FROM skiplock.find(ARRAY[$1]) f);
        EXIT WHEN was IS NULL OR was NOT IN ('dead', 'cancelled', 'scheduled', 'retryable');
    END LOOP;
    IF v_job.id IS NULL THEN
        done := false;
        RETURN NEXT;
        RETURN;
    END IF;
    was := v_job.state;
    -- The attempts made so far stay on record; max_attempts grows, so that their numbers go on and stay unique.
    v_job.max_attempts := CASE WHEN v_fresh THEN v_job.attempt + greatest(v_job.max_attempts - v_job.attempt, 1) ELSE v_job.max_attempts END;
    v_job.run_at := skiplock.now();
    v_job.expires_at := NULL;
    IF v_fresh AND v_job.flow ? 'unique' THEN
        v_holder := skiplock._take_unique(v_job.flow ->> 'unique', v_job.id, NULL, (v_job.flow ->> 'hold')::float8);
        IF v_holder <> v_job.id THEN
            RAISE EXCEPTION 'job %: its unique key is held by job %; cancel or wait for that one', $1, v_holder USING ERRCODE = 'SK005';
        END IF;
    END IF;
    v_line := skiplock._line(v_job.flow, v_job.id);
    IF v_line IS NOT NULL THEN
        INSERT INTO skiplock.jobs_waiting
            (id, position, lease, enqueued_at, run_at, attempt, max_attempts, priority, losses, state, queue, task, args, tags,
             meta, options, error, flow, blocked_on)
        VALUES (v_job.id, CASE WHEN v_job.flow ? 'order' THEN v_job.id ELSE nextval('skiplock.job_numbers') END, v_job.lease,
                v_job.enqueued_at, v_job.run_at, v_job.attempt, v_job.max_attempts, v_job.priority, 0, 'blocked', v_job.queue, v_job.task, v_job.args, v_job.tags, v_job.meta,
                v_job.options, v_job.error, v_job.flow, v_line);
        INSERT INTO skiplock.nudges (key) VALUES (v_line);
        PERFORM skiplock._ring_admitter();
    ELSE
        v_place := nextval('skiplock.job_numbers');
        IF v_job.flow ? 'fair' THEN
            v_place := (SELECT f.place FROM skiplock._fair_places(ARRAY[v_job.id], ARRAY[v_job.queue], ARRAY[v_job.priority],
                                                                  ARRAY[v_job.flow ->> 'fair'], ARRAY[coalesce((v_job.flow ->> 'weight')::float8, 1)]) f);
        END IF;
        INSERT INTO skiplock.jobs_ready
            (id, position, lease, enqueued_at, run_at, attempt, max_attempts, priority, losses, state, queue, task, args, tags,
             meta, options, error, flow)
        VALUES (v_job.id, v_place, v_job.lease, v_job.enqueued_at, v_job.run_at, v_job.attempt, v_job.max_attempts, v_job.priority, 0, 'ready',
                v_job.queue, v_job.task, v_job.args, v_job.tags, v_job.meta, v_job.options, v_job.error, v_job.flow);
        PERFORM skiplock._ring(ARRAY[v_job.queue]);
    END IF;
    done := true;
    RETURN NEXT;
END $$;

-- Cancel: a job that waits is cancelled at once; a running one is asked to stop (its worker hears of it by NOTIFY or at
-- its next beat). Cancelling a cancelled job is no error.
CREATE OR REPLACE FUNCTION skiplock.cancel(id bigint) RETURNS TABLE (done boolean, was text)
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_job skiplock.jobs;
    v_worker bigint;
BEGIN
    -- A job may move to another stage between two of these looks; then look again.
    FOR v_try IN 1..5 LOOP
        DELETE FROM skiplock.jobs_waiting j WHERE j.id = $1 RETURNING * INTO v_job;
        IF v_job.id IS NULL THEN
            DELETE FROM skiplock.jobs_ready j
            WHERE j.ctid = ANY (ARRAY(SELECT p.place FROM skiplock._ready_places(ARRAY[$1]) p)) AND j.id = $1 RETURNING * INTO v_job;
        END IF;
        IF v_job.id IS NOT NULL THEN
            was := v_job.state;
            PERFORM skiplock._cancelled(v_job);
            done := true;
            EXIT;
        END IF;
        SELECT r.worker INTO v_worker FROM skiplock.jobs_running r WHERE r.id = $1 FOR UPDATE;
        IF FOUND THEN
            INSERT INTO skiplock.cancellations (job_id, worker, requested_at) VALUES ($1, v_worker, skiplock.now())
            ON CONFLICT (job_id) DO UPDATE SET worker = excluded.worker;
            IF pg_notification_queue_usage() < 0.5 THEN  -- see _ring; the worker's next beat finds it too
                PERFORM pg_notify('skiplock.cancel', v_worker::text);
            END IF;
            done := true;
            was := 'running';
            EXIT;
        END IF;
        was := (SELECT f.state FROM skiplock.find(ARRAY[$1]) f);
        done := coalesce(was = 'cancelled', false);
        EXIT WHEN was IS NULL OR was IN ('completed', 'cancelled', 'dead');
    END LOOP;
    RETURN NEXT;
END $$;

-- The other door into a final state: a job cancelled before it ran.
CREATE OR REPLACE FUNCTION skiplock._cancelled(job skiplock.jobs) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    INSERT INTO skiplock.jobs_finished
        (id, position, lease, worker, enqueued_at, run_at, finished_at, attempt, max_attempts, priority, losses, state, queue,
         task, args, tags, meta, options, error, flow, expires_at)
    VALUES (job.id, job.position, job.lease, job.worker, job.enqueued_at, job.run_at, skiplock.now(), job.attempt,
            job.max_attempts, job.priority, job.losses, 'cancelled', job.queue, job.task, job.args, job.tags, job.meta,
            job.options, job.error, job.flow, job.expires_at);
    IF job.flow IS NOT NULL THEN
        PERFORM skiplock._let_go(jsonb_build_array(job.flow || jsonb_build_object('id', job.id)), true, false);
    END IF;
END $$;

-- Delete: for good, with its attempts, its steps and its large arguments. Not while it runs: cancel it first.
CREATE OR REPLACE FUNCTION skiplock.delete(id bigint) RETURNS TABLE (done boolean, was text)
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
    v_flow jsonb;
BEGIN
    -- A job may move to another stage between two of these looks; then look again.
    FOR v_try IN 1..5 LOOP
        DELETE FROM skiplock.jobs_waiting j WHERE j.id = $1 RETURNING j.state, j.flow INTO was, v_flow;
        IF was IS NULL THEN
            DELETE FROM skiplock.jobs_ready j
            WHERE j.ctid = ANY (ARRAY(SELECT p.place FROM skiplock._ready_places(ARRAY[$1]) p)) AND j.id = $1 RETURNING j.state, j.flow INTO was, v_flow;
        END IF;
        IF was IS NULL THEN
            DELETE FROM skiplock.jobs_dead j WHERE j.id = $1 RETURNING j.state, j.flow INTO was, v_flow;
        END IF;
        IF was IS NULL THEN
            DELETE FROM skiplock.jobs_finished j WHERE j.id = $1 RETURNING j.state, j.flow INTO was, v_flow;
        END IF;
        done := was IS NOT NULL;
        EXIT WHEN done;
        was := (SELECT f.state FROM skiplock.find(ARRAY[$1]) f);
        EXIT WHEN was IS NULL OR was = 'running';
    END LOOP;
    IF done THEN
        DELETE FROM skiplock.attempts a WHERE a.job_id = $1;
        DELETE FROM skiplock.steps s WHERE s.job_id = $1;
        DELETE FROM skiplock.payloads p WHERE p.job_id = $1;
        IF v_flow IS NOT NULL THEN
            -- A key is held for nothing that is not there any more.
            DELETE FROM skiplock.uniques u WHERE u.key = v_flow ->> 'unique' AND u.job_id = $1;
            PERFORM skiplock._let_go(jsonb_build_array(v_flow || jsonb_build_object('id', $1)), true, false);
        END IF;
    END IF;
    RETURN NEXT;
END $$;
