-- Limits at run time. `declared`: what the code says, kept beside what was set by hand, to go back to.
ALTER TABLE skiplock.limits ADD COLUMN declared jsonb;

-- A nudge for all keys of a name: `after` says up to which key they have been looked through.
ALTER TABLE skiplock.nudges ADD COLUMN after text;
CREATE INDEX nudges_names ON skiplock.nudges (n) WHERE after IS NOT NULL;

-- How many jobs of a queue may run at a time, over all workers; NULL: as many as the workers have slots for. A job claimed from
-- such a queue says so in its `flow`, so that those of other queues pay nothing for it.
ALTER TABLE skiplock.queues ADD COLUMN slots integer;
CREATE INDEX jobs_running_in_queue ON skiplock.jobs_running ((flow ->> 'in_queue')) WHERE flow ? 'in_queue';
