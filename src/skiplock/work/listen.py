"""Listen: NOTIFY as a hint to look at once. In a thread of its own, so that a blocked event loop never leaves
notifications undrained (a listener that does not read pins the server's horizon). Polling stays the truth behind it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from skiplock.core.events import Events
from skiplock.store.link import pause
from skiplock.store.notify import heard, listen, ping
from skiplock.store.pool import connect
from skiplock.store.schema import channel

PROVE_EVERY = 60.0  # seconds of silence after which the listener sends itself a notification
SLICE = 0.5  # seconds: how soon it notices that it should stop


class Ear(threading.Thread):
    """The thread. Callbacks are called from it."""

    def __init__(
        self,
        dsn: str,
        schema: str,
        *,
        on_bell: Callable[[str], None],
        on_cancel: Callable[[str], None],
        on_timer: Callable[[], None],
        on_open: Callable[[], None],
        events: Events,
    ) -> None:
        super().__init__(name="skiplock-ear", daemon=True)
        self._dsn = dsn
        self._bell, self._cancel = channel("bell", schema), channel("cancel", schema)
        self._on_bell, self._on_cancel, self._on_timer, self._on_open = on_bell, on_cancel, on_timer, on_open
        self._events = events
        self._stopping = threading.Event()
        self.works = False  # whether notifications are known to arrive

    def stop(self) -> None:
        """End the thread; join it afterwards."""
        self._stopping.set()

    def run(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            connection = None
            try:
                connection = connect(self._dsn, application_name="skiplock ear")
                listen(connection, (self._bell, self._cancel))
                failures = 0
                self._on_open()  # whatever happened while nobody listened: look once
                self._listen(connection)
            except Exception as error:  # any: polling goes on meanwhile
                self.works = False
                failures += 1
                wait = pause(failures)
                self._events.emit("listen_failed", error=error, retry_in=wait)
                self._stopping.wait(wait)
            finally:
                if connection is not None:
                    connection.close()

    def _listen(self, connection: Any) -> None:
        proof = f"proof {connection.info.backend_pid}"
        while not self._stopping.is_set():
            # A pooler in transaction mode accepts LISTEN and delivers nothing: a ping to ourselves shows it.
            ping(connection, self._cancel, proof)
            proved, quiet = False, 0.0
            while quiet < PROVE_EVERY and not self._stopping.is_set():
                any_heard = False
                for name, payload in heard(connection, SLICE):
                    any_heard = True
                    if payload == proof and name == self._cancel:
                        proved = self.works = True
                    else:
                        self._tell(name, payload)
                    if self._stopping.is_set():
                        return
                quiet = 0.0 if any_heard and proved else quiet + SLICE
                if not proved and quiet >= 5.0:
                    self.works = False
                    raise TimeoutError("notifications do not arrive (a pooler in transaction mode?); polling instead")

    def _tell(self, name: str, payload: str) -> None:
        if name == self._cancel:
            self._on_cancel(payload)
        elif payload == "":
            self._on_timer()
        else:
            self._on_bell(payload)
