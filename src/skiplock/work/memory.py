"""Memory of this process: how much it has, and a cap while a handler runs.

The cap is RLIMIT_DATA: all that is private and writable counts, so `malloc`, numpy arrays, anonymous mmaps and the stacks of
threads, from the moment they are allocated, touched or not. What is beyond it is refused, and Python raises MemoryError where
it was asked for; C code that does not look at the answer of `malloc` crashes. Files that are mapped shared or read-only
(`np.memmap` in mode "r" or "r+"), shared memory, and address space that is only reserved do not count: RLIMIT_AS would count
them, and many libraries reserve far more than they use.
"""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from skiplock.core.size import size_as_text

_STATM = Path("/proc/self/statm")
_RESIDENT, _DATA = 1, 5  # fields of it, in pages
_PAGE = os.sysconf("SC_PAGE_SIZE")


def resident() -> int:
    """Bytes of RAM held now. Where the system does not tell (macOS): the most that were ever held."""
    if _STATM.exists():
        return _statm(_RESIDENT)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * 1024


@contextmanager
def memory_cap(limit: int | None) -> Iterator[None]:
    """No more than `limit` bytes for this process meanwhile. A MemoryError without a word is given some."""
    if limit is None:
        yield
        return
    before = _statm(_DATA) if _STATM.exists() else 0
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    old, new = (soft, hard), (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard)
    try:
        resource.setrlimit(resource.RLIMIT_DATA, new)
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, old)
    except MemoryError as error:
        if type(error) is MemoryError and not error.args:  # numpy's says more than we could
            held = size_as_text(before)
            error.args = (
                f"out of memory: memory={size_as_text(limit)} for the process, {held} of it before the handler",
            )
        raise


def _statm(field: int) -> int:
    return int(_STATM.read_text().split()[field]) * _PAGE
