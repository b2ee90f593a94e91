"""The worker: one process that claims, runs and settles. The rooms are wired here.

Ear (thread) ──bell──┐                        ┌─▶ Runner ─▶ handlers
Heart (thread) ─beat─┴─▶ claim loop ─▶ Lines ─┤
                          ▲   └─ Claimer      └─▶ Settler ─▶ database
                          └────── space ◀──────── attempts end
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

from skiplock.app import Skiplock
from skiplock.child import children_for
from skiplock.chores import heart_for
from skiplock.core.decide import LOST, SHUTDOWN
from skiplock.core.outcome import Outcome, Verdict
from skiplock.core.settings import WorkerSettings
from skiplock.registering import name_of, register
from skiplock.store.again import arepeat
from skiplock.store.link import Link, pause
from skiplock.waits import Budget, either, sleep_unless, unless
from skiplock.work.beat import Beat, Pulse, leave_call
from skiplock.work.bell import Sleeper
from skiplock.work.children import rooms
from skiplock.work.claim import Claimer
from skiplock.work.lines import Lines
from skiplock.work.listen import Ear, EarWatch
from skiplock.work.prepared import Prepared
from skiplock.work.reconcile import Reconciler
from skiplock.work.run import Runner
from skiplock.work.settle import Settler
from skiplock.work.startmap import StartMap
from skiplock.work.vigil import Vigil

STALLED_AFTER = 1.0  # seconds without a start after which jobs claimed ahead are given back
FLUSH_TIME = 6.0  # seconds at the end for outcomes that are not settled yet, and for all that the database has to hear
LAST_ANSWER = 2.0  # seconds that a claim may still take once we were told to stop


class Worker:
    """Run with `await Worker(app, settings).run()`; stop with `stop()`."""

    def __init__(self, app: Skiplock, settings: WorkerSettings, *, startmap: StartMap | None = None) -> None:
        self.app, self.settings = app, settings
        self.id = 0
        self.name = name_of(settings)
        self._startmap = startmap
        self._events = app.events
        self._stop = asyncio.Event()
        self._told = asyncio.Event()  # to stop, by someone who will not wait for ever
        self._hurry = asyncio.Event()
        self._space = asyncio.Event()  # a slot may be free, or `_news`
        self._news = asyncio.Event()  # a job may be ready, or something else has changed
        self._suspects = 0
        self._lost = False
        self.reason = ""  # why it ends

    def stop(self, reason: str = "stop") -> None:
        """First call: finish gracefully. Second: at once. Call from the loop (or by call_soon_threadsafe)."""
        if self._told.is_set():
            self._hurry.set()
        self._told.set()
        self.retire(reason)

    def retire(self, reason: str) -> None:
        """Claim no more, and end when what runs has ended, however long that takes. `stop` still ends it in time."""
        self.reason = self.reason or reason
        self._stop.set()
        self._look()

    @property
    def figures(self) -> tuple[int, int, float]:
        """Attempts so far, attempts in progress, and the largest share, of any queue, of slots that stuck handlers hold."""
        return (self._lines.started, self._lines.running, self._runner.stuck_share) if self.id else (0, 0, 0.0)

    # -- life --------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until stopped. Raises ConfigurationError or SchemaError if it cannot even start; retries all else."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        dsn, schema = self.app.dsn, self.app.schema
        self._claims, self._settles = Link(dsn, "claim"), Link(dsn, "settle")
        try:
            await unless(self._stop, self._register(), LAST_ANSWER)
        finally:
            if self.id == 0:
                await self._claims.close()
        if self.id == 0:
            return  # told to stop before it could even register
        self._build(dsn, schema)
        settling = asyncio.create_task(self._settler.run())
        tidying = asyncio.create_task(self._tidy())
        self._heart.start()
        self._ear.start()
        self._events.emit("worker_started", worker=self.id, name=self.name, queues=dict(self.settings.queues))
        try:
            await unless(self._stop, self._claim_loop(), LAST_ANSWER)
        finally:
            await self._shut_down(settling, tidying)

    def _build(self, dsn: str, schema: str) -> None:
        settings, app = self.settings, self.app
        specs = [task.spec for task in app.tasks.values()]
        queues = rooms(settings.queues, specs, settings.children)
        self._lines = Lines(queues, settings.max_ahead, settings.max_claim)
        self._settler = Settler(self._settles, schema, self._events, self._startmap)
        self._claimer = Claimer(self._claims, schema, list(app.tasks))
        self._sleeper = Sleeper(self._claims, schema, list(settings.queues))
        self._children = children_for(app, settings)
        prepared = {name: Prepared(task.spec) for name, task in app.tasks.items()}
        self._vigil = Vigil(self._events, lambda: self._runner.running.values(), self._startmap)
        self._heart = heart_for(app, settings, pulse=self._pulse, on_beat=self._heard, on_turn=self._vigil.turn)
        self._runner = Runner(
            prepared,
            self._lines,
            self._settler,
            self._events,
            app.reach(),
            startmap=self._startmap,
            children=self._children,
            on_space=self._space.set,
            on_delay=self._heart.due_in,
        )
        self._reconciler = Reconciler(
            self._claims, schema, self._lines, self._runner, self._settler, self._events, self._reopened
        )
        self._ear = Ear(
            self.app.listen_dsn,
            schema,
            on_bell=lambda queue: self._call(self._on_bell, queue),
            on_cancel=self._on_cancel,
            on_timer=self._heart.timer,
            on_open=lambda fd: self._call(self._on_ear, fd),
            notify=self._heart.send,
            events=self._events,
        )
        self._watch = EarWatch(self._ear)

    async def _register(self) -> None:
        self.id = await register(self._claims, self.settings, self.app.schema, self._events, self._stop, self.id)
        if self._startmap is not None:
            self._startmap.set_worker(self.id)
            self._startmap.stamp_beat()

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

    def _reopened(self) -> int:
        """How often a connection of ours had to be opened again: the server may be another one."""
        return sum(max(0, opener.opened - 1) for opener in (self._claims, self._settles, self._heart))

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

    def _heard(self, beat: Beat) -> None:
        if self._startmap is not None:
            self._startmap.stamp_beat()  # by the heart's thread, since the loop may be blocked
        self._call(self._on_beat, beat)

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
        if beat.waiting or beat.suspects or self._reconciler.is_due(time.monotonic()):
            self._look()

    def _on_lost(self) -> None:
        """Our leases are gone, or must be thought so: stop what runs, fencing does the rest, and start afresh."""
        if self._lost:
            return
        self._lost = True
        if self._startmap is not None:
            self._startmap.set_worker(0)  # nobody need say that we live: all that we held is someone else's to have
        self._events.emit("worker_lost", worker=self.id, running=self._lines.running)
        self._lines.take_buffered()
        self._runner.interrupt_all(LOST)
        self._claimer.start_afresh()
        self._claims.give_up()  # an answer that is still to come would be for leases that are gone
        self._settles.give_up()
        self._look()

    # -- claiming ----------------------------------------------------------------------------------------------------

    async def _claim_loop(self) -> None:
        failures = 0
        while not self._stop.is_set():
            try:
                if self._lost:
                    await self._start_anew()
                await self._claim_once()
                failures = 0
            except Exception as error:  # whatever it is, the worker works on or exits, but never sits there
                failures += 1
                wait = pause(failures)
                self._events.emit("claim_failed", error=error, retry_in=wait)
                await sleep_unless(self._stop, wait)

    async def _start_anew(self) -> None:
        """Register again. Of our former leases, outcomes are settled if nobody has taken them, and then the rest is given back.
        Only then we beat again: a beat may rescue whoever is silent, our former self too."""
        former = self.id
        await self._register()
        self._settler.again()
        try:
            await either(self._settler.flushed(), asyncio.sleep(self.settings.lost_after / 2), self._stop.wait())
            if not self._settler.pending:
                await self._claims.run(leave_call(former, (), self.app.schema))
        finally:
            self._lost = False
            self._heart.registered()

    async def _claim_once(self) -> None:
        self._space.clear()
        self._news.clear()
        if self._reconciler.is_due(time.monotonic()):
            await self._reconcile()
        if self._suspects:
            await self._take_suspects()
        rooms = self._claimer.fitting(self._lines.rooms())
        if not rooms or self._stop.is_set():
            await self._space.wait()
            return
        worker, began = self.id, time.monotonic()
        jobs, whole = await self._claimer.claim(worker, rooms)
        self._lines.round_trip += 0.1 * (time.monotonic() - began - self._lines.round_trip)
        if jobs and self._events.wants("claimed"):
            self._events.emit("claimed", jobs=len(jobs), queues=sorted({job.queue for job in jobs}))
        # Lost meanwhile: if they are not someone else's by now, nobody else would look for them for a while.
        if worker != self.id or self._lost or self._stop.is_set():
            self._release(jobs)
            return
        self._runner.accept(jobs)
        if len(jobs) < sum(rooms.values()) and not any(len(jobs) >= room for room in rooms.values()):
            await self._dry(whole and not jobs, all_lines=len(rooms) == len(self._lines.by_name))
        else:
            await self._sleeper.busy()

    async def _reconcile(self) -> None:
        worker = self.id
        await self._claimer.give_back()
        if await self._reconciler.run(worker, lambda: worker == self.id and not self._lost):
            self._claimer.start_afresh()

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
                await either(self._runner.quiet(), self._stop.wait())
                if self._stop.is_set() or self._lost:
                    self._release([job])
                    return
                self._runner.start(job, self._lines.by_name[job.queue])
                await either(self._runner.quiet(), self._stop.wait())
            self._heart.beat()  # there may be more of them

    async def _tidy(self) -> None:
        """Give back what was claimed ahead when nothing has started for a while, and notice that nobody hears our beats."""
        looked = time.monotonic()
        while True:
            await asyncio.sleep(STALLED_AFTER)
            self._vigil.tick()
            self._release(self._lines.take_stalled())
            before, looked = looked, time.monotonic()
            stood_still = looked - before > 2 * STALLED_AFTER  # so may the heart have: it shall have its turn first
            if not stood_still and self._silence() > self.settings.lost_after:
                self._on_lost()

    def _silence(self) -> float:
        """Seconds since the database last heard that we live, from us or from our supervisor."""
        silence = self._heart.silence()
        return silence if self._startmap is None else min(silence, time.monotonic() - self._startmap.vouched_at)

    def _release(self, jobs: list[Any]) -> None:
        for job in jobs:
            self._settler.add(Outcome(job.id, job.lease, Verdict.RELEASE))

    # -- stopping ----------------------------------------------------------------------------------------------------

    async def _shut_down(self, settling: asyncio.Task[None], tidying: asyncio.Task[None]) -> None:
        running, buffered = self._lines.running, self._lines.buffered
        self._events.emit("worker_stopping", worker=self.id, reason=self.reason, running=running, buffered=buffered)
        self._runner.stop()
        self._release(self._lines.take_buffered())
        self._heart.beat()
        while not self._told.is_set() and any([not entry.settled for entry in self._runner.running.values()]):
            await either(self._runner.quiet(), self._told.wait(), asyncio.sleep(1.0))
        if running and self.settings.grace > 0:
            await either(self._runner.quiet(), asyncio.sleep(self.settings.grace), self._hurry.wait())
        self._runner.interrupt_all(SHUTDOWN)
        if self._lines.running:
            await either(self._runner.quiet(), asyncio.sleep(0.2 if self._hurry.is_set() else 2.0))
        self._runner.abandon_all()
        budget = Budget(1.0 if self._hurry.is_set() else FLUSH_TIME)
        await either(self._settler.flushed(), asyncio.sleep(budget.left))
        unsettled = self._settler.pending
        settling.cancel()
        tidying.cancel()
        self._heart.stop()
        if self._startmap is not None:
            self._startmap.no_more_beats()
        self._ear.stop()
        self._watch.close()
        released = await self._leave(budget.left) if not unsettled else 0
        if self._children is not None:
            await either(self._children.close(), asyncio.sleep(budget.left))
        await either(self._runner.resources.close(), asyncio.sleep(budget.left))
        self._runner.close()
        await self._loop.run_in_executor(None, self._heart.join, budget.left)
        await self._loop.run_in_executor(None, self._ear.join, budget.left)
        for link in (self._claims, self._settles):
            await either(link.close(), asyncio.sleep(budget.left))
        await self.app.aclose()
        self._events.emit("worker_stopped", worker=self.id, released=released, unsettled=unsettled)

    async def _leave(self, limit: float) -> int:
        """Give back what is left and strike our name out. If that fails, the others will find us lost."""
        try:
            async with asyncio.timeout(limit):
                await arepeat(self._claimer.give_back)
                call = leave_call(self.id, self._claimer.cursor.where(), self.app.schema)
                released = await arepeat(lambda: self._claims.run(call))
                if self._startmap is not None:
                    self._startmap.set_worker(0)
                return released
        except Exception as error:
            self._events.emit("beat_failed", error=error, retry_in=0.0)
            return 0
