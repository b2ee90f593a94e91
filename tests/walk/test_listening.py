"""Who reads the ear's socket: the event loop while it can, the thread when it cannot, and nobody claims for others' bells."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import psycopg
import pytest

from skiplock import Skiplock
from skiplock.store.call import Call
from skiplock.work.claim import Claimer
from skiplock.work.listen import DeafError, Ear, EarWatch
from tests.support.databases import connect
from tests.support.verbs import Verbs
from tests.support.workers import running_worker, settled, until


class Heard:
    """An ear with a notebook: what was heard, by which thread."""

    def __init__(self, app: Skiplock) -> None:
        self.dsn = app.dsn
        self.bells: list[tuple[str, int]] = []
        self.sockets: list[int] = []
        self.ear = Ear(
            app.dsn,
            app.schema,
            on_bell=lambda queue: self.bells.append((queue, threading.get_ident())),
            on_cancel=lambda worker: None,
            on_timer=lambda: None,
            on_open=self.sockets.append,
            notify=self._notify,
            events=app.events,
        )
        self.ear.start()

    def _notify(self, call: Call[None]) -> None:
        """As the heart does: on another connection."""
        with connect(self.dsn) as other:
            psycopg.RawCursor(other).execute(call.sql.encode(), call.params)

    def names(self) -> list[str]:
        return [name for name, _ in self.bells]


@pytest.fixture
def heard(app: Skiplock) -> Iterator[Heard]:
    found = Heard(app)
    yield found
    found.ear.stop()
    found.ear.join(10)
    assert not found.ear.is_alive()


def ring(db: Verbs, queue: str) -> None:
    db.rows("SELECT pg_notify('skiplock.bell', %s)", queue)


async def test_the_loop_hears_a_bell_itself(heard: Heard, db: Verbs) -> None:
    await until(lambda: heard.ear.works)
    watch = EarWatch(heard.ear)
    watch.watch(heard.sockets[-1])
    # The thread looks every half second and may be first now and then; the loop is first nearly always.
    for n in range(10):
        ring(db, f"q{n}")
        await until(lambda n=n: f"q{n}" in heard.names())
    assert sum(thread == threading.get_ident() for _, thread in heard.bells) >= 5
    assert heard.names() == [f"q{n}" for n in range(10)]
    watch.close()


async def test_a_blocked_loop_leaves_no_notification_unread(heard: Heard, db: Verbs) -> None:
    """A listener that does not read pins the server's queue for everybody."""
    await until(lambda: heard.ear.works)
    watch = EarWatch(heard.ear)
    watch.watch(heard.sockets[-1])
    for n in range(2000):
        ring(db, f"q{n}")
    deadline = time.monotonic() + 20
    while len(heard.bells) < 2000:  # without giving the loop a turn
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert {thread for _, thread in heard.bells} == {heard.ear.ident}
    watch.close()


async def test_a_cut_ear_listens_again_and_the_loop_watches_the_new_one(app: Skiplock, db: Verbs) -> None:
    @app.task(name="t")
    async def work() -> None: ...

    async with running_worker(app, beat_every=100.0, lost_after=300.0, poll_every=100.0) as worker:
        for _ in range(3):
            await worker.until(lambda: worker.worker._ear.works and worker.worker._sleeper.asleep)
            before = len(worker.heard("listen_failed"))
            db.rows(
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'skiplock ear'"
            )
            await worker.until(lambda before=before: len(worker.heard("listen_failed")) > before)
            await settled(await work.aenqueue(), limit=10)


async def test_the_thread_ends_at_once(app: Skiplock) -> None:
    heard = Heard(app)
    await until(lambda: heard.ear.works)
    began = time.monotonic()
    heard.ear.stop()
    await asyncio.to_thread(heard.ear.join, 10)
    assert time.monotonic() - began < 0.4 and not heard.ear.is_alive()


async def test_a_bell_of_another_queue_makes_nobody_claim(
    app: Skiplock, db: Verbs, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(name="t")
    async def work() -> None: ...

    claims: list[float] = []
    claim = Claimer.claim

    async def counted(self: Claimer, *args: object) -> object:
        claims.append(time.monotonic())
        return await claim(self, *args)  # type: ignore[arg-type]  # passed on as it came

    monkeypatch.setattr(Claimer, "claim", counted)
    monkeypatch.setattr("skiplock.work.bell.RECHECKS", ())
    async with running_worker(app, beat_every=100.0, lost_after=300.0, poll_every=100.0) as worker:
        await worker.until(lambda: worker.worker._ear.works and worker.worker._sleeper.asleep)
        claims.clear()
        for _ in range(50):
            ring(db, "another queue")
        ring(db, "default")
        await worker.until(lambda: claims)
        await worker.until(lambda: worker.worker._sleeper.asleep)
        assert len(claims) == 1


async def test_a_job_that_ends_makes_nobody_claim_when_the_line_was_empty(
    app: Skiplock, db: Verbs, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @app.task(name="t")
    async def work() -> None: ...

    claims: list[float] = []
    claim = Claimer.claim

    async def counted(self: Claimer, *args: object) -> object:
        claims.append(time.monotonic())
        return await claim(self, *args)  # type: ignore[arg-type]  # passed on as it came

    monkeypatch.setattr(Claimer, "claim", counted)
    monkeypatch.setattr("skiplock.work.bell.RECHECKS", ())
    async with running_worker(app, beat_every=100.0, lost_after=300.0, poll_every=100.0) as worker:
        await worker.until(lambda: worker.worker._ear.works and worker.worker._sleeper.asleep)
        claims.clear()
        for _ in range(10):
            await settled(await work.aenqueue())
            await worker.until(lambda: worker.worker._sleeper.asleep)
        assert len(claims) == 10


def test_the_servers_queue_is_not_pinned_by_a_blocked_worker(heard: Heard, db: Verbs, dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as look:
        for n in range(500):
            ring(db, f"{n} {'x' * 500}")
        deadline = time.monotonic() + 20
        while look.execute("SELECT pg_notification_queue_usage()").fetchone() != (0.0,):
            assert time.monotonic() < deadline
            time.sleep(0.05)


async def test_the_number_of_a_socket_that_is_gone_is_not_watched(heard: Heard) -> None:
    """By the time the loop hears of a connection the thread may have closed it, and another file may have its number.

    To see it fail: let `watch` (work/listen.py) take whatever has the number.
    """
    await until(lambda: heard.sockets)
    watch = EarWatch(heard.ear)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        watch.watch(ours.fileno())
        assert watch._fd < 0
    watch.watch(heard.sockets[-1])
    assert watch._fd >= 0
    watch.close()


async def test_an_ear_that_hears_nothing_says_so_and_costs_nothing(
    app: Skiplock, db: Verbs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It rests without a connection, and its old socket makes nobody run in circles.

    To see it fail: let `_readable` (work/listen.py) pass over what `hear` answers.
    """
    monkeypatch.setattr("skiplock.work.listen.PROVED_WITHIN", 1.5)
    monkeypatch.setattr(Heard, "_notify", lambda self, call: None)
    told: list[dict[str, object]] = []
    app.on("listen_failed", lambda event: told.append(event.fields))
    heard = Heard(app)
    await until(lambda: heard.sockets)
    watch, reads = EarWatch(heard.ear), 0
    watch.watch(heard.sockets[-1])
    hear = heard.ear.hear

    def counted() -> bool:
        nonlocal reads
        reads += threading.current_thread() is threading.main_thread()
        return hear()

    monkeypatch.setattr(heard.ear, "hear", counted)
    await until(lambda: told)
    assert isinstance(told[0]["error"], DeafError) and not heard.ear.works
    await until(lambda: watch._fd < 0)
    assert reads < 10
    ears = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'skiplock ear' AND datname = current_database()"
    )
    await until(lambda: db.value(ears) == 0)
    watch.close()
    heard.ear.stop()
    await asyncio.to_thread(heard.ear.join, 10)
