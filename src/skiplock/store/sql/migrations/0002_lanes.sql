-- How far the claims of each lane have got: told by beats, read by a worker that starts, so that its first claims need not
-- walk over what others claimed long ago while someone's old snapshot pins it. Only a hint (skiplock.core.cursor).
CREATE TABLE skiplock.lanes (
    queue    text     NOT NULL,
    priority smallint NOT NULL,
    position bigint   NOT NULL,
    PRIMARY KEY (queue, priority)
) WITH (fillfactor = 50);
