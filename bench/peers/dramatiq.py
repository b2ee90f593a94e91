"""Dramatiq, with its Redis broker; `dramatiq_postgres` is the same with another."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from bench.marks import Marks, payload
from bench.peers.peer import Peer, RedisPeer, wait_for_signal
from bench.system import Ask


class Dramatiq(Peer):
    """Any broker."""

    has_bulk = False
    _broker: Any
    _noop: Any

    @abstractmethod
    def _make_broker(self) -> Any:
        """The broker."""

    def _open(self, marks: Marks | None) -> None:
        import dramatiq

        self._broker = self._make_broker()
        dramatiq.set_broker(self._broker)

        @dramatiq.actor(actor_name="noop")
        def noop(to: str, subject: str, n: int) -> None:
            assert marks
            marks.start(n)

        self._noop = noop

    async def open(self) -> None:
        self._open(None)

    async def one(self, n: int) -> None:
        self._noop.send(**payload(n))

    async def close(self) -> None:
        self._broker.close()

    def work(self, marks: Marks) -> None:
        """What its command does in one of its processes."""
        from dramatiq import Worker

        self._open(marks)
        self._broker.emit_after("process_boot")
        worker = Worker(self._broker, worker_threads=32)
        worker.start()
        wait_for_signal()
        worker.stop()
        self._broker.close()


class Adapter(Dramatiq, RedisPeer):
    name = "dramatiq"
    packages = ("dramatiq[redis]", "hiredis")
    settings = "Redis broker, 32 threads, default middleware, hiredis"

    def _make_broker(self) -> Any:
        from dramatiq.brokers.redis import RedisBroker

        return RedisBroker(url=self.dsn)

    @classmethod
    def unfinished(cls, ask: Ask) -> int:
        return int(ask("HLEN", "dramatiq:default.msgs"))
