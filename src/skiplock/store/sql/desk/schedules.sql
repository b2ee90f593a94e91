-- Acts of people on schedules. Each answers what it found: `done`, or why not: `missing` (there is none of that name), `exists`,
-- `declared` (it would come back with the next worker).

CREATE OR REPLACE FUNCTION skiplock.add_schedule(name text, spec json) RETURNS text
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('skiplock.schedules'));  -- of two at once, the second finds the first one's
    IF EXISTS (SELECT FROM skiplock.schedules s WHERE s.name = $1 FOR UPDATE) THEN
        RETURN 'exists';
    END IF;
    PERFORM skiplock._put_schedule($1, $2::jsonb);
    RETURN 'done';
END $$;

-- Change what `spec` holds of it. Of a declared one, over what the code says, and until it is reset.
CREATE OR REPLACE FUNCTION skiplock.change_schedule(name text, spec json) RETURNS text
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE skiplock.schedules s SET changed = coalesce(s.changed, '{}') || $2::jsonb WHERE s.name = $1 AND s.declared IS NOT NULL;
    IF NOT FOUND AND NOT EXISTS (SELECT FROM skiplock.schedules s WHERE s.name = $1 FOR UPDATE) THEN
        RETURN 'missing';
    END IF;
    PERFORM skiplock._put_schedule($1, $2::jsonb);
    RETURN 'done';
END $$;

-- As the code says again, and not paused.
CREATE OR REPLACE FUNCTION skiplock.reset_schedule(name text) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    v_declared jsonb;
BEGIN
    UPDATE skiplock.schedules s SET changed = NULL WHERE s.name = $1 RETURNING s.declared INTO v_declared;
    IF NOT FOUND THEN
        RETURN 'missing';
    END IF;
    IF v_declared IS NOT NULL THEN
        PERFORM skiplock._put_schedule($1, v_declared);
    END IF;
    RETURN skiplock.resume_schedule($1);
END $$;

CREATE OR REPLACE FUNCTION skiplock.pause_schedule(name text) RETURNS text
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE skiplock.schedules s SET paused_at = coalesce(s.paused_at, skiplock.now()), wake_at = 'infinity' WHERE s.name = $1;
    RETURN CASE WHEN FOUND THEN 'done' ELSE 'missing' END;
END $$;

-- It goes on from now: what would have been fired meanwhile was not missed, but not wanted.
CREATE OR REPLACE FUNCTION skiplock.resume_schedule(name text) RETURNS text
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE skiplock.schedules s
    SET paused_at = NULL, checked_until = skiplock.now(), next_fire = NULL,
        wake_at = CASE WHEN s.orphaned_at IS NULL THEN skiplock.now() ELSE 'infinity' END
    WHERE s.name = $1 AND s.paused_at IS NOT NULL;
    IF FOUND THEN
        PERFORM skiplock._wake_ticker();
        RETURN 'done';
    END IF;
    RETURN CASE WHEN EXISTS (SELECT FROM skiplock.schedules s WHERE s.name = $1) THEN 'done' ELSE 'missing' END;
END $$;

-- A job now, beside the schedule's own fires; also of one that is paused. Answers the job's id, NULL if there is no such schedule.
CREATE OR REPLACE FUNCTION skiplock.run_schedule(name text) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    v_now timestamptz := skiplock.now();
    v_row skiplock.schedules;
    v_job bigint;
BEGIN
    SELECT s.* INTO v_row FROM skiplock.schedules s WHERE s.name = $1 FOR UPDATE;
    IF NOT FOUND THEN
        RETURN NULL;
    END IF;
    v_job := skiplock._make_fire(v_row, v_now, v_now);
    UPDATE skiplock.schedules s SET last_job = v_job, last_made_at = v_now, made = s.made + 1 WHERE s.name = $1;
    RETURN v_job;
END $$;

CREATE OR REPLACE FUNCTION skiplock.delete_schedule(name text) RETURNS text
LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM skiplock.schedules s WHERE s.name = $1 AND (s.declared IS NULL OR s.orphaned_at IS NOT NULL);
    IF FOUND THEN
        RETURN 'done';
    END IF;
    RETURN CASE WHEN EXISTS (SELECT FROM skiplock.schedules s WHERE s.name = $1) THEN 'declared' ELSE 'missing' END;
END $$;
