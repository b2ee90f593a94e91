-- Pause and resume, bound, age: set by people and by programs, for all workers and over restarts.

-- Nothing of this queue is claimed from now on, until it is resumed, or for so many seconds, or until a time; answers until when
-- (NULL: until resumed). Running jobs go on, and so do those that workers have claimed ahead. What an earlier pause said is forgotten.
CREATE OR REPLACE FUNCTION skiplock.pause_queue(queue text, seconds float8 DEFAULT NULL, until timestamptz DEFAULT NULL) RETURNS timestamptz
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    v_until timestamptz := skiplock._pause_end($2, $3);
BEGIN
    INSERT INTO skiplock.queues AS q (name, paused_at, resume_at) VALUES ($1, skiplock.now(), v_until)
    ON CONFLICT (name) DO UPDATE SET paused_at = coalesce(q.paused_at, excluded.paused_at), resume_at = excluded.resume_at;
    IF v_until IS NOT NULL THEN
        PERFORM skiplock._ring_timer(v_until);
    END IF;
    RETURN v_until;
END $$;

CREATE OR REPLACE FUNCTION skiplock.resume(queue text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    UPDATE skiplock.queues q SET paused_at = NULL, resume_at = NULL WHERE q.name = $1;
    PERFORM skiplock._ring(ARRAY[$1]);
END $$;

-- As the releases before call it.
CREATE OR REPLACE FUNCTION skiplock.pause(queue text) RETURNS void
LANGUAGE sql
AS $$ SELECT skiplock.pause_queue(queue) $$;

-- The same for the jobs of one task, in whatever queue they are.
CREATE OR REPLACE FUNCTION skiplock.pause_task(task text, seconds float8 DEFAULT NULL, until timestamptz DEFAULT NULL) RETURNS timestamptz
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    v_until timestamptz := skiplock._pause_end($2, $3);
BEGIN
    INSERT INTO skiplock.paused_tasks AS t (task, paused_at, resume_at) VALUES ($1, skiplock.now(), v_until)
    ON CONFLICT (task) DO UPDATE SET resume_at = excluded.resume_at;
    IF v_until IS NOT NULL THEN
        PERFORM skiplock._ring_timer(v_until);
    END IF;
    RETURN v_until;
END $$;

CREATE OR REPLACE FUNCTION skiplock.resume_task(task text) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    DELETE FROM skiplock.paused_tasks t WHERE t.task = $1;
    PERFORM skiplock._ring_all();
END $$;

CREATE OR REPLACE FUNCTION skiplock._pause_end(seconds float8, until timestamptz) RETURNS timestamptz
LANGUAGE plpgsql
AS $$
BEGIN
    IF seconds IS NOT NULL AND until IS NOT NULL OR seconds = 'NaN' OR seconds NOT BETWEEN 0 AND 3.2e9
       OR until NOT BETWEEN '0001-01-02' AND '9999-01-01' THEN
        RAISE EXCEPTION 'pause for % seconds, until %: give one of them, at most 100 years', seconds, until USING ERRCODE = 'SK001';
    END IF;
    RETURN coalesce(until, skiplock.now() + make_interval(secs => seconds));
END $$;

-- Refuse enqueues that would make a queue hold more ready and waiting jobs than `most` (see produce/depth.sql); NULL: as many as come.
CREATE OR REPLACE FUNCTION skiplock.bound_queue(queue text, most integer) RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF $2 NOT BETWEEN 1 AND 1000000 THEN
        RAISE EXCEPTION 'queue %: bound %: must be from 1 to 1000000', left($1, 100), $2 USING ERRCODE = 'SK001';
    END IF;
    INSERT INTO skiplock.queues AS q (name, max_depth) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET max_depth = excluded.max_depth;
    -- Out of date from the start, so that the next enqueue counts.
    INSERT INTO skiplock.depths (queue, counted, number) SELECT $1, 0, -9223372036854775808 / 2
    WHERE $2 IS NOT NULL AND NOT EXISTS (SELECT FROM skiplock.depths d WHERE d.queue = $1) ON CONFLICT DO NOTHING;
END $$;

-- Let the queue's ready jobs rise by one in priority for each so many seconds (see upkeep/queues.sql); NULL: no longer. What has
-- risen stays where it is.
CREATE OR REPLACE FUNCTION skiplock.age_queue(queue text, every float8) RETURNS void
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
BEGIN
    IF $2 NOT BETWEEN 1 AND 31622400 THEN
        RAISE EXCEPTION 'queue %: every % seconds: must be from 1 second to a year', left($1, 100), $2 USING ERRCODE = 'SK001';
    END IF;
    IF $2 IS NULL THEN
        DELETE FROM skiplock.ageing a WHERE a.queue = $1;
        RETURN;
    END IF;
    INSERT INTO skiplock.ageing AS a (queue, every, look_at) VALUES ($1, $2, skiplock.now())
    ON CONFLICT (queue) DO UPDATE SET every = excluded.every, look_at = excluded.look_at;
    PERFORM skiplock._ring_timer(skiplock.now());
END $$;
