-- The one clock. Everything that compares or stores a time asks here, so that tests can move it.
CREATE OR REPLACE FUNCTION skiplock.now() RETURNS timestamptz
LANGUAGE sql VOLATILE PARALLEL SAFE
AS $$ SELECT pg_catalog.clock_timestamp() $$;
