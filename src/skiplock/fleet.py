"""The supervisor: keeps so many worker processes running, whatever happens to them.

It leaves the database alone while all is well. When a child dies it knows at once, reads in the shared map which jobs had
started, and has everything given back there and then; without it the others notice by the missing heartbeat. A child that
is worn out gets a successor first, and then ends at leisure. For one that is silent but alive it vouches (vouching.py).
"""

from __future__ import annotations

import select
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from skiplock.core.events import Events
from skiplock.core.exits import how_it_ended
from skiplock.core.settings import WorkerSettings
from skiplock.member import Member
from skiplock.messenger import Lost, Messenger
from skiplock.process import DRAINED, RECYCLED, refuse_too_little_memory
from skiplock.signals import Told, stop_signals
from skiplock.vouching import Vouching

KILL_AFTER = 10.0  # seconds beyond the grace period after which a child that does not end is killed
HEALTHY_AFTER = 10.0  # seconds of life after which a child's next crash counts as its first
LONGEST_PAUSE = 30.0  # seconds between restarts of a child that keeps crashing
TOLD_PAUSE = 1.0  # seconds before a child that someone else told to stop is replaced: we may be told next
TURN = 60.0  # seconds that a child which is on its way out may keep the next one from following
LOOK_EVERY = 1.0  # seconds between two looks at the children, at most
FAREWELL = 3.0  # seconds for the last reports once all children are gone
HOPELESS = (2, 3, 5)  # exit codes that a restart cannot cure: usage, configuration, schema


@dataclass(slots=True)
class Place:
    """One place in the fleet: who fills it, who will, who is on the way out, and when the next process is due."""

    child: Member | None = None
    successor: Member | None = None
    retiring: Member | None = None
    start_at: float | None = 0.0
    crashes: int = 0

    def living(self) -> list[Member]:
        """All of its processes."""
        return [child for child in (self.child, self.successor, self.retiring) if child is not None]

    def is_taking_turn(self, now: float) -> bool:
        """Whether others that are worn out should wait."""
        waits = self.child is not None and self.start_at is not None
        leaves = self.retiring is not None and now - (self.retiring.retired_at or now) < TURN
        return waits or self.successor is not None or leaves

    def remove(self, gone: Member) -> None:
        """It has ended. A successor steps in at once."""
        if gone is self.retiring:
            self.retiring = None
        elif gone is self.successor:
            self.successor = None
        else:
            self.child, self.successor = self.successor, None


class Supervisor:
    """Keeps `processes` children running. See `supervise`."""

    def __init__(
        self, command: Sequence[str], settings: WorkerSettings, *, processes: int, dsn: str, schema: str, events: Events
    ) -> None:
        self._command, self._settings, self._events = list(command), settings, events
        self._places = [Place() for _ in range(processes)]
        self._messenger = Messenger(dsn, schema, events, self._wake)
        self._vouching = Vouching(self._messenger, events, settings)
        self._told = Told()
        self._kill_at: float | None = None
        self._give_up_at: float | None = None
        self._exit: int | None = None  # the code to end with, once someone decided to stop
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)

    def run(self) -> int:
        """Until told to stop, drained, or a child fails in a way that no restart cures."""
        heeded = stop_signals()
        for heard in (signal.SIGCHLD, *heeded):
            signal.signal(heard, lambda *_: None)  # for good: an echo on our way out must not change the exit code
        old_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        try:
            while not self._over():
                self._start_due()
                select.select([self._reader], [], [], self._pause())
                for number in _read_all(self._reader):
                    if number in heeded:
                        self._on_signal(number)
                self._reap()
                self._look()
                self._kill_due()
        finally:
            signal.set_wakeup_fd(old_fd)
            self._clean_up()
        return self._exit or 0

    def _wake(self) -> None:
        try:
            self._writer.send(b"\0")
        except OSError:
            return  # full, so it wakes anyway; or closed, and nobody sleeps there any more

    def _children(self) -> Iterator[Member]:
        for place in self._places:
            yield from place.living()

    def _over(self) -> bool:
        now = time.monotonic()
        due = self._exit is None and any(place.start_at is not None for place in self._places)
        if due or any(True for _ in self._children()):
            return False
        if self._give_up_at is None and self._exit is not None:
            self._give_up_at = now + FAREWELL
        return not self._messenger.pending or (self._give_up_at is not None and now >= self._give_up_at)

    def _pause(self) -> float:
        now = time.monotonic()
        moments = [p.start_at for p in self._places if p.start_at is not None and self._exit is None]
        moments += [m for m in (self._kill_at, self._give_up_at) if m is not None]
        moments += [child.kill_at for child in self._children()]
        look = min(LOOK_EVERY, self._settings.lost_after / 6)
        return max(0.0, min([look, *(m - now for m in moments)]))

    # -- starting ------------------------------------------------------------------------------------------------------

    def _start_due(self) -> None:
        now = time.monotonic()
        for place in self._places:
            if self._exit is None and place.start_at is not None and now >= place.start_at:
                self._start(place)

    def _start(self, place: Place) -> None:
        place.start_at = None
        try:
            child = Member(self._command)
        except OSError as error:  # too many processes or files: that passes, and the others work on
            self._crashed(place, 0.0, pid=None, code=None, reason=f"a worker process could not be started: {error}")
            return
        if place.child is None:
            place.child = child
            self._events.emit("child_restarted" if place.crashes else "child_started", pid=child.pid)
        else:
            place.successor = child
            self._events.emit("child_started", pid=child.pid, instead_of=place.child.pid)

    # -- what becomes of them ------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        for place in self._places:
            for child in place.living():
                if child.code is not None:
                    self._ended(place, child, child.code)
                    child.close()

    def _ended(self, place: Place, child: Member, code: int) -> None:
        was_retiring = child is place.retiring
        place.remove(child)
        if self._exit is not None:
            self._ended_as_told(child, code)
        elif not child.has_left or code not in (0, DRAINED, RECYCLED):
            self._died(place, child, code, was_retiring=was_retiring)
        elif code == RECYCLED:
            self._events.emit("child_recycled", pid=child.pid)
        elif code == 0 and not was_retiring:
            reason = f"worker process {child.pid} was told to stop by someone else"
            self._refill(place, TOLD_PAUSE, pid=child.pid, code=0, reason=reason)

    def _ended_as_told(self, child: Member, code: int) -> None:
        worker = child.startmap.worker
        if code == -signal.SIGTERM and not worker:
            return  # it was still starting and had not yet learned to stop gracefully; it held nothing
        if worker:
            # Killed because it would not stop in time: that interruption is ours, so no attempt is spent.
            self._report(child, [], _reason(child, code))
        if child.killed_because or code < 0:
            self._tell_death(child, code)
        if code == 128 + signal.SIGTERM and self._told.level > 1:
            code = 128 + self._told.number  # we told it by SIGTERM what we were told by another
        if code not in (0, DRAINED, RECYCLED):
            self._exit = max(self._exit or 0, code if code > 0 else 128 - code)

    def _died(self, place: Place, child: Member, code: int, *, was_retiring: bool) -> None:
        lived, registered = time.monotonic() - child.born, child.startmap.worker != 0
        if registered:
            self._report(child, child.startmap.started(), _reason(child, code))
        if was_retiring:
            self._tell_death(child, code)
        elif code in HOPELESS and not registered and lived < HEALTHY_AFTER and place.child is None:
            self._tell_death(child, code)
            self._stop(code)
        else:
            stacks = child.startmap.stacks() or None
            self._crashed(place, lived, pid=child.pid, code=code, reason=_reason(child, code), stack=stacks)

    def _crashed(self, place: Place, lived: float, **told: object) -> None:
        if lived > HEALTHY_AFTER:
            place.crashes = 0
        self._refill(place, min(LONGEST_PAUSE, 0.1 * 2 ** min(place.crashes, 20)), **told)

    def _refill(self, place: Place, wait: float, **told: object) -> None:
        place.crashes += 1
        wanted = place.child is None or (place.child.startmap.wishes_to_leave and place.successor is None)
        if wanted:
            place.start_at = time.monotonic() + wait
        self._events.emit("child_died", **told, restart_in=wait if wanted else None)

    def _tell_death(self, child: Member, code: int) -> None:
        stacks = child.startmap.stacks() or None
        fields = {"pid": child.pid, "code": code, "reason": _reason(child, code), "restart_in": None}
        self._events.emit("child_died", **fields, stack=stacks)

    def _report(self, child: Member, started: list[int], reason: str) -> None:
        self._messenger.report(Lost(child.startmap.worker, started, reason, child.pid))

    # -- while they live -----------------------------------------------------------------------------------------------

    def _look(self) -> None:
        self._vouching.look(list(self._children()))
        if self._exit is None:
            self._renew()

    def _renew(self) -> None:
        """Replace worn-out children, one after the other: first the successor, and when it works, the old one may go."""
        now = time.monotonic()
        for place in self._places:
            if place.child is not None and place.successor is not None and place.successor.startmap.worker:
                old, new = place.child, place.successor
                place.child, place.successor, place.retiring, place.crashes = new, None, old, 0
                old.retired_at = now
                old.startmap.let_leave()
                self._events.emit("child_retiring", pid=old.pid, successor=new.pid)
        if any(place.is_taking_turn(now) for place in self._places):
            return
        worn = [p for p in self._places if p.child and p.child.startmap.wishes_to_leave and p.retiring is None]
        if worn:
            min(worn, key=_age_of).start_at = now

    # -- stopping ------------------------------------------------------------------------------------------------------

    def _on_signal(self, number: int) -> None:
        level = self._told.again(number)
        if level == 1:
            self._stop(0)
        elif level == 2:
            self._signal_all(signal.SIGTERM)
            self._kill_at = time.monotonic() + KILL_AFTER
        elif level >= 3:
            self._signal_all(signal.SIGKILL)

    def _stop(self, code: int) -> None:
        self._exit = code
        self._kill_at = time.monotonic() + self._settings.grace + KILL_AFTER
        self._signal_all(signal.SIGTERM)

    def _kill_due(self) -> None:
        now = time.monotonic()
        if self._kill_at is not None and now >= self._kill_at:
            self._kill_at = None
            for child in self._children():
                child.kill("it did not stop in time")
        for child in self._children():
            child.kill_due(now)

    def _signal_all(self, number: signal.Signals) -> None:
        for child in self._children():
            child.signal(number)

    def _clean_up(self) -> None:
        self._signal_all(signal.SIGKILL)
        for child in self._children():
            child.wait()
            child.close()
        self._reader.close()
        self._writer.close()


def _age_of(place: Place) -> float:
    return place.child.born if place.child is not None else 0.0


def _read_all(reader: socket.socket) -> bytes:
    try:
        return reader.recv(4096)
    except BlockingIOError:
        return b""


def _reason(child: Member, code: int) -> str:
    if child.killed_because:
        return f"worker process {child.pid} was killed by its supervisor: {child.killed_because}"
    return f"worker process {child.pid} {how_it_ended(code)}"


def supervise(
    command: Sequence[str], settings: WorkerSettings, *, processes: int, dsn: str, schema: str, events: Events
) -> int:
    """Run `processes` children of `command` until told to stop; returns the exit code.

    `command` gets ``--child --startmap FD --parent-pipe FD`` appended.
    A child that dies is reported to the database with the jobs it had started, and started again with growing pauses;
    one that ends with a usage, configuration or schema error ends the whole, unless it was to replace one that works.
    """
    refuse_too_little_memory(settings.own_wear())
    fleet = Supervisor(command, settings, processes=processes, dsn=dsn, schema=schema, events=events)
    return fleet.run()
