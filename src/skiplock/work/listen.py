"""Listen: NOTIFY as a hint to look at once. In a thread of its own, so that a blocked event loop never leaves
notifications undrained (a listener that does not read pins the server's horizon). Polling stays the truth behind it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable

from skiplock.core.events import Events
from skiplock.store.call import Call
from skiplock.store.link import pause
from skiplock.store.notify import Listener, notify_call
from skiplock.store.schema import channel

PROVE_EVERY = 60.0  # seconds of silence after which the listener has itself sent a notification
PROVED_WITHIN = 10.0  # seconds for that to arrive; a worker polls until the first one has
DEAF = (60.0, 600.0)  # seconds until the next try where notifications do not arrive at all: at first, and at most
SLICE = 0.5  # seconds between two looks of the thread, for when the event loop does not look


class DeafError(Exception):
    """Notifications do not arrive (a pooler in transaction mode, or the server's notification queue is full), so this worker
    polls twice a second. A direct connection can be named for them: --listen-dsn or SKIPLOCK_LISTEN_URL."""

    def __str__(self) -> str:
        return " ".join((self.__doc__ or "").split())


class Ear(threading.Thread):
    """The thread. It opens and proves the connection, and reads it now and then; in between the event loop reads
    (`hear`, when `on_open`'s socket is readable), because waking a thread that wakes the loop takes longer. Callbacks are
    called by whoever reads.
    """

    def __init__(
        self,
        dsn: str,
        schema: str,
        *,
        on_bell: Callable[[str], None],
        on_cancel: Callable[[str], None],
        on_timer: Callable[[], None],
        on_open: Callable[[int], None],
        notify: Callable[[Call[None]], None],
        events: Events,
    ) -> None:
        """`notify` has a call run soon on another connection: see `_listen`."""
        super().__init__(name="skiplock-ear", daemon=True)
        self._dsn = dsn
        self._bell, self._cancel = channel("bell", schema), channel("cancel", schema)
        self._on_bell, self._on_cancel, self._on_timer, self._on_open = on_bell, on_cancel, on_timer, on_open
        self._notify, self._events = notify, events
        self._stopping = False
        self._woken = threading.Event()
        self._listener: Listener | None = None
        self._proof = ""
        self._any_heard = self._proved = False
        self.works = False  # whether notifications are known to arrive

    def stop(self) -> None:
        """End the thread; join it afterwards."""
        self._stopping = True
        self._woken.set()

    def look(self) -> None:
        """Let the thread look at its connection now."""
        self._woken.set()

    def hear(self) -> bool:
        """Read what has arrived, without waiting; False: there is no connection. Any thread may. Raises if it is gone."""
        listener = self._listener
        if listener is None:
            return False
        for name, payload in listener.take():
            self._any_heard = True
            if payload == self._proof and name == self._cancel:
                self._proved = self.works = True
            elif name == self._cancel:
                self._on_cancel(payload)
            elif payload == "":
                self._on_timer()
            else:
                self._on_bell(payload)
        return True

    def listens_on(self, fd: int) -> bool:
        """Whether that is the socket of its connection at present."""
        listener = self._listener
        try:
            return listener is not None and listener.fileno() == fd
        except Exception:  # just being closed
            return False

    def run(self) -> None:
        failures = deaf = 0
        while not self._stopping:
            try:
                self._listener = listener = Listener(self._dsn, (self._bell, self._cancel))
                self._on_open(listener.fileno())  # whatever happened while nobody listened: look once
                self._listen(listener)
            except Exception as error:  # any: polling goes on meanwhile
                worked, self.works = self.works, False
                if isinstance(error, DeafError) and not worked:
                    wait, deaf = min(DEAF[1], DEAF[0] * 2.0 ** min(deaf, 10)), deaf + 1
                else:
                    deaf, failures = 0, 1 if worked else failures + 1
                    wait = pause(failures)
                self._events.emit("listen_failed", error=error, retry_in=wait)
                self._rest(wait)
            finally:
                gone, self._listener = self._listener, None
                if gone is not None:
                    gone.close()

    def _rest(self, seconds: float) -> None:
        """Without a connection."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        self._woken.wait(seconds)
        self._woken.clear()

    def _listen(self, listener: Listener) -> None:
        self._proof = f"proof {listener.backend}"
        idle_limit = listener.idle_limit()
        touched = time.monotonic()
        while not self._stopping:
            # A pooler in transaction mode accepts LISTEN and delivers nothing. It is found out by a notification that
            # somebody else sends: one of our own would be part of the answer to our own statement, if the pooler happens to
            # run it on the very session that listens.
            self._proved = False
            self._notify(notify_call(self._cancel, self._proof))
            quiet = 0.0
            while quiet < PROVE_EVERY and not self._stopping:
                self.hear()
                quiet = 0.0 if self._any_heard and self._proved else quiet + SLICE
                self._any_heard = False
                if not self._proved and quiet >= PROVED_WITHIN:
                    raise DeafError
                if idle_limit is not None and time.monotonic() - touched > idle_limit / 3:
                    listener.touch()
                    touched = time.monotonic()
                self._woken.wait(SLICE)
                self._woken.clear()


class EarWatch:
    """Lets the event loop read the ear's socket: 0.13 ms sooner than by way of the thread, of 3.3 ms from an enqueue to
    the start in an idle worker. On the worker's loop.
    """

    def __init__(self, ear: Ear) -> None:
        self._loop = asyncio.get_running_loop()
        self._ear = ear
        self._fd = -1

    def watch(self, fd: int) -> None:
        """From now on this socket. Kept as a descriptor of our own, so that the thread may close its."""
        self.close()
        with contextlib.suppress(OSError):  # closed by the thread meanwhile: it will say so with the next one
            copy = os.dup(fd)
            if self._ear.listens_on(fd):
                self._fd = copy
                self._loop.add_reader(copy, self._readable)
            else:  # by now the number may be that of somebody else's file, which is always readable
                os.close(copy)

    def _readable(self) -> None:
        try:
            if not self._ear.hear():
                self.close()  # the thread has closed it; our copy of the socket would stay readable for ever
        except Exception:  # the connection is gone: the thread will see that too, tell of it, and open another
            self.close()
            self._ear.look()

    def close(self) -> None:
        """Look no more."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._loop.remove_reader(fd)
            os.close(fd)
