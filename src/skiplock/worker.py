"""The worker: one process that claims, runs and settles. The rooms are wired here.

Ear (thread) ──bell──┐                        ┌─▶ Runner ─▶ handlers
Heart (thread) ─beat─┴─▶ claim loop ─▶ Lines ─┤
                          ▲   └─ Claimer      └─▶ Settler ─▶ database
                          └────── space ◀──────── attempts end
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from skiplock._version import __version__
from skiplock.app import Skiplock
from skiplock.core.decide import LOST, SHUTDOWN
from skiplock.core.outcome import Outcome, Verdict
from skiplock.core.settings import WorkerSettings
from skiplock.store.link import Link, is_hopeless, pause
from skiplock.upkeep.days import make_days_call
from skiplock.upkeep.promote import BATCH, promote_call
from skiplock.work.beat import Beat, Heart, Promotion, Pulse, leave_call, register_call
from skiplock.work.bell import Sleeper
from skiplock.work.claim import Claimer
from skiplock.work.context import Reach
from skiplock.work.lines import Lines
from skiplock.work.listen import Ear, EarWatch
from skiplock.work.prepared import Prepared
from skiplock.work.run import Runner
from skiplock.work.settle import Settler
from skiplock.work.startmap import StartMap

STALLED_AFTER = 1.0  # seconds without a start after which jobs claimed ahead are given back
FLUSH_TIME = 10.0  # seconds at the end for outcomes that are not settled yet


class Worker:
    """Run with `await Worker(app, settings).run()`; stop with `stop()`."""

    def __init__(self, app: Skiplock, settings: WorkerSettings, *, startmap: StartMap | None = None) -> None:
        self.app, self.settings = app, settings
        self.id = 0
        self.name = settings.name or f"{socket.gethostname()}:{os.getpid()}"
        self._startmap = startmap
        self._events = app.events
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._space = asyncio.Event()  # a slot may be free, or `_news`
        self._news = asyncio.Event()  # a job may be ready, or something else has changed
        self._suspects = 0
        self._lost = False
        self._reason = ""

    def stop(self, reason: str = "stop") -> None:
        """First call: finish gracefully. Second: at once. Call from the loop (or by call_soon_threadsafe)."""
        if self._stop.is_set():
            self._hurry.set()
        self._reason = self._reason or reason
        self._stop.set()
        self._look()

    # -- life --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until stopped. Raises ConfigurationError or SchemaError if it cannot even start; retries all else."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        dsn, schema = self.app.dsn, self.app.schema
        self._claims, self._settles = Link(dsn, "claim"), Link(dsn, "settle")
        await self._register()
        if self._stop.is_set():
            await self._claims.close()
            return  # told to stop before it could even register
        self._build(dsn, schema)
        settling = asyncio.create_task(self._settler.run())
        tidying = asyncio.create_task(self._tidy())
        self._heart.start()
        self._ear.start()
        self._events.emit("worker_started", worker=self.id, name=self.name, queues=dict(self.settings.queues))
        try:
            await self._claim_loop()
        finally:
            tidying.cancel()
            await self._shut_down(settling)

    def _build(self, dsn: str, schema: str) -> None:
        settings, app = self.settings, self.app
        self._lines = Lines(settings.queues, settings.max_ahead, settings.max_claim)
        self._settler = Settler(self._settles, schema, self._events, self._startmap)
        self._claimer = Claimer(self._claims, schema, list(app.tasks))
        self._sleeper = Sleeper(self._claims, schema, list(settings.queues))
        sync, async_ = app.faces
        reach = Reach(schema, app.settings.max_result_bytes, lambda: sync.database, lambda: async_.database)
        prepared = {name: Prepared(task.spec) for name, task in app.tasks.items()}
        self._heart = Heart(
            dsn,
            schema,
            queues=list(settings.queues),
            every=settings.beat_every,
            lost_after=settings.lost_after,
            pulse=self._pulse,
            on_beat=lambda beat: self._call(self._on_beat, beat),
            on_silence=lambda: self._call(self._on_lost),
            promotion=Promotion(lambda since: promote_call(schema, since=since), BATCH),
            hourly=lambda: make_days_call(schema),
            events=self._events,
        )
        self._runner = Runner(
            prepared,
            self._lines,
            self._settler,
            self._events,
            reach,
            startmap=self._startmap,
            on_space=self._space.set,
            on_delay=self._heart.due_in,
        )
        self._ear = Ear(
            dsn,
            schema,
            on_bell=lambda queue: self._call(self._on_bell, queue),
            on_cancel=self._on_cancel,
            on_timer=self._heart.timer,
            on_open=lambda fd: self._call(self._on_ear, fd),
            events=self._events,
        )
        self._watch = EarWatch(self._ear)

    async def _register(self) -> None:
        settings, failures = self.settings, 0
        call = register_call(
            self.name,
            socket.gethostname(),
            os.getpid(),
            dict(settings.queues),
            __version__,
            settings.lost_after,
            self.app.schema,
        )
        while not self._stop.is_set():
            try:
                self.id = await self._claims.run(call)
                break
            except Exception as error:
                if self.id == 0 and is_hopeless(error):
                    raise
                failures += 1
                wait = pause(failures)
                self._events.emit("beat_failed", error=error, retry_in=wait)
                await self._sleep(wait)
        if self._startmap is not None:
            self._startmap.set_worker(self.id)
        self._lost = False

    # -- what other threads say --------------------------------------------------------------------------------------

    def _call(self, function: Callable[..., Any], *args: Any) -> None:
        if threading.get_ident() == self._thread:
            function(*args)
            return
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:
            return  # the loop has ended: nobody is left to hear it

    def _pulse(self) -> Pulse | None:
        if self._lost:
            return None
        state = "stopping" if self._stop.is_set() else "running"
        return Pulse(self.id, self._lines.running, state, self._sleeper.asleep, self._claimer.cursor.news())

    def _look(self) -> None:
        self._news.set()
        self._space.set()

    def _on_ear(self, fd: int) -> None:
        self._watch.watch(fd)
        self._look()

    def _on_bell(self, queue: str) -> None:
        if queue in self.settings.queues:
            self._look()

    def _on_cancel(self, payload: str) -> None:
        if payload == str(self.id):
            self._heart.beat()

    def _on_beat(self, beat: Beat) -> None:
        if beat.worker != self.id:
            return  # asked before this process was registered anew
        if not beat.known:
            self._on_lost()
            return
        for lost in beat.rescued:
            self._events.emit("worker_rescued", **lost)
        if beat.cancelled:
            self._runner.cancel(beat.cancelled)
        self._suspects = beat.suspects
        if beat.waiting or beat.suspects:
            self._look()

    def _on_lost(self) -> None:
        """Our leases are gone, or must be thought so: stop what runs, fencing does the rest, and start afresh."""
        if self._lost or self._stop.is_set():
            return
        self._lost = True
        self._events.emit("worker_lost", worker=self.id, running=self._lines.running)
        self._lines.take_buffered()
        self._runner.interrupt_all(LOST)
        self._claimer.start_afresh()
        self._look()

    # -- claiming ----------------------------------------------------------------------------------------------------

    async def _claim_loop(self) -> None:
        failures = 0
        while not self._stop.is_set():
            if self._lost:
                await self._register()
                self._heart.beat()
                continue
            try:
                await self._claim_once()
                failures = 0
            except Exception as error:  # whatever it is, the worker works on or exits, but never sits there
                failures += 1
                wait = pause(failures)
                self._events.emit("claim_failed", error=error, retry_in=wait)
                await self._sleep(wait)

    async def _claim_once(self) -> None:
        self._space.clear()
        self._news.clear()
        if self._suspects:
            await self._take_suspects()
        rooms = self._lines.rooms()
        if not rooms or self._stop.is_set():
            await self._space.wait()
            return
        worker, began = self.id, time.monotonic()
        jobs, whole = await self._claimer.claim(worker, rooms)
        self._lines.round_trip += 0.1 * (time.monotonic() - began - self._lines.round_trip)
        if worker != self.id or self._lost:
            return  # declared lost meanwhile: these jobs are someone else's now
        if self._stop.is_set():
            self._release(jobs)
            return
        self._runner.accept(jobs)
        if len(jobs) < sum(rooms.values()) and not any(len(jobs) >= room for room in rooms.values()):
            await self._dry(whole and not jobs, all_lines=len(rooms) == len(self._lines.by_name))
        else:
            await self._sleeper.busy()

    async def _dry(self, nothing: bool, *, all_lines: bool) -> None:
        """The lines are empty, or were short: rest until something may be there.

        A slot that becomes free brings no job if every queue was asked and had less than there was room for.
        """
        if self.settings.drain and nothing and not self._lines.running and not self._lines.buffered:
            self.stop("drained")
            return
        limit = 0.05 if self.settings.drain else self.settings.poll_every
        woken = self._news if all_lines and not self._suspects else self._space
        await self._sleeper.rest(woken, limit, works=self._ear.works)

    async def _take_suspects(self) -> None:
        """Jobs that were lost with a worker before. Once: into free slots. More often: with nothing else running."""
        level, self._suspects = self._suspects, 0
        free = self._lines.free()
        if free and not self._lines.buffered:
            jobs = await self._claimer.claim_suspects(self.id, free, alone=False)
            self._runner.accept(jobs)
            self._suspects = 1 if jobs else 0  # where some were there may be more, for the next free slots
        if level > 1:
            one = dict.fromkeys(self.settings.queues, 1)
            for job in await self._claimer.claim_suspects(self.id, one, alone=True):
                self._release(self._lines.take_buffered())
                await self._settler.flushed()
                await self._either(self._runner.quiet(), self._stop.wait())
                if self._stop.is_set() or self._lost:
                    self._release([job])
                    return
                self._runner.start(job, self._lines.by_name[job.queue])
                await self._either(self._runner.quiet(), self._stop.wait())
            self._heart.beat()  # there may be more of them

    async def _tidy(self) -> None:
        """Give back what was claimed ahead when nothing has started for a while."""
        while True:
            await asyncio.sleep(STALLED_AFTER)
            self._release(self._lines.take_stalled())

    async def _either(self, *waits: Any) -> None:
        tasks = [asyncio.ensure_future(w) for w in waits]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()

    async def _sleep(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stop.wait(), seconds)
        except TimeoutError:
            return

    def _release(self, jobs: list[Any]) -> None:
        for job in jobs:
            self._settler.add(Outcome(job.id, job.lease, Verdict.RELEASE))

    # -- stopping ----------------------------------------------------------------------------------------------------

    async def _shut_down(self, settling: asyncio.Task[None]) -> None:
        running, buffered = self._lines.running, self._lines.buffered
        self._events.emit("worker_stopping", worker=self.id, reason=self._reason, running=running, buffered=buffered)
        self._runner.stopped = True
        self._release(self._lines.take_buffered())
        self._heart.beat()
        if running and self.settings.grace > 0:
            await self._either(self._runner.quiet(), asyncio.sleep(self.settings.grace), self._hurry.wait())
        self._runner.interrupt_all(SHUTDOWN)
        if self._lines.running:
            await self._either(self._runner.quiet(), asyncio.sleep(0.2 if self._hurry.is_set() else 2.0))
        self._runner.abandon_all()
        limit = 1.0 if self._hurry.is_set() else FLUSH_TIME
        await self._either(self._settler.flushed(), asyncio.sleep(limit))
        unsettled = self._settler.pending
        settling.cancel()
        self._heart.stop()
        self._ear.stop()
        self._watch.close()
        released = await self._leave(limit) if not unsettled else 0
        await self._either(self._runner.resources.close(), asyncio.sleep(limit))
        self._runner.close()
        await self._loop.run_in_executor(None, self._heart.join, limit)
        await self._loop.run_in_executor(None, self._ear.join, limit)
        for link in (self._claims, self._settles):
            await self._either(link.close(), asyncio.sleep(1.0))
        await self.app.aclose()
        self._events.emit("worker_stopped", worker=self.id, released=released, unsettled=unsettled)

    async def _leave(self, limit: float) -> int:
        """Give back what is left and strike our name out. If that fails, the others will find us lost."""
        try:
            async with asyncio.timeout(limit):
                await self._claimer.give_back()
                return await self._claims.run(leave_call(self.id, self._claimer.cursor.where(), self.app.schema))
        except Exception as error:
            self._events.emit("beat_failed", error=error, retry_in=0.0)
            return 0
