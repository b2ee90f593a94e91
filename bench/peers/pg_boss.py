"""pg-boss, on Node. A handler gets, and fails, a whole batch; it polls, so its rate is loops × batch / interval."""

from bench.peers.peer import NodePeer


class Adapter(NodePeer):
    name = "pg_boss"
    package = "pg-boss@10"  # later ones need Node 22
    settings = "4 loops of batchSize 5,000, polling each 0.5 s (its least; it has no notify), pool 10; bulk: 10,000"
    unfinished_sql = "select count(*) from pgboss.job where name = 'q' and state in ('created', 'retry', 'active')"
