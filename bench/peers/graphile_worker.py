"""Graphile Worker, on Node."""

from bench.peers.peer import NodePeer


class Adapter(NodePeer):
    name = "graphile_worker"
    package = "graphile-worker"
    settings = "concurrentJobs 24, pool 25, localQueue 500, completeJobBatchDelay 0; bulk: addJobs of 20,000"
    unfinished_sql = "select count(*) from graphile_worker._private_jobs"
