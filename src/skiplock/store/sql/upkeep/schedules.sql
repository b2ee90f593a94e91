-- Schedules fire. Whoever ticks asks which are due, computes their fires (skiplock/core/schedule.py), and says so; each is then
-- made by compare-and-set on the schedule's row, in the transaction that enqueues its job. So it does not matter who ticks, how
-- many do, or what their clocks say: a fire is made once, and never before its time by the database's clock.

-- A worker tells which schedules its code declares: [{"name": …, "spec": {…}}]. `age`: for how many seconds its process has been
-- running, so that one that was lost and registers anew does not count as newly started.
CREATE OR REPLACE FUNCTION skiplock.declare_schedules(worker bigint, age float8, declared json) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('skiplock.schedules'));
    DELETE FROM skiplock.schedule_declarations d WHERE d.worker = $1;
    INSERT INTO skiplock.schedule_declarations (worker, schedule, spec, since)
    SELECT w.id, e->>'name', (e->'spec')::jsonb, skiplock.now() - make_interval(secs => $2)
    FROM json_array_elements($3) e, skiplock.workers w WHERE w.id = $1;
    PERFORM skiplock._adopt_declarations();
END $$;

-- Of several declarations of one schedule, that of the worker whose process started last counts, and it stays so: a worker that
-- comes or goes changes nothing unless that one does. What people changed by hand lies over it. Declared schedules without any
-- are orphaned. One that comes back within an hour goes on where it stopped (the service was restarted); later, from now.
CREATE OR REPLACE FUNCTION skiplock._adopt_declarations() RETURNS void
LANGUAGE plpgsql
AS $$
DECLARE
    v_now timestamptz := skiplock.now();
    v_one record;
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('skiplock.schedules'));
    PERFORM FROM skiplock.schedules s ORDER BY s.name FOR UPDATE;  -- in the order in which fires lock them
    FOR v_one IN
        SELECT DISTINCT ON (d.schedule) d.schedule AS name, d.spec, d.worker
        FROM skiplock.schedule_declarations d ORDER BY d.schedule, d.since DESC, d.worker DESC
    LOOP
        IF NOT EXISTS (SELECT FROM skiplock.schedules s WHERE s.name = v_one.name) THEN
            PERFORM skiplock._put_schedule(v_one.name, v_one.spec);
        ELSIF EXISTS (SELECT FROM skiplock.schedules s WHERE s.name = v_one.name AND s.declared IS DISTINCT FROM v_one.spec) THEN
            PERFORM skiplock._put_schedule(v_one.name, v_one.spec || coalesce(s.changed, '{}'))
            FROM skiplock.schedules s WHERE s.name = v_one.name;
        END IF;
        UPDATE skiplock.schedules s
        SET declared = v_one.spec, declared_by = v_one.worker, orphaned_at = NULL,
            checked_until = CASE WHEN s.orphaned_at < v_now - interval '1 h' THEN v_now ELSE s.checked_until END,
            wake_at = CASE WHEN s.orphaned_at IS NULL THEN s.wake_at WHEN s.paused_at IS NULL THEN v_now ELSE 'infinity' END
        WHERE s.name = v_one.name
          AND (s.declared IS DISTINCT FROM v_one.spec OR s.declared_by IS DISTINCT FROM v_one.worker OR s.orphaned_at IS NOT NULL);
    END LOOP;
    UPDATE skiplock.schedules s SET orphaned_at = v_now, declared_by = NULL, wake_at = 'infinity'
    WHERE s.name = ANY (ARRAY(
        SELECT o.name FROM skiplock.schedules o
        WHERE o.declared IS NOT NULL AND o.orphaned_at IS NULL
          AND NOT EXISTS (SELECT FROM skiplock.schedule_declarations d WHERE d.schedule = o.name)));
END $$;

-- Make a schedule, or change the members of `spec` that are given. Another rule counts from now on: its past is not made up for.
CREATE OR REPLACE FUNCTION skiplock._put_schedule(name text, spec jsonb) RETURNS void
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := skiplock.now();
    v_rule text := (SELECT skiplock._rule_of(s) FROM skiplock.schedules s WHERE s.name = $1);
    v_another boolean;
BEGIN
    IF v_rule IS NULL THEN
        INSERT INTO skiplock.schedules (name, task, cron, every, created_at, checked_until, wake_at)
        VALUES ($1, $2->>'task', $2->>'cron', ($2->>'every')::float8, v_now, v_now, v_now);
    END IF;
    UPDATE skiplock.schedules s
    SET task = coalesce($2->>'task', s.task),
        args = coalesce(($2->>'args')::json, s.args),
        queue = coalesce($2->>'queue', s.queue),
        priority = coalesce(($2->>'priority')::integer, s.priority),
        max_attempts = coalesce(($2->>'max_attempts')::integer, s.max_attempts),
        tags = CASE WHEN $2 ? 'tags' THEN (SELECT array_agg(t) FROM jsonb_array_elements_text(nullif($2->'tags', 'null')) t) ELSE s.tags END,
        meta = CASE WHEN $2 ? 'meta' THEN ($2->>'meta')::json ELSE s.meta END,
        options = CASE WHEN $2 ? 'options' THEN ($2->>'options')::json ELSE s.options END,
        cron = CASE WHEN $2 ? 'cron' THEN $2->>'cron' ELSE s.cron END,
        every = CASE WHEN $2 ? 'every' THEN ($2->>'every')::float8 ELSE s.every END,
        zone = coalesce($2->>'zone', s.zone),
        anchor = CASE WHEN $2 ? 'anchor' THEN ($2->>'anchor')::timestamptz ELSE s.anchor END,
        start_at = CASE WHEN $2 ? 'start_at' THEN ($2->>'start_at')::timestamptz ELSE s.start_at END,
        end_at = CASE WHEN $2 ? 'end_at' THEN ($2->>'end_at')::timestamptz ELSE s.end_at END,
        missed = coalesce($2->>'missed', s.missed),
        missed_most = coalesce(($2->>'missed_most')::integer, s.missed_most),
        overlap = coalesce($2->>'overlap', s.overlap),
        waiting_most = coalesce(($2->>'waiting_most')::integer, s.waiting_most),
        jitter = coalesce(($2->>'jitter')::float8, s.jitter)
    WHERE s.name = $1;
    SELECT skiplock._rule_of(s) IS DISTINCT FROM v_rule INTO v_another FROM skiplock.schedules s WHERE s.name = $1;
    UPDATE skiplock.schedules s
    SET checked_until = CASE WHEN v_another THEN v_now ELSE s.checked_until END,
        next_fire = CASE WHEN v_another THEN NULL ELSE s.next_fire END,
        problem = NULL,
        wake_at = CASE WHEN s.paused_at IS NULL AND s.orphaned_at IS NULL THEN v_now ELSE 'infinity' END
    WHERE s.name = $1;
    PERFORM skiplock._wake_ticker();
END $$;

-- What decides when it fires; to be compared with the same at another time.
CREATE OR REPLACE FUNCTION skiplock._rule_of(schedule skiplock.schedules) RETURNS text
LANGUAGE sql STABLE
AS $$ SELECT ROW(schedule.cron, schedule.every, schedule.zone, schedule.anchor, schedule.start_at, schedule.end_at)::text $$;

-- Have the leader look at once: a cancel request for nobody makes it beat, and its beat tells it that something is due. If no
-- notification reaches it, its next beat does.
CREATE OR REPLACE FUNCTION skiplock._wake_ticker() RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    PERFORM pg_notify('skiplock.cancel', d.worker::text) FROM skiplock.duties d
    WHERE d.name = 'upkeep' AND d.worker IS NOT NULL AND pg_notification_queue_usage() < 0.5;
END $$;

-- In how many seconds someone must look at a schedule, negative if that is overdue; NULL: there is none. `whole`: at once, if the
-- worker whose declaration counts has gone.
CREATE OR REPLACE FUNCTION skiplock._schedules_due_in(whole boolean) RETURNS float8
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    v_at timestamptz;
BEGIN
    SELECT s.wake_at INTO v_at FROM skiplock.schedules s WHERE s.wake_at < 'infinity' ORDER BY s.wake_at LIMIT 1;
    IF whole AND skiplock._declarers_gone() THEN
        RETURN least(0, extract(epoch FROM v_at - skiplock.now()));
    END IF;
    RETURN extract(epoch FROM v_at - skiplock.now());
END $$;

CREATE OR REPLACE FUNCTION skiplock._declarers_gone() RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT EXISTS (SELECT FROM skiplock.schedules s
                   WHERE s.declared_by IS NOT NULL AND NOT EXISTS (SELECT FROM skiplock.workers w WHERE w.id = s.declared_by))
$$;

-- Schedules someone must look at, at most `batch`, as JSON of their rows; `now` is the moment to judge them by, `due_in` when
-- there will be more to look at (NULL: never). At least one row, with NULL for `schedule` where there is none.
CREATE OR REPLACE FUNCTION skiplock.due_schedules(batch integer DEFAULT 100)
RETURNS TABLE (now text, due_in float8, name text, seen text, schedule json)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz;
BEGIN
    IF skiplock._declarers_gone() THEN
        PERFORM skiplock._adopt_declarations();
    END IF;
    v_now := skiplock.now();
    RETURN QUERY
    SELECT to_json(v_now)#>>'{}', skiplock._schedules_due_in(false), d.name, to_json(d.checked_until)#>>'{}', to_json(d)
    FROM (SELECT 1) one LEFT JOIN
         (SELECT * FROM skiplock.schedules s WHERE s.wake_at <= v_now ORDER BY s.wake_at, s.name LIMIT $1) d ON true;
END $$;

-- Make these fires: [{"name", "seen": its checked_until as it was when they were computed, "until": checked until there now, "next",
-- "fires": […], "run_ats": […] (when their jobs may run), "passed_over", "problem": why they could not be computed}].
-- Answers what became of each: `done` is made, waiting, skipped or failed (then `problem` says why, and it is tried again in a
-- minute). A schedule that another has dealt with meanwhile, or that was changed, paused or deleted, is left out.
CREATE OR REPLACE FUNCTION skiplock.fire_schedules(fires json)
RETURNS TABLE (name text, done text, fire_at timestamptz, job bigint, problem text)
LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := skiplock.now();
    v_one record;
    v_row skiplock.schedules;
    v_problem text;
BEGIN
    FOR v_one IN
        SELECT f.* FROM json_to_recordset($1) AS f (name text, seen timestamptz, until timestamptz, next timestamptz,
            fires timestamptz[], run_ats timestamptz[], passed_over bigint, problem text)
        WHERE f.until <= v_now ORDER BY f.name  -- never early, and in one order for all
    LOOP
        SELECT s.* INTO v_row FROM skiplock.schedules s
        WHERE s.name = v_one.name AND s.checked_until = v_one.seen AND s.paused_at IS NULL AND s.orphaned_at IS NULL
        FOR UPDATE;
        CONTINUE WHEN NOT FOUND;
        v_problem := v_one.problem;
        IF v_problem IS NULL THEN
            BEGIN
                v_row.checked_until := v_one.until;
                v_row.next_fire := v_one.next;
                v_row.passed_over := v_row.passed_over + v_one.passed_over;
                RETURN QUERY SELECT * FROM skiplock._fire(v_row, v_one.fires, v_one.run_ats);
                CONTINUE;
            EXCEPTION WHEN OTHERS THEN
                -- One bad row must not stop the others; what hit the whole transaction must.
                IF SQLSTATE ~ '^(40|53|55|57|58|25)' THEN
                    RAISE;
                END IF;
                v_problem := SQLERRM;
            END;
        END IF;
        UPDATE skiplock.schedules s SET problem = left(v_problem, 1000), wake_at = v_now + interval '1 min' WHERE s.name = v_row.name;
        name := v_row.name; done := 'failed'; fire_at := v_one.fires[1]; job := NULL; problem := v_problem;
        RETURN NEXT;
    END LOOP;
END $$;

-- The fires of one schedule, whose row is locked and given as it shall be; what waited for the end of the last job comes first.
CREATE OR REPLACE FUNCTION skiplock._fire(s skiplock.schedules, fires timestamptz[], run_ats timestamptz[])
RETURNS TABLE (name text, done text, fire_at timestamptz, job bigint, problem text)
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := skiplock.now();
    v_busy boolean := s.overlap <> 'allow' AND skiplock._is_at_work(s.last_job);
    v_run_at timestamptz;
BEGIN
    name := s.name;
    FOR fire_at, v_run_at IN
        SELECT w, w FROM unnest(s.waiting) w UNION ALL SELECT * FROM unnest($2, $3) f (at, run_at) ORDER BY 1
    LOOP
        job := NULL;
        IF v_busy AND s.overlap = 'cancel' THEN
            PERFORM skiplock.cancel(s.last_job);
        END IF;
        IF v_busy AND s.overlap IN ('skip', 'queue') THEN
            done := CASE WHEN fire_at = ANY (s.waiting) THEN 'still waiting' ELSE 'skipped' END;
            IF done = 'skipped' AND s.overlap = 'queue' AND cardinality(s.waiting) < s.waiting_most THEN
                done := 'waiting';
                s.waiting := s.waiting || fire_at;
            END IF;
        ELSE
            job := skiplock._make_fire(s, fire_at, v_run_at);
            done := CASE WHEN job IS NULL THEN 'skipped' ELSE 'made' END;
            s.waiting := array_remove(s.waiting, fire_at);
            s.last_fire := fire_at;
            IF job IS NOT NULL THEN
                s.made := s.made + 1;
                s.last_job := job;
                s.last_made_at := v_now;
                v_busy := s.overlap <> 'allow';
            END IF;
        END IF;
        IF done = 'skipped' THEN
            s.skipped := s.skipped + 1;
        END IF;
        IF done <> 'still waiting' THEN
            RETURN NEXT;
        END IF;
    END LOOP;
    UPDATE skiplock.schedules t
    SET checked_until = s.checked_until, next_fire = s.next_fire, passed_over = s.passed_over, waiting = s.waiting, last_fire = s.last_fire,
        last_made_at = s.last_made_at, last_job = s.last_job, made = s.made, skipped = s.skipped, problem = NULL,
        -- While a fire waits, someone looks every second whether the last job has ended.
        wake_at = least(coalesce(s.next_fire, 'infinity'), CASE WHEN s.waiting <> '{}' THEN v_now + interval '1 s' END)
    WHERE t.name = s.name;
END $$;

-- Whether that job has not ended yet.
CREATE OR REPLACE FUNCTION skiplock._is_at_work(job bigint) RETURNS boolean
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN EXISTS (SELECT FROM skiplock.find(ARRAY[job]) f WHERE f.state NOT IN ('completed', 'cancelled', 'dead'));
END $$;

-- The job of one fire; `meta` says whose it is. NULL: the enqueue refused it for now.
CREATE OR REPLACE FUNCTION skiplock._make_fire(s skiplock.schedules, fire_at timestamptz, run_at timestamptz) RETURNS bigint
LANGUAGE plpgsql
AS $$
DECLARE
    v_told text := json_build_object('schedule', s.name, 'scheduled_for', to_json(fire_at AT TIME ZONE 'UTC')#>>'{}' || 'Z')::text;
    v_meta text := s.meta::text;
BEGIN
    IF v_meta !~ '^\s*\{\s*\}\s*$' THEN
        v_told := rtrim(v_told, '}') || ', ' || substr(v_meta, strpos(v_meta, '{') + 1);
    END IF;
    RETURN (SELECT e FROM skiplock.enqueue_many(
        ARRAY[skiplock._check_by_hand(s.task, s.queue, s.tags, v_told::json, s.options)], ARRAY[s.args], ARRAY[s.queue], ARRAY[s.priority], NULL,
        ARRAY[run_at], ARRAY[s.max_attempts], CASE WHEN s.tags IS NOT NULL THEN ARRAY[s.tags::text] END, ARRAY[v_told::json],
        CASE WHEN s.options IS NOT NULL THEN ARRAY[s.options] END) e);
END $$;
