"""Beat: the worker's heartbeat, from its own thread with its own connection.

A handler that blocks the event loop for a minute is still alive, and this thread says so. It also does the chores that
must not wait for the loop: promoting what is due (if this worker is the leader) and making partitions.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec

from skiplock.core.events import Events
from skiplock.core.patience import Patience
from skiplock.core.share import Share
from skiplock.store.call import Call
from skiplock.store.exchange import Exchange
from skiplock.store.guard import Meaning, meaning
from skiplock.store.link import pause
from skiplock.store.literal import number_array, text_array
from skiplock.store.pool import connect, run_call
from skiplock.store.schema import render

T = TypeVar("T")
_REGISTER = (
    "SELECT skiplock.register($1::text, $2::text, $3::text::integer, $4::text::json, $5::text, $6::text::float8)"
)
_BEAT = """SELECT known, leader, due_in, waiting, suspects, cancelled, rescued::text, fire_in
FROM skiplock.beat($1::text::bigint, $2::text::integer, $3::text, ($4::text)::text[], $5::text::float8, $6::text::boolean, $7::text::boolean, $8::text::boolean, ($9::text)::text[], ($10::text)::smallint[],
    ($11::text)::bigint[], $12::text::float8)"""
SWEEP_EVERY = 10  # beats between two looks for running rows of unregistered workers
SWEEP_LIMITS_EVERY = 30.0  # seconds between two steps through the limits, by the leader
AGAIN = 0.05  # seconds after a promote that moved something, for one more
LOOK_SHARE = 0.01  # of the time, for what a beat and a promote look for beyond need (core/share.py)
USUAL = 0.002  # seconds: what either takes without that, until it is measured
LATE = 5.0  # seconds: a transaction open for longer than that may commit a due job that only the next whole look finds
_LEAVE = "SELECT skiplock.leave($1::text::bigint, ($2::text)::text[], ($3::text)::smallint[], ($4::text)::bigint[])"


@dataclass(frozen=True, slots=True)
class Beat:
    """What a beat answered; see beat.sql. `worker`: who asked, since it may be registered anew by now."""

    worker: int
    known: bool
    leader: bool
    due_in: float | None
    waiting: list[str]
    suspects: int
    cancelled: list[int]
    rescued: list[dict[str, Any]]
    fire_in: float | None


@dataclass(frozen=True, slots=True)
class Pulse:
    """What the worker says of itself with a beat."""

    worker: int
    running: int
    state: str
    asleep: bool
    lanes: Sequence[
        tuple[str, int, int]
    ] = ()  # (queue, priority, position): how far its claims have got since the last


def register_call(
    name: str, host: str, pid: int, queues: dict[str, int], version: str, lost_after: float, schema: str
) -> Call[int]:
    """Register a worker process; answers its id."""
    params = (name, host, str(pid), msgspec.json.encode(queues).decode(), version, str(lost_after))
    return Call(render(_REGISTER, schema), params, lambda rows: int(rows[0][0]))


def beat_call(
    pulse: Pulse,
    queues: Sequence[str],
    duty_for: float,
    schema: str,
    *,
    sweep: bool = True,
    look: bool = True,
    watched: float | None = None,
) -> Call[Beat]:
    """One beat; see beat.sql."""
    params = (
        str(pulse.worker),
        str(pulse.running),
        pulse.state,
        text_array(queues),
        str(duty_for),
        str(pulse.asleep).lower(),
        str(sweep).lower(),
        str(look).lower(),
        *_lanes(pulse.lanes),
        None if watched is None else str(watched),
    )
    return Call(
        render(_BEAT, schema),
        params,
        lambda rows: Beat(*[pulse.worker, *rows[0][:6], msgspec.json.decode(rows[0][6] or "[]"), rows[0][7]]),
    )


def _lanes(lanes: Sequence[tuple[str, int, int]]) -> tuple[str | None, ...]:
    if not lanes:
        return (None, None, None)
    queues, priorities, positions = zip(*lanes, strict=True)
    return (text_array(queues), number_array(priorities), number_array(positions))


def leave_call(worker: int, lanes: Sequence[tuple[str, int, int]], schema: str) -> Call[int]:
    """Say goodbye, and how far the claims got; answers how many jobs were given back."""
    return Call(render(_LEAVE, schema), (str(worker), *_lanes(lanes)), lambda rows: int(rows[0][0]))


@dataclass(frozen=True, slots=True)
class Promotion:
    """The chore of promoting: `call(since)` answers (moved, due_in, upto); it moves at most `batch`. See promote.sql."""

    call: Callable[[float | None], Call[Any]]
    batch: int


class Ticking(Protocol):
    """The chore of firing schedules (upkeep/schedules.py)."""

    def must_declare(self, worker: int) -> bool: ...

    def tick(self, run: Callable[[Call[Any]], Any], worker: int) -> float | None: ...


class Heart(threading.Thread):
    """The thread. `pulse()` is asked before each beat; `on_beat` is called from this thread."""

    def __init__(
        self,
        dsn: str,
        schema: str,
        *,
        queues: Sequence[str],
        every: float,
        lost_after: float,
        pulse: Callable[[], Pulse | None],
        on_beat: Callable[[Beat], None],
        promotion: Promotion,
        schedules: Ticking,
        hourly: Callable[[], Call[None]],
        sweep: Callable[[], Call[None]] | None = None,
        errands: Sequence[Call[None]] = (),
        on_turn: Callable[[], None] = lambda: None,
        events: Events,
    ) -> None:
        super().__init__(name="skiplock-heart", daemon=True)
        self._dsn, self._schema, self._queues = dsn, schema, tuple(queues)
        self._every = every
        self._long_gap = (
            lost_after - every
        )  # between two beats of ours: others may have been silent for too long by then
        # Half of the time after which we count as lost: the other half is for beating on another connection.
        self._patience = Patience(lost_after / 2)
        self._pulse, self._on_beat = pulse, on_beat
        self._promotion, self._hourly, self._on_turn, self._events = promotion, hourly, on_turn, events
        self._schedules = schedules
        self._sweep = sweep
        self._woken = threading.Event()
        self._stopping = False
        self._beat_now = False
        self._exchange: Exchange | None = None
        self.opened = 0  # times, its connection
        self._failures = 0
        self._last_beat = time.monotonic()  # its answer
        self._alive_at = time.monotonic()  # when the latest sign of life that was answered had been sent
        self._watching_since = self._alive_at  # without a long gap
        self._leader = False
        # What a beat looks for beyond need can wait until the second one: a worker that starts has its claims to look with.
        self._beats = 0
        self._looks = Share(LOOK_SHARE, usual=USUAL, confirms=True)
        self._whole = Share(LOOK_SHARE, usual=USUAL, confirms=True)  # promotes that look at all that waits
        self._errands: deque[Call[None]] = deque(errands)
        self._in_vain = 0  # promotes in a row that moved nothing although something was due
        self._promoted_to: float | None = None  # monotonic time until when all that was due has been promoted
        self._due_lock = threading.Lock()
        self._heard: float | None = None  # the same, as others told us while an answer was on its way
        self._due_at: float | None = None  # monotonic time of the next waiting job, as far as known
        self._fire_at: float | None = None  # monotonic time of the next fire of a schedule that is ours to make
        self._fires_failed = 0  # times in a row
        self._worker = 0  # under which it was registered at the latest beat
        self._hourly_at = 0.0
        self._sweep_at = 0.0

    # -- for other threads -----------------------------------------------------------------------------------------

    def timer(self) -> None:
        """Something is due sooner than we knew."""
        self._hear(0.0)

    def due_in(self, seconds: float) -> None:
        """We ourselves just settled a job that is due in so many seconds."""
        self._hear(time.monotonic() + seconds)

    def _hear(self, due: float) -> None:
        with self._due_lock:
            self._heard = due if self._heard is None else min(self._heard, due)
            if self._due_at is None or due < self._due_at:
                self._due_at = due
                self._woken.set()

    def silence(self) -> float:
        """Seconds since the database last heard from us, as far as we know. Asked from outside, because this thread may be
        waiting for an answer that never comes."""
        return time.monotonic() - self._alive_at

    def registered(self) -> None:
        """The worker has just been registered (anew): as good as a beat. Beat now, to learn what there is."""
        self._alive_at = self._watching_since = time.monotonic()
        self.beat()

    def beat(self) -> None:
        """Beat now rather than at the next turn."""
        self._beat_now = True
        self._woken.set()

    def send(self, call: Call[None]) -> None:
        """Run this call soon; again if its connection is cut. Any other error goes to the log, and that is all."""
        self._errands.append(call)
        self._woken.set()

    def stop(self) -> None:
        """End the thread; join it afterwards."""
        self._stopping = True
        self._woken.set()

    # -- the thread ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        next_beat = 0.0
        while not self._stopping:
            now = time.monotonic()
            try:
                self._on_turn()
                if now >= next_beat or self._beat_now:
                    self._beat_now = False
                    self._one_beat()
                    next_beat = time.monotonic() + self._every
                if self._leader and self._due_at is not None and time.monotonic() >= self._due_at:
                    self._promote()
                if self._fire_at is not None and time.monotonic() >= self._fire_at:
                    self._tick()
                while self._errands:
                    self._do(self._errands.popleft())
                self._failures = 0
            except Exception as error:  # the heart must not stop beating, whatever happened
                self._drop()
                self._failures += 1
                wait = min(pause(self._failures), self._every / 2)
                self._events.emit("beat_failed", error=error, retry_in=wait)
                self._woken.wait(wait)
                self._woken.clear()
                continue
            due_at = self._due_at if self._leader else None
            wake = min([at for at in (next_beat, due_at, self._fire_at) if at is not None])
            self._woken.wait(max(0.0, wake - time.monotonic()))
            self._woken.clear()
        self._drop()

    def _do(self, errand: Call[None]) -> None:
        try:
            self._run(errand)
        except Exception as error:
            if meaning(error) is Meaning.RECONNECT:
                self._errands.appendleft(errand)
            raise

    def _one_beat(self) -> None:
        pulse = self._pulse()
        if pulse is None:
            return
        began = time.monotonic()
        look = self._beats > 0 and self._looks.is_due(began)
        sweep = look and self._beats % SWEEP_EVERY == 1
        self._beats += look or self._beats == 0
        if began - self._alive_at > self._long_gap:
            self._watching_since = began
        watched = began - self._watching_since
        self._heard = None
        call = beat_call(pulse, self._queues, self._every * 2.5, self._schema, sweep=sweep, look=look, watched=watched)
        try:
            found = self._run(call)
        except Exception:
            # A statement_timeout or lock_timeout may have hit what it looked for beyond need: not at once again, for a beat
            # that never gets through makes a living worker look dead.
            if look:
                self._looks.failed(time.monotonic() - began, time.monotonic())
            raise
        self._last_beat = time.monotonic()
        self._alive_at = max(self._alive_at, began)
        self._looks.spent(look, self._last_beat - began, self._last_beat)
        was_leader, self._leader = self._leader, found.leader
        # Whoever is not the leader still promotes what is clearly overdue: the leader may be in trouble.
        overdue = found.due_in is not None and found.due_in < -2.0
        if look and (found.leader or overdue):
            self._learn(None if found.due_in is None else self._last_beat + found.due_in)
        if found.leader and not was_leader:
            self._due_at = 0.0  # look now, and leave word when we mean to wake
        if self._stopping:
            return  # by now it may only say that we have left
        self._fire_at = self._next_tick(found)
        self._on_beat(found)
        if overdue and not found.leader:
            self._promote()
        if found.leader and self._last_beat >= self._hourly_at:
            self._hourly_at = self._last_beat + 3600.0
            self._run(self._hourly())
        if found.leader and self._sweep is not None and self._last_beat >= self._sweep_at:
            self._sweep_at = self._last_beat + SWEEP_LIMITS_EVERY
            self._run(self._sweep())

    def _next_tick(self, found: Beat) -> float | None:
        if not found.known:
            return None
        self._worker = found.worker
        if self._schedules.must_declare(found.worker):
            return self._last_beat
        # As with promoting: whoever is not the leader sees to what is clearly overdue. (It may also be of a release without.)
        if found.fire_in is None or not (found.leader or found.fire_in < -2.0) or self._fires_failed:
            return self._fire_at if self._fires_failed else None
        return self._last_beat + found.fire_in

    def _tick(self) -> None:
        """Fire what is due. If that fails, beats and promotes must not suffer: it is tried again by itself."""
        try:
            due_in = self._schedules.tick(self._run, self._worker)
            self._fire_at = time.monotonic() + due_in if due_in is not None and self._leader else None
            self._fires_failed = 0
        except Exception as error:
            self._drop()
            self._fires_failed += 1
            wait = pause(self._fires_failed)
            self._fire_at = time.monotonic() + wait
            self._events.emit("tick_failed", error=error, retry_in=wait)

    def _promote(self) -> None:
        while not self._stopping:
            asked = time.monotonic()
            whole = self._promoted_to is None or self._whole.is_due(asked)
            since = None if whole or self._promoted_to is None else self._promoted_to - asked - LATE
            self._heard = None
            try:
                found = self._run(self._promotion.call(since))
            except Exception:
                if whole:
                    self._whole.failed(time.monotonic() - asked, time.monotonic())
                raise
            self._whole.spent(whole, time.monotonic() - asked, time.monotonic())
            self._promoted_to = asked + found.upto
            if found.moved:
                self._events.emit("promoted", jobs=found.moved)
            if found.moved < self._promotion.batch:
                self._learn(self._wake_at(asked, found.moved, found.due_in))
                return
            if time.monotonic() - self._last_beat > self._every:
                self._due_at = 0.0  # a long queue of due jobs must not keep the heart from beating
                return

    def _learn(self, due: float | None) -> None:
        """What an answer says of the next job. What we heard while it was on its way may be news to it."""
        with self._due_lock:
            self._due_at = due if self._heard is None else self._heard if due is None else min(due, self._heard)

    def _wake_at(self, asked: float, moved: int, due_in: float | None) -> float | None:
        if moved:
            # Whoever made something due while this was under way saw the bell's old time, and may not have rung it.
            due_in = AGAIN if due_in is None else min(due_in, AGAIN)
        if due_in is None:
            return None
        # Due, and yet not moved: it became so meanwhile, or someone holds its row. Look again soon, then less and less.
        self._in_vain = self._in_vain + 1 if moved == 0 and due_in <= 0 else 0
        return asked + max(due_in, min(0.5, 0.001 * 2.0 ** min(self._in_vain, 9)))

    def _run(self, call: Call[T]) -> T:
        if self._exchange is not None and self._exchange.is_cut():
            self._drop()  # by whoever cuts idle connections: that is no failure
        if self._exchange is None:
            self._exchange = Exchange(connect(self._dsn, application_name="skiplock heart"))
            self.opened += 1
        asked, limit = time.monotonic(), self._patience.limit
        try:
            found = run_call(self._exchange, call, limit=limit)
        except Exception:
            if time.monotonic() - asked >= limit:
                self._patience.gave_up()
            raise
        self._patience.answered(time.monotonic() - asked)
        return found

    def _drop(self) -> None:
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            exchange.close()
