"""Reading figures: medians, ratios, and numbers as text. Repetitions that failed are passed over."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

Figures = dict[str, Any]
Results = dict[str, list[Figures]]

REFERENCE, RAW, SKIPLOCK, EMPTY = "reference", "raw insert", "skiplock", "skiplock empty"
FREE, STAYING = "skiplock no snapshot", "skiplock stays up"


def values(figures: Sequence[Figures], key: str) -> list[float]:
    """One figure of all repetitions that have it."""
    return [f[key] for f in figures if f.get(key) is not None]


def median(figures: Sequence[Figures], key: str) -> float | None:
    """Of all repetitions; None if there are none."""
    found = values(figures, key)
    return statistics.median(found) if found else None


def ratios(ours: Sequence[Figures], theirs: Sequence[Figures], key: str = "jobs_s") -> list[float]:
    """Repetition by repetition: they ran one right after the other."""
    return [a[key] / b[key] for a, b in zip(ours, theirs, strict=False) if a.get(key) and b.get(key)]


def settled(rounds: Sequence[Figures]) -> tuple[float, float] | None:
    """W6: the rate of rounds 2 to 4 (the first is cold) and of the last three."""
    rates = values(rounds, "jobs_s")
    if len(rates) < 7:
        return None
    return statistics.median(rates[1:4]), statistics.median(rates[-3:])


# -- as text -----------------------------------------------------------------------------------------------------------


def number(value: float) -> str:
    """With as many digits as mean something."""
    if value == int(value) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def middle(figures: Sequence[Figures], key: str) -> str:
    """The median; empty if there is none."""
    found = median(figures, key)
    return "" if found is None else number(found)


def span(figures: Sequence[Figures], key: str) -> str:
    """Median (lowest–highest)."""
    return spread(values(figures, key))


def spread(found: Sequence[float]) -> str:
    """Median (lowest–highest) of these."""
    if not found:
        return ""
    if len(set(found)) == 1:
        return number(found[0])
    return f"{number(statistics.median(found))} ({number(min(found))}–{number(max(found))})"


def note(figures: Sequence[Figures]) -> str:
    """What a reader must know beside the number: it failed, or was cut off."""
    errors = [f["error"] for f in figures if "error" in f]
    if errors:
        return str(errors[0])
    cut = values(figures, "cut_off_s")
    jobs = values(figures, "jobs")
    return f"cut off after {cut[0]:.0f} s, {jobs[-1]:,.0f} jobs" if cut else ""
