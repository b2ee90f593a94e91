-- Limits. A job under limits never goes to ready by itself: it stands in the line of a key (`blocked_on`) until `admit` lets it in.
-- `admit` is run by one at a time, who holds the row 'admit' of duties: slots are added by nobody else, and taken away by whoever
-- ends a job, so a count of slots can only be too high, never too low, and no limit is ever exceeded.
-- Whoever frees a slot or puts a job in line writes a nudge in the same transaction. A nudge is only taken under that row, so
-- whoever takes it sees all that was done before it was written, and all that earlier holders of the row did.

-- Of these rows of limits, for a key and for its name, and of what the job says. A row may have both kinds.
CREATE OR REPLACE FUNCTION skiplock._chosen(own jsonb, mine skiplock.limits, named skiplock.limits) RETURNS jsonb
LANGUAGE sql IMMUTABLE
AS $$
    SELECT CASE
        WHEN ($2).key IS NULL AND ($3).key IS NULL THEN $1
        WHEN $1 ? 'slots' THEN CASE WHEN coalesce(($2).slots, ($3).slots) IS NULL THEN $1
                                    ELSE jsonb_build_object('slots', coalesce(($2).slots, ($3).slots)) END
        WHEN ($2).rate IS NOT NULL THEN jsonb_build_object('rate', ($2).rate, 'per', ($2).per, 'burst', ($2).burst)
        WHEN ($3).rate IS NOT NULL THEN jsonb_build_object('rate', ($3).rate, 'per', ($3).per, 'burst', ($3).burst)
        ELSE $1 END
$$;

-- The rule in force for a key: changed for that very key, or for its name, or else what the job says.
CREATE OR REPLACE FUNCTION skiplock._rule(key text, own jsonb) RETURNS jsonb
LANGUAGE sql STABLE
AS $$
    SELECT skiplock._chosen($2, k, n) FROM (SELECT) AS one
    LEFT JOIN skiplock.limits k ON k.key = $1 LEFT JOIN skiplock.limits n ON n.key = split_part($1, E'\x1f', 1)
$$;

-- A rate rule in numbers: seconds between two starts, how many may come at once, and how much later than they were let in the
-- first ones of a burst are taken to start. They do start a little later, and those after them are let in one by one: without
-- this, a second that begins with their starts would hold one or two more than it may. NULL: nothing may start.
CREATE OR REPLACE FUNCTION skiplock._pace(rule jsonb, OUT gap float8, OUT burst integer, OUT lag float8)
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    IF (rule ->> 'rate')::float8 > 0 THEN
        gap := (rule ->> 'per')::float8 / (rule ->> 'rate')::float8;
        burst := coalesce((rule ->> 'burst')::integer, 1);
        lag := least(0.02, (burst - 1) * gap / 2);
    END IF;
END $$;

-- How many more may start under a key now. (Its callers keep the planner to the indexes.)
CREATE OR REPLACE FUNCTION skiplock._room(key text, rule jsonb, at timestamptz) RETURNS bigint
LANGUAGE plpgsql STABLE
AS $$
#variable_conflict use_column
DECLARE
    v_slots bigint := (rule ->> 'slots')::bigint;
    v_pace record;
    v_ahead float8;
BEGIN
    IF v_slots IS NOT NULL THEN
        RETURN v_slots - (SELECT count(*) FROM (SELECT FROM skiplock.slots s WHERE s.key = $1 LIMIT v_slots) held);
    END IF;
    v_pace := skiplock._pace(rule);
    IF v_pace.gap IS NULL THEN
        RETURN 0;
    END IF;
    -- A rate that was raised must not wait for what the old one had counted.
    v_ahead := least(coalesce((SELECT extract(epoch FROM m.tat - $3)::float8 FROM skiplock.meters m WHERE m.key = $1), 0),
                     v_pace.burst * v_pace.gap + v_pace.lag);
    RETURN greatest(0, floor(v_pace.burst - greatest(v_ahead, 0) / v_pace.gap + 1e-6))::bigint;
END $$;

-- `number` have just been let in under a rate.
CREATE OR REPLACE FUNCTION skiplock._count_start(key text, rule jsonb, at timestamptz, number bigint) RETURNS void
LANGUAGE sql
AS $$
    INSERT INTO skiplock.meters AS m (key, tat)
    SELECT $1, $3 + make_interval(secs => p.lag + $4 * p.gap) FROM skiplock._pace(rule) p WHERE p.gap IS NOT NULL
    ON CONFLICT (key) DO UPDATE
    SET tat = (SELECT greatest(least(m.tat, $3 + make_interval(secs => p.burst * p.gap + p.lag)), $3 + make_interval(secs => p.lag))
                      + make_interval(secs => $4 * p.gap) FROM skiplock._pace(rule) p)
$$;

-- Whoever waits for these rates is woken when the next start is due; at a high rate, when a few are.
CREATE OR REPLACE FUNCTION skiplock._wake_meters(keys text[], rules jsonb[], at timestamptz) RETURNS void
LANGUAGE sql
AS $$
    UPDATE skiplock.meters m SET tat = n.tat,
        wake_at = greatest($3, n.tat - make_interval(secs => (n.burst - least(greatest(n.burst / 2, 1), ceil(0.02 / n.gap))) * n.gap))
    FROM (SELECT k.key, p.gap, p.burst, least(x.tat, $3 + make_interval(secs => p.burst * p.gap + p.lag)) AS tat
          FROM unnest($1, $2) AS k (key, rule), LATERAL skiplock._pace(k.rule) p, skiplock.meters x
          WHERE NOT k.rule ? 'slots' AND p.gap IS NOT NULL AND x.key = k.key
            AND (SELECT true FROM skiplock.jobs_waiting w WHERE w.state = 'blocked' AND w.blocked_on = k.key LIMIT 1)) n
    WHERE m.key = n.key
$$;

-- Whose line a job stands in that is due: NULL: of none, it is ready. One that has kept its slots waits for its rates only.
CREATE OR REPLACE FUNCTION skiplock._line(flow jsonb, id bigint) RETURNS text
LANGUAGE plpgsql STABLE
AS $$
#variable_conflict use_column
BEGIN
    IF NOT coalesce($1 ? 'limits', false) THEN
        RETURN NULL;
    END IF;
    IF EXISTS (SELECT FROM jsonb_array_elements($1 -> 'limits') AS l (item)
               WHERE l.item ? 'slots' AND (SELECT true FROM skiplock.slots s WHERE s.key = l.item ->> 'key' AND s.job_id = $2)) THEN
        RETURN (SELECT l.item ->> 'key' FROM jsonb_array_elements($1 -> 'limits') AS l (item) WHERE NOT l.item ? 'slots' LIMIT 1);
    END IF;
    RETURN $1 -> 'limits' -> 0 ->> 'key';
END $$;

-- Tell the leader to admit. Always, unlike _ring_timer: a transaction may commit long after the bell was looked at.
CREATE OR REPLACE FUNCTION skiplock._ring_admitter() RETURNS void
LANGUAGE plpgsql
AS $$
BEGIN
    IF pg_notification_queue_usage() < 0.5 THEN
        PERFORM pg_notify('skiplock.bell', '');
    END IF;
END $$;

-- Jobs have left: `flows` are their rules with their ids. Their slots come free (an ordered key keeps its place for a retry) and,
-- when `ended`, their unique keys. `admits`: let the next ones in at once, unless somebody else is at it; only for a statement that
-- is a transaction of its own, for nobody else lets jobs in until it ends.
CREATE OR REPLACE FUNCTION skiplock._let_go(flows jsonb, ended boolean, admits boolean) RETURNS void
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_keys text[];
    v_ids bigint[];
BEGIN
    -- In a queue with slots of its own another may start (see claim).
    SELECT array_agg(DISTINCT f ->> 'in_queue') INTO v_keys FROM jsonb_array_elements($1) f WHERE f ? 'in_queue';
    IF v_keys IS NOT NULL THEN
        PERFORM skiplock._ring(v_keys);
    END IF;
    IF ended THEN
        SELECT array_agg(f ->> 'unique'), array_agg((f ->> 'id')::bigint) INTO v_keys, v_ids
        FROM jsonb_array_elements($1) f WHERE f ? 'unique';
        IF v_keys IS NOT NULL THEN
            PERFORM skiplock._free_unique(v_keys, v_ids);
        END IF;
    END IF;
    SELECT array_agg(l ->> 'key'), array_agg((f ->> 'id')::bigint) INTO v_keys, v_ids
    FROM jsonb_array_elements($1) f, jsonb_array_elements(f -> 'limits') l
    WHERE l ? 'slots' AND ($2 OR f ->> 'order' IS DISTINCT FROM 'hold');
    IF v_keys IS NULL THEN
        RETURN;
    END IF;
    WITH gone AS (
        DELETE FROM skiplock.slots s WHERE s.ctid = ANY (ARRAY(
            SELECT h.place FROM unnest(v_keys, v_ids) AS u (key, id),
                LATERAL (SELECT x.ctid AS place FROM skiplock.slots x WHERE x.key = u.key AND x.job_id = u.id LIMIT 1) h))
        RETURNING s.key
    )
    INSERT INTO skiplock.nudges (key) SELECT DISTINCT g.key FROM gone g;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    IF admits THEN
        PERFORM skiplock.admit();
    ELSE
        PERFORM skiplock._ring_admitter();
    END IF;
END $$;

-- Let in what the limits of the nudged keys allow, and of the rates whose time has come. Answers how many jobs became ready, and
-- in how many seconds to call again (NULL: when somebody nudges; 0: at once). `returns`: the caller looks
-- again by itself if somebody else is at it just now; else the leader is told that there is more.
CREATE OR REPLACE FUNCTION skiplock.admit(returns boolean DEFAULT false, batch integer DEFAULT 1000)
RETURNS TABLE (moved integer, due_in float8)
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_now timestamptz := skiplock.now();
    v_mine boolean := false;
    v_round record;
    v_again text[] := '{}';
    v_queues text[] := '{}';
BEGIN
    moved := 0;
    due_in := extract(epoch FROM skiplock._next_admission(v_now) - v_now);
    IF due_in IS NULL OR due_in > 0 THEN
        RETURN NEXT;
        RETURN;
    END IF;
    -- With an old snapshot slots that were given since would not be seen, and limits exceeded.
    IF current_setting('transaction_isolation') = 'read committed' THEN
        PERFORM FROM skiplock.duties d WHERE d.name = 'admit' FOR UPDATE SKIP LOCKED;
        v_mine := FOUND;
    END IF;
    IF NOT v_mine THEN
        -- Whoever is at it may not see what we saw any more, and may even be somebody's open transaction: nobody waits for it.
        due_in := 0;
        IF NOT returns THEN
            PERFORM skiplock._ring_admitter();
        END IF;
        RETURN NEXT;
        RETURN;
    END IF;
    v_now := skiplock.now();  -- others may have let jobs in until a moment ago
    -- In rounds: jobs that were only sent to the line of another key have made room for those behind them.
    FOR v_nth IN 1..10 LOOP
        SELECT * INTO v_round FROM skiplock._admit_round(v_now, $2);
        moved := moved + v_round.moved;
        v_again := v_again || v_round.again;
        v_queues := v_queues || v_round.queues;
        due_in := extract(epoch FROM skiplock._next_admission(v_now) - v_now);
        EXIT WHEN due_in IS NULL OR due_in > 0 OR moved >= $2;
    END LOOP;
    IF v_again <> '{}' THEN
        INSERT INTO skiplock.nudges (key) SELECT DISTINCT a.key FROM unnest(v_again) AS a (key);
        due_in := 0;
    END IF;
    IF v_queues <> '{}' THEN
        PERFORM skiplock._ring(v_queues);
    END IF;
    IF NOT returns THEN  -- the leader goes on
        IF due_in <= 0 THEN
            PERFORM skiplock._ring_admitter();
        ELSIF due_in IS NOT NULL THEN
            PERFORM skiplock._ring_timer(v_now + make_interval(secs => due_in));
        END IF;
    END IF;
    RETURN NEXT;
END $$;

-- One round, by the one who admits: at most `batch` keys and about as many jobs. `again`: keys with room whose next job somebody
-- is just changing.
CREATE OR REPLACE FUNCTION skiplock._admit_round(at timestamptz, batch integer, OUT moved integer, OUT queues text[], OUT again text[])
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_keys text[];      -- these, and what follows up to the blank line, go together: one element a key
    v_rules jsonb[];
    v_rooms bigint[];
    v_looks bigint[];   -- how many of its jobs to look at
    v_heads tid[];      -- the only job that may be next, where order is kept
    v_strict boolean[]; -- whether its jobs have further limits
    v_numbers bigint[]; -- how many of its jobs were found

    v_nths integer[];   -- the jobs found: their keys, and where they lie
    v_places tid[];
    v_plain tid[] := '{}';
    v_others tid[] := '{}';
    v_other_keys text[] := '{}';
    v_several integer[];
    v_has_rates boolean;
    v_entered record;
BEGIN
    moved := 0; queues := '{}'; again := '{}';
    PERFORM skiplock._nudge_names($2);
    WITH taken AS (
        DELETE FROM skiplock.nudges n
        WHERE n.n = ANY (ARRAY(SELECT x.n FROM skiplock.nudges x WHERE x.after IS NULL ORDER BY x.n LIMIT $2)) RETURNING n.key
    ), due AS (
        UPDATE skiplock.meters m SET wake_at = NULL
        WHERE m.key = ANY (ARRAY(SELECT x.key FROM skiplock.meters x WHERE x.wake_at <= $1 ORDER BY x.wake_at LIMIT $2)) RETURNING m.key
    ), found AS MATERIALIZED (
        SELECT d.key, h.place, h.strict, h.ordered, skiplock._chosen(h.own, k, n) AS rule
        FROM (SELECT t.key FROM taken t UNION SELECT e.key FROM due e) d
        LEFT JOIN skiplock.limits k ON k.key = d.key LEFT JOIN skiplock.limits n ON n.key = split_part(d.key, E'\x1f', 1),
             LATERAL (SELECT w.ctid AS place, jsonb_array_length(w.flow -> 'limits') > 1 AS strict, w.flow ? 'order' AS ordered,
                             CASE WHEN w.flow -> 'limits' -> 0 ->> 'key' = d.key THEN w.flow -> 'limits' -> 0
                                  ELSE (SELECT l.item FROM jsonb_array_elements(w.flow -> 'limits') AS l (item) WHERE l.item ->> 'key' = d.key LIMIT 1)
                             END AS own
                      FROM skiplock.jobs_waiting w WHERE w.state = 'blocked' AND w.blocked_on = d.key
                      ORDER BY CASE WHEN w.flow ? 'order' THEN 0 ELSE w.priority END DESC, w.position LIMIT 1) h  -- nobody waits: nothing to do
    ), rooms AS MATERIALIZED (
        SELECT f.*, greatest(1, $2 / count(*) OVER ()) AS share,
               -- As _room says, without a call for each of a thousand keys.
               CASE WHEN f.rule ? 'slots' THEN (f.rule ->> 'slots')::bigint - (
                        SELECT count(*) FROM (SELECT FROM skiplock.slots s WHERE s.key = f.key LIMIT (f.rule ->> 'slots')::bigint) held)
                    ELSE skiplock._room(f.key, f.rule, $1) END AS room
        FROM found f
    )
    SELECT array_agg(r.key), array_agg(r.rule), array_agg(r.room), array_agg(CASE WHEN r.ordered THEN r.place END),
           array_agg(CASE WHEN r.room < 1 THEN 0 WHEN r.ordered THEN 1 WHEN r.strict THEN greatest(least(r.room, r.share), least(r.share, 100))
                          ELSE least(r.room, r.share) END),
           array_agg(r.strict), bool_or(NOT r.rule ? 'slots')
    INTO v_keys, v_rules, v_rooms, v_heads, v_looks, v_strict, v_has_rates FROM rooms r;
    IF v_keys IS NULL THEN
        RETURN;
    END IF;

    SELECT coalesce(array_agg(k.nth), '{}'), array_agg(c.place), array_agg(k.nth) FILTER (WHERE c.number > 1) INTO v_nths, v_places, v_several
    FROM unnest(v_keys, v_looks, v_heads) WITH ORDINALITY AS k (key, looks, head, nth),
         LATERAL (SELECT w.ctid AS place, jsonb_array_length(w.flow -> 'limits') AS number
                  FROM skiplock.jobs_waiting w
                  WHERE w.state = 'blocked' AND w.blocked_on = k.key
                  ORDER BY CASE WHEN w.flow ? 'order' THEN 0 ELSE w.priority END DESC, w.position
                  LIMIT k.looks FOR UPDATE SKIP LOCKED) c
    WHERE k.looks > 0 AND (k.head IS NULL OR c.place = k.head);

    -- Loops over arrays and no joins of them, which would compare each key with each.
    v_numbers := array_fill(0::bigint, ARRAY[cardinality(v_keys)]);
    FOR v_at IN 1..coalesce(cardinality(v_several), 0) LOOP
        v_strict[v_several[v_at]] := true;
    END LOOP;
    FOR v_at IN 1..cardinality(v_nths) LOOP
        v_numbers[v_nths[v_at]] := v_numbers[v_nths[v_at]] + 1;
        IF v_strict[v_nths[v_at]] THEN
            v_others := v_others || v_places[v_at];
            v_other_keys := v_other_keys || v_keys[v_nths[v_at]];
        ELSE
            v_plain := v_plain || v_places[v_at];
        END IF;
    END LOOP;
    IF v_has_rates THEN
        FOR v_at IN 1..cardinality(v_keys) LOOP
            IF v_numbers[v_at] > 0 AND NOT v_strict[v_at] AND NOT v_rules[v_at] ? 'slots' THEN
                PERFORM skiplock._count_start(v_keys[v_at], v_rules[v_at], $1, v_numbers[v_at]);
            END IF;
        END LOOP;
    END IF;
    -- Those without further limits take their slots first, so that those after them see what is left.
    IF v_plain <> '{}' THEN
        SELECT e.number, e.queues INTO v_entered FROM skiplock._enter(v_plain) e;
        moved := v_entered.number; queues := coalesce(v_entered.queues, '{}');
    END IF;
    IF v_others <> '{}' THEN
        SELECT e.number, e.queues INTO v_entered FROM skiplock._enter(skiplock._admit_strictly(v_others, v_other_keys, $1)) e;
        moved := moved + v_entered.number; queues := queues || coalesce(v_entered.queues, '{}');
    END IF;

    -- Keys that had more room than was looked at go on in the next round; keys of which a job was skipped that somebody has locked
    -- (to replace or to cancel it, which may yet come to nothing) must not be forgotten either.
    FOR v_at IN 1..cardinality(v_keys) LOOP
        CONTINUE WHEN v_rooms[v_at] < 1;
        IF v_numbers[v_at] < v_looks[v_at] THEN
            IF skiplock._has_room_and_line(v_keys[v_at], $1) THEN
                again := again || v_keys[v_at];
            END IF;
        ELSIF v_rooms[v_at] > v_looks[v_at] OR v_strict[v_at] AND skiplock._has_room_and_line(v_keys[v_at], $1) THEN
            INSERT INTO skiplock.nudges (key) VALUES (v_keys[v_at]);
        END IF;
    END LOOP;
    IF v_has_rates THEN
        PERFORM skiplock._wake_meters(v_keys, v_rules, $1);
    END IF;
END $$;

-- Whether somebody stands in the line of a key that has room.
CREATE OR REPLACE FUNCTION skiplock._has_room_and_line(key text, at timestamptz) RETURNS boolean
LANGUAGE sql STABLE
AS $$
    SELECT coalesce((SELECT skiplock._room($1, skiplock._rule($1, l.item), $2) > 0
        FROM (SELECT w.flow FROM skiplock.jobs_waiting w WHERE w.state = 'blocked' AND w.blocked_on = $1 LIMIT 1) h,
             jsonb_array_elements(h.flow -> 'limits') AS l (item)
        WHERE l.item ->> 'key' = $1 LIMIT 1), false)
$$;

-- Nudges that are for all keys of a name (a limit was changed): the next `batch` keys in line are looked through.
CREATE OR REPLACE FUNCTION skiplock._nudge_names(batch integer) RETURNS void
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    v_nudge record;
    v_keys text[];
BEGIN
    SELECT n.n, n.key, n.after INTO v_nudge FROM skiplock.nudges n WHERE n.after IS NOT NULL ORDER BY n.n LIMIT 1;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    v_keys := ARRAY(SELECT k.key FROM skiplock._keys_in_line(v_nudge.after, $1) k);
    INSERT INTO skiplock.nudges (key) SELECT k.key FROM unnest(v_keys) AS k (key) WHERE split_part(k.key, E'\x1f', 1) = v_nudge.key;
    DELETE FROM skiplock.nudges n WHERE n.n = v_nudge.n;
    IF cardinality(v_keys) = $1 THEN
        INSERT INTO skiplock.nudges (key, after) VALUES (v_nudge.key, v_keys[$1]);
    END IF;
END $$;

-- The keys somebody stands in line for, in their order, by skipping through the index.
CREATE OR REPLACE FUNCTION skiplock._keys_in_line(after text, batch integer) RETURNS TABLE (key text)
LANGUAGE sql STABLE
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    WITH RECURSIVE line AS (
        (SELECT w.blocked_on AS key, 1 AS nth FROM skiplock.jobs_waiting w WHERE w.state = 'blocked' AND w.blocked_on > $1 ORDER BY w.blocked_on LIMIT 1)
        UNION ALL
        SELECT (SELECT w.blocked_on FROM skiplock.jobs_waiting w WHERE w.state = 'blocked' AND w.blocked_on > l.key ORDER BY w.blocked_on LIMIT 1), l.nth + 1
        FROM line l WHERE l.key IS NOT NULL AND l.nth < $2
    )
    SELECT l.key FROM line l WHERE l.key IS NOT NULL
$$;

-- When there is something to admit, or to look at: now if somebody nudged; NULL: not before somebody does.
CREATE OR REPLACE FUNCTION skiplock._next_admission(at timestamptz) RETURNS timestamptz
LANGUAGE sql STABLE
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT CASE WHEN (SELECT true FROM skiplock.nudges LIMIT 1) THEN $1
                ELSE (SELECT m.wake_at FROM skiplock.meters m WHERE m.wake_at IS NOT NULL ORDER BY m.wake_at LIMIT 1) END
$$;

-- Jobs with several limits: each is let in if all of them have room, else it goes to the line of the first that has none, where
-- whoever frees that one finds it. It holds no slot meanwhile, with two exceptions. One whose order is kept takes the slot of that
-- key (its first limit) when its turn has come, so that nobody passes it. One that was sent from line to line some times
-- takes what slots there are, or it might wait for ever for two keys that are never free at the same moment. Neither can block
-- others for good: slots are taken in one order by all who wait with slots in hand (an ordered key first, then by key).
CREATE OR REPLACE FUNCTION skiplock._admit_strictly(places tid[], keys text[], at timestamptz) RETURNS tid[]
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
    v_job record;
    v_full text;
    v_turned integer;
    v_closed text[] := '{}';  -- keys that are full by now: nobody else of their lines
    v_in tid[] := '{}';
BEGIN
    FOR v_job IN
        SELECT w.ctid AS place, w.id, w.flow, p.key FROM unnest($1, $2) WITH ORDINALITY AS p (place, key, nth)
        JOIN LATERAL (SELECT x.ctid, x.* FROM skiplock.jobs_waiting x WHERE x.ctid = p.place) w ON true ORDER BY p.nth
    LOOP
        CONTINUE WHEN v_job.key = ANY (v_closed);
        v_turned := coalesce((v_job.flow ->> 'turned')::integer, 0);
        v_full := skiplock._full_limit(v_job.id, v_job.flow, v_job.key, $3, v_turned >= 3);
        IF v_full IS NULL THEN
            INSERT INTO skiplock.slots (key, job_id)
            SELECT l.item ->> 'key', v_job.id FROM jsonb_array_elements(v_job.flow -> 'limits') AS l (item) WHERE l.item ? 'slots'
            ON CONFLICT DO NOTHING;
            PERFORM skiplock._count_start(l.item ->> 'key', skiplock._rule(l.item ->> 'key', l.item), $3, 1)
            FROM jsonb_array_elements(v_job.flow -> 'limits') AS l (item) WHERE NOT l.item ? 'slots';
            v_in := v_in || v_job.place;
        ELSIF v_full = v_job.key THEN
            v_closed := v_closed || v_full;
        ELSE
            IF v_job.flow ? 'order' AND v_job.key = v_job.flow -> 'limits' -> 0 ->> 'key' THEN
                INSERT INTO skiplock.slots (key, job_id) VALUES (v_job.key, v_job.id) ON CONFLICT DO NOTHING;
            END IF;
            UPDATE skiplock.jobs_waiting w SET blocked_on = v_full, flow = w.flow || jsonb_build_object('turned', v_turned + 1)
            WHERE w.ctid = v_job.place;
            -- A rate must know that somebody waits for it.
            INSERT INTO skiplock.nudges (key) SELECT v_full FROM skiplock.meters m WHERE m.key = v_full AND m.wake_at IS NULL;
        END IF;
    END LOOP;
    RETURN v_in;
END $$;

-- The first limit of a job that has no room, that of its line first; NULL: all have. Its own slots do not stand in its way.
-- `takes`: take the slots there are.
CREATE OR REPLACE FUNCTION skiplock._full_limit(id bigint, flow jsonb, line text, at timestamptz, takes boolean) RETURNS text
LANGUAGE plpgsql
AS $$
#variable_conflict use_column
DECLARE
    v_limit record;
BEGIN
    FOR v_limit IN
        SELECT l.item ->> 'key' AS key, l.item ? 'slots' AS is_slot,
               l.item ? 'slots' AND (SELECT true FROM skiplock.slots s WHERE s.key = l.item ->> 'key' AND s.job_id = $1) IS TRUE AS is_held,
               skiplock._rule(l.item ->> 'key', l.item) AS rule
        FROM jsonb_array_elements($2 -> 'limits') WITH ORDINALITY AS l (item, nth)
        ORDER BY CASE WHEN NOT $5 THEN l.item ->> 'key' = $3 END DESC, l.item ? 'slots' DESC, $2 ? 'order' AND l.nth = 1 DESC, l.item ->> 'key'
    LOOP
        IF NOT v_limit.is_held THEN
            IF skiplock._room(v_limit.key, v_limit.rule, $4) < 1 THEN
                RETURN v_limit.key;
            END IF;
            IF $5 AND v_limit.is_slot THEN
                INSERT INTO skiplock.slots (key, job_id) VALUES (v_limit.key, $1) ON CONFLICT DO NOTHING;
            END IF;
        END IF;
    END LOOP;
    RETURN NULL;
END $$;

-- Blocked → ready, with the slots of their limits.
CREATE OR REPLACE FUNCTION skiplock._enter(places tid[]) RETURNS TABLE (number integer, queues text[])
LANGUAGE plpgsql
SET jit = off SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
BEGIN
    WITH gone AS MATERIALIZED (
        DELETE FROM skiplock.jobs_waiting w WHERE w.ctid = ANY ($1) RETURNING w.*
    ), drawn AS MATERIALIZED (
        SELECT nextval('skiplock.job_numbers') AS number, g.* FROM (SELECT * FROM gone ORDER BY gone.position) g
    ), held AS (
        INSERT INTO skiplock.slots (key, job_id)
        SELECT l.item ->> 'key', g.id FROM gone g, jsonb_array_elements(g.flow -> 'limits') AS l (item) WHERE l.item ? 'slots'
        ON CONFLICT DO NOTHING
    ), fair AS (
        SELECT f.* FROM (
            SELECT array_agg(g.id ORDER BY g.number) AS ids, array_agg(g.queue ORDER BY g.number) AS queues,
                   array_agg(g.priority ORDER BY g.number) AS priorities, array_agg(g.flow ->> 'fair' ORDER BY g.number) AS keys,
                   array_agg(coalesce((g.flow ->> 'weight')::float8, 1) ORDER BY g.number) AS weights
            FROM drawn g WHERE g.flow ? 'fair') a,
            LATERAL skiplock._fair_places(a.ids, a.queues, a.priorities, a.keys, a.weights) f
        WHERE a.ids IS NOT NULL
    ), entered AS (
        INSERT INTO skiplock.jobs_ready AS j
            (id, position, lease, enqueued_at, run_at, attempt, max_attempts, priority, losses, state, queue, task, args,
             tags, meta, options, error, flow, expires_at)
        SELECT p.id, p.place, p.lease, p.enqueued_at, p.run_at, p.attempt, p.max_attempts, p.priority, p.losses, 'ready',
               p.queue, p.task, p.args, p.tags, p.meta, p.options, p.error, p.flow - 'turned', p.expires_at
        FROM (SELECT coalesce(f.place, d.number) AS place, d.* FROM drawn d LEFT JOIN fair f ON f.id = d.id ORDER BY d.number) p
        RETURNING j.queue
    )
    SELECT count(*)::integer, array_agg(DISTINCT e.queue) INTO number, queues FROM entered e;
    RETURN NEXT;
END $$;
