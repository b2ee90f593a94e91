"""awa."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bench.child import run
from bench.marks import Marks, payload
from bench.peers.peer import Peer, until_signal

BATCH = 20_000


@dataclass
class Noop:
    """The job."""

    to: str
    subject: str
    n: int


class Adapter(Peer):
    name = "awa"
    packages = ("awa-pg", "uvloop")
    settings = f"queue storage, max_workers 400, claim_batch_size 512, pool 20; bulk: COPY of {BATCH:,}"
    # Its view awa.jobs takes over a second at 100,000 rows, so: enqueued minus completed, from its own counters.
    unfinished_sql = """
        select coalesce(sum(awa.sequence_next_value(seq_name) - 1), 0)
             - (select coalesce(sum(cardinality(job_ids)), 0) from awa.receipt_completion_batches)
             - (select count(*) from awa.done_entries)
             - (select coalesce(sum(pruned_completed_count), 0) from awa.queue_terminal_rollups)
        from awa.queue_enqueue_heads"""
    _client: Any

    async def open(self, pool: int = 10) -> None:
        import awa

        # It wants a host here; the socket's folder, further on, wins.
        self._client = awa.AsyncClient(self.dsn.replace("@/", "@localhost/"), pool)

    def setup(self) -> None:
        async def install() -> None:
            await self.open()
            await self._client.migrate()
            # Without this it stays at the older of its two storages.
            await self._client.install_queue_storage(schema="awa")
            await self.close()

        run(install())

    async def bulk(self, numbers: Sequence[int]) -> None:
        for k in range(0, len(numbers), BATCH):
            jobs = [Noop(**payload(n)) for n in numbers[k : k + BATCH]]
            await self._client.enqueue_many_copy(jobs, queue="q")

    async def one(self, n: int) -> None:
        await self._client.insert(Noop(**payload(n)), queue="q")

    async def close(self) -> None:
        await self._client.close()

    def work(self, marks: Marks) -> None:
        run(self._loop(marks))

    async def _loop(self, marks: Marks) -> None:
        await self.open(20)

        @self._client.task(Noop, queue="q")
        async def noop(job: Any) -> None:
            marks.start(job.args.n)

        await self._client.start([{"name": "q", "max_workers": 400, "claimers": 1, "claim_batch_size": 512}])
        await until_signal()
        await self._client.shutdown()
