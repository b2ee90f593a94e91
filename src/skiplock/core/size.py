"""Amounts of memory as people write them: `512MiB`, `1.5GB`, or a number of bytes."""

from __future__ import annotations

import re

from skiplock.core.errors import OptionError

Size = int | str  # bytes, or text with a unit
_UNITS = {"": 1, "B": 1} | {
    letter + suffix: base**power
    for power, letter in enumerate("KMGT", 1)
    for suffix, base in (("", 1024), ("IB", 1024), ("B", 1000))
}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", re.ASCII)
_MOST = 2**62  # no machine has that much, and every system call takes it


def size_in_bytes(value: Size, where: str) -> int:
    """Whole bytes. `KiB`, `MiB`, `GiB`, `TiB` (or a bare `K` … `T`) count by 1024, `kB`, `MB`, `GB`, `TB` by 1000.

    Raises OptionError for anything else, and for less than one byte.
    """
    found = _bytes(value)
    if found is None or not 1 <= found <= _MOST:
        raise OptionError(f'{where}={value!r}: give a number of bytes, or text like "512MiB" or "2GiB"')
    return found


def _bytes(value: Size) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    match = _TEXT.fullmatch(value) if isinstance(value, str) and len(value) < 50 else None
    unit = _UNITS.get(match[2].upper()) if match else None
    return None if match is None or unit is None else int(float(match[1]) * unit)


def size_as_text(count: int) -> str:
    """`512 MiB`, for people."""
    amount, unit = float(count), "bytes"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{amount:.4g} {unit}"
