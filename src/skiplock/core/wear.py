"""When a child process has served long enough and gives way to a fresh one."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from skiplock.core.size import size_as_text

SPREAD = (
    0.9  # processes that started together must not wear out together: each takes from this share of its limits to all
)


@dataclass(frozen=True, slots=True)
class Wear:
    """Limits of a process's service, None: no limit. `memory`: bytes it holds in RAM. `age`: seconds."""

    jobs: int | None = None
    memory: int | None = None
    age: float | None = None

    def reached(self, jobs: int, memory: int, age: float) -> str | None:
        """Which limit a process has reached, in words; None: it may go on."""
        if self.jobs is not None and jobs >= self.jobs:
            return f"has run {jobs} jobs"
        if self.memory is not None and memory > self.memory:
            return f"holds {size_as_text(memory)}, more than {size_as_text(self.memory)}"
        if self.age is not None and age >= self.age:
            return f"has lived for {age:.0f} s"
        return None

    def spread(self, draw: Callable[[], float] = random.random) -> Wear:
        """One process's own share of these limits. `draw` answers numbers from 0 to 1."""

        def share(limit: float) -> float:
            return limit * (SPREAD + (1.0 - SPREAD) * draw())

        return Wear(
            None if self.jobs is None else math.ceil(share(self.jobs)),
            None if self.memory is None else int(share(self.memory)),
            None if self.age is None else share(self.age),
        )
