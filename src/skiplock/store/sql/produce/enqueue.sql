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
        SELECT n.id, n.id, v_now, coalesce(n.max_attempts, 10), coalesce(n.priority, 0), 'ready', n.queue, n.task,
               -- Each function in here costs 0.2 µs a statement before it is even called: BETWEEN would call its argument twice.
               CASE WHEN n.task <> '' AND length(n.task) <= 200 AND n.queue <> '' AND length(n.queue) <= 200
                         AND pg_column_size(n.args) <= skiplock._large_args() + 4 AND json_typeof(n.args) = 'object'
                         AND strpos(n.args::text, E'\\u0000') = 0
                         AND n.priority BETWEEN -32768 AND 32767 IS NOT FALSE AND coalesce(n.max_attempts, 1) >= 1
                    THEN n.args
                    ELSE skiplock._admit(n.id, n.nth, n.task, n.args, n.queue, n.priority, NULL, NULL, n.max_attempts) END,
               n.tags::text[], n.meta, n.options
        FROM (SELECT nextval('skiplock.job_numbers') AS id, u.*
              FROM unnest($1, $2, $3, $4, $7, $8, $9, $10) WITH ORDINALITY
                   AS u (task, args, queue, priority, max_attempts, tags, meta, options, nth)) n
        -- Looked at once, before the first row; where a queue is bounded and full, this raises.
        WHERE (SELECT skiplock._check_depth($3) FROM skiplock.queues q WHERE q.name = ANY ($3) AND q.max_depth IS NOT NULL LIMIT 1) IS NOT FALSE
        RETURNING j.id;
    ELSE
        PERFORM skiplock._check_depth($3) FROM skiplock.queues q WHERE q.name = ANY ($3) AND q.max_depth IS NOT NULL LIMIT 1;
        RETURN QUERY
        WITH n AS MATERIALIZED (
            SELECT skiplock._admit(u.id, u.nth, u.task, u.args, u.queue, u.priority, u.delay, u.run_at, u.max_attempts) AS admitted,
                   coalesce(u.run_at, v_now + make_interval(secs => u.delay)) AS due, u.*
            FROM (SELECT nextval('skiplock.job_numbers') AS id, v.*
                  FROM unnest($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) WITH ORDINALITY
                       AS v (task, args, queue, priority, delay, run_at, max_attempts, tags, meta, options, nth)) u
        ), ready AS (
            INSERT INTO skiplock.jobs_ready
                (id, position, enqueued_at, run_at, max_attempts, priority, state, queue, task, args, tags, meta, options)
            SELECT n.id, n.id, v_now, n.due, coalesce(n.max_attempts, 10), coalesce(n.priority, 0), 'ready',
                   n.queue, n.task, n.admitted, n.tags::text[], n.meta, n.options
            FROM n WHERE n.due <= v_now OR n.due IS NULL
        ), waiting AS (
            INSERT INTO skiplock.jobs_waiting
                (id, enqueued_at, run_at, max_attempts, priority, state, queue, task, args, tags, meta, options)
            SELECT n.id, v_now, n.due, coalesce(n.max_attempts, 10), coalesce(n.priority, 0), 'scheduled',
                   n.queue, n.task, n.admitted, n.tags::text[], n.meta, n.options
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

-- Refuse what could never run or never be read again, with SQLSTATE SK001 and the job's place in the list; else answer what its
-- row holds of the arguments: large ones are kept beside it (payload.sql), and NULL stands for them. Called by the statement that
-- stores the row, because a statement of its own for the checks cost 15 of 77 µs of an enqueue; what is plainly right and small
-- does not even come here.
CREATE OR REPLACE FUNCTION skiplock._admit(
    id bigint, nth bigint, task text, args json, queue text, priority integer, delay float8, run_at timestamptz, max_attempts integer
) RETURNS json
LANGUAGE plpgsql
AS $$
DECLARE
    v_size CONSTANT integer := pg_column_size(args) - 4;  -- of a value that is in memory as it is, and so in an array
    v_problem text := CASE
        WHEN task IS NULL OR length(task) NOT BETWEEN 1 AND 200 THEN format('task %L: a name has 1 to 200 characters', left(task, 60))
        WHEN queue IS NULL OR length(queue) NOT BETWEEN 1 AND 200 THEN format('queue %L: a name has 1 to 200 characters', left(queue, 60))
        WHEN v_size > skiplock._most_args() THEN
            format('args: %s bytes of JSON, at most %s are allowed; store the data elsewhere and pass its key', v_size, skiplock._most_args())
        WHEN args IS NULL OR json_typeof(args) <> 'object' THEN format('args %L: must be a JSON object whose keys are the task''s parameters', left(args::text, 60))
        WHEN strpos(args::text, E'\\u0000') > 0 AND args::text ~ E'(^|[^\\\\])(\\\\\\\\)*\\\\u0000' THEN E'args: hold a NUL character (\\u0000), which PostgreSQL text cannot'
        WHEN priority NOT BETWEEN -32768 AND 32767 THEN format('priority %s: must be between -32768 and 32767', priority)
        WHEN max_attempts < 1 THEN format('max_attempts %s: must be at least 1', max_attempts)
        WHEN delay = 'NaN' OR abs(delay) > 3.2e9 THEN format('delay %s: must be a number of seconds of at most 100 years', delay)
        WHEN run_at IS NOT NULL AND run_at NOT BETWEEN '0001-01-02' AND '9999-01-01' THEN format('run_at %s: must be a time before the year 9999', run_at)
    END;
BEGIN
    IF v_problem IS NOT NULL THEN
        RAISE EXCEPTION 'job %: %', nth, v_problem USING ERRCODE = 'SK001';
    END IF;
    IF v_size > skiplock._large_args() THEN
        INSERT INTO skiplock.payloads (job_id, args) VALUES ($1, $4);
        RETURN NULL;
    END IF;
    RETURN args;
END $$;

-- What `enqueue` refuses beyond that; whoever calls enqueue_many (we do) sees to it himself. Answers the task.
CREATE OR REPLACE FUNCTION skiplock._check_by_hand(task text, queue text, tags text[], meta json, options json) RETURNS text
LANGUAGE plpgsql
AS $$
DECLARE
    v_controls CONSTANT text := E'[\\u0001-\\u001f\\u007f-\\u009f]';
    v_problem text := CASE
        WHEN task ~ v_controls THEN format('task %L: a name has no control characters', left(task, 60))
        WHEN queue ~ v_controls THEN format('queue %L: a name has no control characters', left(queue, 60))
        -- They are written anew at each move of the job.
        WHEN pg_column_size(tags) > 65536 THEN format('tags: %s bytes, at most 65536 are allowed', pg_column_size(tags))
        WHEN pg_column_size(meta) > 65536 THEN format('meta: %s bytes, at most 65536 are allowed', pg_column_size(meta))
        WHEN pg_column_size(options) > 65536 THEN format('options: %s bytes, at most 65536 are allowed', pg_column_size(options))
    END;
BEGIN
    IF v_problem IS NOT NULL THEN
        RAISE EXCEPTION 'job 1: %', v_problem USING ERRCODE = 'SK001';
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
        ARRAY[CASE WHEN tags IS NOT NULL OR meta IS NOT NULL OR options IS NOT NULL OR task || queue ~ E'[\\u0001-\\u001f\\u007f-\\u009f]'
                   THEN skiplock._check_by_hand(task, queue, tags, meta, options) ELSE task END],
        ARRAY[args], ARRAY[queue], ARRAY[priority],
        CASE WHEN delay IS NOT NULL THEN ARRAY[extract(epoch FROM delay)::float8] END,
        CASE WHEN run_at IS NOT NULL THEN ARRAY[run_at] END,
        ARRAY[max_attempts], CASE WHEN tags IS NOT NULL THEN ARRAY[tags::text] END,
        CASE WHEN meta IS NOT NULL THEN ARRAY[meta] END, CASE WHEN options IS NOT NULL THEN ARRAY[options] END)
$$;
