"""A small map shared by a worker process and its supervisor, in memory without a name: nobody has to tidy it up.

When a worker process dies, its supervisor reads here which jobs had begun (they spent their attempt) and which were only
claimed ahead (they lost nothing). Two eight-byte stores per job. Ahead of the jobs stands what the two tell each other of
the process; behind them the interpreter writes where its threads were when it crashed or was about to be killed.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import signal
import struct
import tempfile
import time
from pathlib import Path

_INT = struct.Struct("<q")
_WORKER, _TURNED, _HEARD, _VOUCHED, _WISH, _LEAVE = (n * _INT.size for n in range(6))
_HEADER = 8  # slots, some of them for later
SLOTS = 65_536  # running handlers, and those whose outcome is not settled yet: far more than a worker ever holds
LONGEST_TRACE = 32_768  # bytes


class StartMap:
    """Slots of eight bytes: the header, then the ids of the jobs that run, 0 where free. Times are monotonic seconds."""

    def __init__(self, fd: int, slots: int = SLOTS) -> None:
        self.fd = fd
        self._size = _INT.size * (slots + _HEADER)
        self._map = mmap.mmap(fd, self._size)
        self._free = list(range(slots + _HEADER - 1, _HEADER - 1, -1))

    @classmethod
    def create(cls, slots: int = SLOTS) -> StartMap:
        """A new one; `fd` is for the process to inherit."""
        fd = _nameless_file()
        try:
            os.ftruncate(fd, _INT.size * (slots + _HEADER))
            return cls(fd, slots)
        except BaseException:
            os.close(fd)
            raise

    # -- what the process tells ----------------------------------------------------------------------------------------

    def set_worker(self, worker: int) -> None:
        """It is registered under this id. 0: not any more, it holds nothing, and nobody need report it."""
        self._put(_WORKER, worker)

    def stamp_turn(self) -> None:
        """Its heart has come round: whatever the database says, this process runs."""
        self._put(_TURNED, int(time.monotonic() * 1e6))

    def stamp_beat(self) -> None:
        """The database has heard a beat."""
        self._put(_HEARD, int(time.monotonic() * 1e6))

    def no_more_beats(self) -> None:
        """It is leaving, and its heart has stopped for good."""
        self._put(_HEARD, 0)

    def wish_to_leave(self) -> None:
        """It is worn out."""
        self._put(_WISH, 1)

    def begin(self, job_id: int) -> int:
        """A job starts; answers its slot, to be ended when its outcome is settled. -1 if all are taken."""
        if not self._free:
            return -1
        slot = self._free.pop()
        _INT.pack_into(self._map, slot * _INT.size, job_id)
        return slot

    def end(self, slot: int) -> None:
        """It was settled."""
        if slot >= 0:
            _INT.pack_into(self._map, slot * _INT.size, 0)
            self._free.append(slot)

    def write_stacks_here(self) -> None:
        """From now on: where the threads are at a crash and at each SIGQUIT, whoever holds the interpreter. What the
        application has set up for itself is left alone."""
        os.lseek(self.fd, self._size, os.SEEK_SET)
        if not faulthandler.is_enabled():
            faulthandler.enable(self.fd)
        if signal.getsignal(signal.SIGQUIT) is signal.SIG_DFL:
            faulthandler.register(signal.SIGQUIT, self.fd)

    # -- what the supervisor tells -------------------------------------------------------------------------------------

    def set_vouched(self, at: float) -> None:
        """The supervisor beat for it."""
        self._put(_VOUCHED, int(at * 1e6))

    def let_leave(self) -> None:
        """Its successor is there."""
        self._put(_LEAVE, 1)

    # -- read by the other ---------------------------------------------------------------------------------------------

    @property
    def worker(self) -> int:
        """The registered worker's id; 0: none yet, or none any more."""
        return self._get(_WORKER)

    @property
    def turned_at(self) -> float:
        """When its heart last came round."""
        return self._get(_TURNED) / 1e6

    @property
    def heard_at(self) -> float:
        """When the database last heard a beat; 0: it does not beat yet, or not any more."""
        return self._get(_HEARD) / 1e6

    @property
    def vouched_at(self) -> float:
        """When the supervisor last beat for it; 0: never."""
        return self._get(_VOUCHED) / 1e6

    @property
    def wishes_to_leave(self) -> bool:
        return self._get(_WISH) != 0

    @property
    def may_leave(self) -> bool:
        return self._get(_LEAVE) != 0

    def started(self) -> list[int]:
        """The jobs that run now."""
        values = struct.unpack_from(f"<{self._size // _INT.size}q", self._map, 0)
        return sorted(v for v in values[_HEADER:] if v)

    def stacks(self) -> str:
        """What `write_stacks_here` led to; the thread that it is about comes first."""
        text = os.pread(self.fd, LONGEST_TRACE, self._size).decode("utf-8", "replace").strip()
        return "\n\n".join(sorted(text.split("\n\n"), key=lambda part: part.startswith("Thread ")))

    def close(self) -> None:
        """Unmap it; the memory is gone when both have."""
        self._map.close()
        os.close(self.fd)

    def _put(self, at: int, value: int) -> None:
        _INT.pack_into(self._map, at, value)

    def _get(self, at: int) -> int:
        found: int = _INT.unpack_from(self._map, at)[0]
        return found


def _nameless_file() -> int:
    try:
        return os.memfd_create("skiplock-startmap")
    except (AttributeError, OSError):  # not on Linux, or not allowed there
        fd, name = tempfile.mkstemp(prefix="skiplock-startmap-")
        Path(name).unlink()
        return fd
