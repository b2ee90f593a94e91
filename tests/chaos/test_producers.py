"""A producer's pool after the database was away: it works again within seconds, however many of its connections died.

Kinds: pooled connections that died with the server (DB-01, DB-44, DB-49), waits that double with every dead connection or
with every second of an outage (DB-14, DB-50). To see it fail: give the pool a `check` of its own (psycopg_pool then waits 1, 2, 4, 8 … s
between the dead connections that it finds), or leave out `reconnect_timeout` in store/pool.py.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from skiplock import Skiplock
from skiplock.store.embedded import EmbeddedServer, start_server
from skiplock.store.migrate import migrate
from tests.support.fleets import one
from tests.support.server import SETTINGS, binaries_under_test

WIDE = 8  # connections in the pool
SOON = 5.0  # seconds, generously: what it takes is well below 3


@pytest.fixture(scope="module")
def own_server() -> Iterator[EmbeddedServer]:
    with start_server(binaries=binaries_under_test(), settings=SETTINGS) as server:
        migrate(server.dsn())
        yield server


@pytest.fixture
def app(own_server: EmbeddedServer) -> Iterator[Skiplock]:
    made = Skiplock(own_server.dsn(), pool_size=WIDE)

    @made.task(name="t")
    def work() -> None: ...

    yield made
    made.close()


def fill_pool(app: Skiplock, server: EmbeddedServer) -> None:
    """All connections of the pool open at once, by calls that wait for each other."""
    together = threading.Barrier(WIDE)

    def call(_: int) -> None:
        with app.faces[0].database.connection() as connection:
            together.wait(30)
            connection.execute("SELECT 1")

    with ThreadPoolExecutor(WIDE) as threads:
        list(threads.map(call, range(WIDE)))
    open_now = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'skiplock'"
    assert one(server.dsn(), open_now) == WIDE


def test_a_pool_of_dead_connections_is_replaced_at_once(own_server: EmbeddedServer, app: Skiplock) -> None:
    fill_pool(app, own_server)
    own_server.restart("fast")
    began = time.monotonic()
    for _ in range(WIDE + 2):
        app.find_task("t").enqueue()
    assert time.monotonic() - began < SOON


def test_a_call_that_waits_out_an_outage_is_made_when_the_server_is_back(
    own_server: EmbeddedServer, app: Skiplock
) -> None:
    """However long it was: pauses between two tries do not grow with it. It takes 8 s because pauses that double are
    short in the beginning."""
    fill_pool(app, own_server)
    own_server.halt("immediate")
    with ThreadPoolExecutor(2) as threads:
        calls = [threads.submit(app.find_task("t").enqueue) for _ in range(2)]
        pauses = threading.Event()
        pauses.wait(8.0)  # the outage itself
        own_server.resume()
        back = time.monotonic()
        for call in calls:
            call.result(SOON)
        assert time.monotonic() - back < SOON


async def test_the_same_in_a_coroutine(own_server: EmbeddedServer) -> None:
    app = Skiplock(own_server.dsn(), pool_size=WIDE)

    @app.task(name="t")
    async def work() -> None: ...

    await asyncio.gather(*[work.aenqueue() for _ in range(4 * WIDE)])
    await asyncio.to_thread(own_server.halt, "immediate")
    calls = [asyncio.create_task(work.aenqueue()) for _ in range(3)]
    done, _ = await asyncio.wait(calls, timeout=4.0)
    assert not any(call.exception() is None for call in done), "nobody can have stored it"
    await asyncio.to_thread(own_server.resume)
    back = time.monotonic()
    await asyncio.gather(*[call for call in calls if call not in done])
    await work.aenqueue()
    assert time.monotonic() - back < SOON
    await app.aclose()
