"""A small map shared with the supervisor: which jobs have started in this process.

When a worker process dies, its supervisor reads here which jobs had begun (they spent their attempt) and which were only
claimed ahead (they lost nothing). Two eight-byte stores per job.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from pathlib import Path

_INT = struct.Struct("<q")
_HEADER = 1  # slot 0 holds the worker's id
SLOTS = 65_536  # running handlers, and those whose outcome is not settled yet: far more than a worker ever holds


class StartMap:
    """Slots of eight bytes: the worker's id, then the ids of the jobs that run, 0 where free."""

    def __init__(self, path: Path, slots: int = SLOTS) -> None:
        self.path = path
        with path.open("r+b") as file:
            file.truncate(_INT.size * (slots + _HEADER))
            self._map = mmap.mmap(file.fileno(), _INT.size * (slots + _HEADER))
        self._free = list(range(slots + _HEADER - 1, _HEADER - 1, -1))

    @classmethod
    def create(cls, slots: int = SLOTS) -> StartMap:
        """A new one in the temporary folder, readable by this user only."""
        handle, name = tempfile.mkstemp(prefix="skiplock-started-")
        os.close(handle)
        return cls(Path(name), slots)

    def set_worker(self, worker: int) -> None:
        """Say under which id this process is registered."""
        _INT.pack_into(self._map, 0, worker)

    @property
    def worker(self) -> int:
        """The registered worker's id; 0: none yet."""
        found: int = _INT.unpack_from(self._map, 0)[0]
        return found

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

    def started(self) -> list[int]:
        """The jobs that run now."""
        count = len(self._map) // _INT.size
        values = struct.unpack_from(f"<{count}q", self._map, 0)
        return sorted(v for v in values[_HEADER:] if v)

    def clear(self) -> None:
        """Nothing runs, nobody is registered: for the next process."""
        self._map[:] = bytes(len(self._map))

    def close(self, *, remove: bool) -> None:
        """Unmap it; with `remove` delete the file too."""
        self._map.close()
        if remove:
            self.path.unlink(missing_ok=True)
