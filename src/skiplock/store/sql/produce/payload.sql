-- Where large arguments are. A job whose arguments are longer than _large_args() carries NULL and has a row in payloads, made by
-- the statement that makes the job and gone with the job; it is never changed. What moves a job knows nothing of it.

-- Longer than so many bytes. A row of 2,000 bytes is one that PostgreSQL compresses and cuts up, each time it is written; from
-- there on this halves the CPU time of a job whose arguments do not compress, costs 2 to 5 % where they do, and always saves WAL.
-- Below it the second row costs what it saves (docs/performance.md, "Large arguments"). A change counts for new jobs only.
CREATE OR REPLACE FUNCTION skiplock._large_args() RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT 1800 $$;

-- More bytes than this are refused: 64 MiB. The server copies an argument several times on its way into the table and out
-- again, and so does the worker; at 1 GB PostgreSQL itself gives up, with an error that names nothing.
CREATE OR REPLACE FUNCTION skiplock._most_args() RETURNS integer
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT 67108864 $$;

-- The arguments of a job, wherever they are: SELECT skiplock.args(j) FROM skiplock.jobs j WHERE j.state = 'dead'
CREATE OR REPLACE FUNCTION skiplock.args(job skiplock.jobs) RETURNS json
LANGUAGE sql STABLE
AS $$ SELECT coalesce(job.args, (SELECT p.args FROM skiplock.payloads p WHERE p.job_id = job.id)) $$;
