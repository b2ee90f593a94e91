-- Enqueue many jobs, all or none; returns their ids in the order given. Arrays of one length; an array may be NULL for
-- "all default". `delays` are seconds from now, `run_ats` points in time; with neither a job is ready at once.
-- Each element of `tags` is an array literal.
CREATE OR REPLACE FUNCTION skiplock.enqueue_many(
    tasks        text[],
    args         json[],
    queues       text[],
    priorities   integer[]     DEFAULT NULL,
    delays       float8[]      DEFAULT NULL,
    run_ats      timestamptz[] DEFAULT NULL,
    max_attempts integer[]     DEFAULT NULL,
    tags         text[]        DEFAULT NULL,
    metas        json[]        DEFAULT NULL,
    options      json[]        DEFAULT NULL
) RETURNS SETOF bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := skiplock.now();
    v_due timestamptz;
    v_ready_queues text[] := $3;
BEGIN
    IF $5 IS NULL AND $6 IS NULL THEN
        RETURN QUERY
        INSERT INTO skiplock.jobs_ready AS j
            (id, position, enqueued_at, max_attempts, priority, state, queue, task, args, tags, meta, options)
        SELECT n.id, n.id, v_now, coalesce(n.max_attempts, 10), coalesce(n.priority, 0), 'ready',
               n.queue, n.checked, n.args, n.tags::text[], n.meta, n.options
        FROM (SELECT nextval('skiplock.job_numbers') AS id, u.*,
                     CASE WHEN length(u.task) BETWEEN 1 AND 200 AND length(u.queue) BETWEEN 1 AND 200
                               AND left(u.args::text, 1) = '{' AND strpos(u.args::text, '\u0000') = 0
                               AND coalesce(u.priority, 0) BETWEEN -32768 AND 32767 AND coalesce(u.max_attempts, 1) >= 1
                          THEN u.task
                          ELSE skiplock._check_new_job(u.nth, u.task, u.args, u.queue, u.priority, NULL, NULL, u.max_attempts) END AS checked
              FROM unnest($1, $2, $3, $4, $7, $8, $9, $10) WITH ORDINALITY
                   AS u (task, args, queue, priority, max_attempts, tags, meta, options, nth)) n
        RETURNING j.id;
    ELSE
        RETURN QUERY
        WITH n AS MATERIALIZED (
            SELECT skiplock._check_new_job(u.nth, u.task, u.args, u.queue, u.priority, u.delay, u.run_at, u.max_attempts) AS checked,
                   nextval('skiplock.job_numbers') AS id, coalesce(u.run_at, v_now + make_interval(secs => u.delay)) AS due, u.*
            FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) WITH ORDINALITY
                 AS u (task, args, queue, priority, delay, run_at, max_attempts, tags, meta, options, nth)
        ), ready AS (
            INSERT INTO skiplock.jobs_ready
                (id, position, enqueued_at, run_at, max_attempts, priority, state, queue, task, args, tags, meta, options)
            SELECT n.id, n.id, v_now, n.due, coalesce(n.max_attempts, 10), coalesce(n.priority, 0), 'ready',
                   n.queue, n.checked, n.args, n.tags::text[], n.meta, n.options
            FROM n WHERE n.due <= v_now OR n.due IS NULL
        ), waiting AS (
            INSERT INTO skiplock.jobs_waiting
                (id, enqueued_at, run_at, max_attempts, priority, state, queue, task, args, tags, meta, options)
            SELECT n.id, v_now, n.due, coalesce(n.max_attempts, 10), coalesce(n.priority, 0), 'scheduled',
                   n.queue, n.checked, n.args, n.tags::text[], n.meta, n.options
            FROM n WHERE n.due > v_now
        )
        SELECT n.id FROM n ORDER BY n.nth;
        -- Jobs for later wake nobody in their queue, only the timer.
        SELECT min(n.due) FILTER (WHERE n.due > v_now),
               array_agg(DISTINCT n.queue) FILTER (WHERE n.due <= v_now OR n.due IS NULL)
        INTO v_due, v_ready_queues
        FROM (SELECT u.queue, coalesce(u.run_at, v_now + make_interval(secs => u.delay)) AS due
              FROM unnest($3, $5, $6) AS u (queue, delay, run_at)) n;
        IF v_due IS NOT NULL THEN
            PERFORM skiplock._ring_timer(v_due);
        END IF;
    END IF;
    PERFORM skiplock._ring(v_ready_queues);
END $$;

-- Refuse what could never run or never be read again; else answer the task. Errors carry SQLSTATE SK001 and name the job's
-- place in the list. Called by the statement that stores the row, because a statement of its own for the checks cost 15 of
-- 77 µs of an enqueue; what is plainly right does not even come here.
CREATE OR REPLACE FUNCTION skiplock._check_new_job(
    nth bigint, task text, args json, queue text, priority integer, delay float8, run_at timestamptz, max_attempts integer
) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    v_problem text := CASE
        WHEN task IS NULL OR length(task) NOT BETWEEN 1 AND 200 THEN format('task %L: a name has 1 to 200 characters', left(task, 60))
        WHEN queue IS NULL OR length(queue) NOT BETWEEN 1 AND 200 THEN format('queue %L: a name has 1 to 200 characters', left(queue, 60))
        WHEN args IS NULL OR ltrim(args::text, E' \t\r\n') NOT LIKE '{%' THEN format('args %L: must be a JSON object whose keys are the task''s parameters', left(args::text, 60))
        WHEN strpos(args::text, '\u0000') > 0 AND args::text ~ '(^|[^\\])(\\\\)*\\u0000' THEN 'args: hold a NUL character (\u0000), which PostgreSQL text cannot'
        WHEN priority NOT BETWEEN -32768 AND 32767 THEN format('priority %s: must be between -32768 and 32767', priority)
        WHEN max_attempts < 1 THEN format('max_attempts %s: must be at least 1', max_attempts)
        WHEN delay = 'NaN' OR abs(delay) > 3.2e9 THEN format('delay %s: must be a number of seconds of at most 100 years', delay)
        WHEN run_at IS NOT NULL AND run_at NOT BETWEEN '0001-01-02' AND '9999-01-01' THEN format('run_at %s: must be a time before the year 9999', run_at)
    END;
BEGIN
    IF v_problem IS NOT NULL THEN
        RAISE EXCEPTION 'job %: %', nth, v_problem USING ERRCODE = 'SK001';
    END IF;
    RETURN task;
END $$;

-- Enqueue one job; returns its id. For psql, triggers and other languages:
--   SELECT skiplock.enqueue('send_welcome', '{"to": "ann@example.org"}');
--   SELECT skiplock.enqueue('report', queue => 'slow', delay => '5 minutes');
CREATE OR REPLACE FUNCTION skiplock.enqueue(
    task         text,
    args         json        DEFAULT '{}',
    queue        text        DEFAULT 'default',
    priority     integer     DEFAULT 0,
    delay        interval    DEFAULT NULL,
    run_at       timestamptz DEFAULT NULL,
    max_attempts integer     DEFAULT 10,
    tags         text[]      DEFAULT NULL,
    meta         json        DEFAULT NULL,
    options      json        DEFAULT NULL
) RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    SELECT skiplock.enqueue_many(
        ARRAY[task], ARRAY[args], ARRAY[queue], ARRAY[priority],
        CASE WHEN delay IS NOT NULL THEN ARRAY[extract(epoch FROM delay)::float8] END,
        CASE WHEN run_at IS NOT NULL THEN ARRAY[run_at] END,
        ARRAY[max_attempts], CASE WHEN tags IS NOT NULL THEN ARRAY[tags::text] END,
        CASE WHEN meta IS NOT NULL THEN ARRAY[meta] END, CASE WHEN options IS NOT NULL THEN ARRAY[options] END)
$$;
