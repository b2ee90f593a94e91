-- Make the partitions of finished jobs for today and the coming days. Attached rather than created in place, which
-- blocks no settle; a day for which the default partition already holds rows is left to it. Returns how many were made.
-- Attaching still needs the default partition to itself for a moment, which whoever has read jobs in a transaction that is
-- open has in hand. It is not waited for: all others would wait behind us. Tomorrow is time enough, there are days ahead.
-- With the owner's rights, so that the partitions are the owner's too, whoever's worker makes them.
CREATE OR REPLACE FUNCTION skiplock.make_days(ahead integer DEFAULT 7) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp SET lock_timeout = '100ms'
SET datestyle = 'ISO' SET timezone = 'UTC' -- the bounds are written as text below: other styles abbreviate zones, ambiguously
AS $$
DECLARE
    v_today date := (skiplock.now() AT TIME ZONE 'UTC')::date;
    v_day date;
    v_name text;
    v_made integer := 0;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtext('skiplock.make_days')) THEN
        RETURN 0;
    END IF;
    FOR v_day IN SELECT v_today + n FROM generate_series(0, ahead) AS n LOOP
        v_name := 'jobs_finished_' || to_char(v_day, 'YYYYMMDD');
        CONTINUE WHEN to_regclass('skiplock.' || v_name) IS NOT NULL;
        BEGIN
            CONTINUE WHEN EXISTS (SELECT FROM skiplock.jobs_finished_default d
                                  WHERE d.finished_at >= v_day::timestamp AT TIME ZONE 'UTC'
                                    AND d.finished_at < (v_day + 1)::timestamp AT TIME ZONE 'UTC');
            EXECUTE 'CREATE TABLE skiplock.' || v_name || ' (LIKE skiplock.jobs_finished INCLUDING DEFAULTS)';
            EXECUTE 'ALTER TABLE skiplock.jobs_finished ATTACH PARTITION skiplock.' || v_name || format(' FOR VALUES FROM (%L) TO (%L)',
                           v_day::timestamp AT TIME ZONE 'UTC', (v_day + 1)::timestamp AT TIME ZONE 'UTC');
        EXCEPTION WHEN lock_not_available THEN
            RETURN v_made;
        END;
        v_made := v_made + 1;
    END LOOP;
    RETURN v_made;
END $$;
