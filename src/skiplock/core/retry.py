"""When does a failed job run again? Pure functions, safe for any attempt number.

Exponential backoff with full jitter, as measured best for contended retries in
https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/ ("Full Jitter").
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from skiplock.core.errors import ConfigurationError

MAX_DELAY = 366 * 86400.0  # seconds: no retry lies further away than a year


@dataclass(frozen=True, slots=True)
class Backoff:
    """Wait `base · factor^(attempt−1)` seconds, at most `cap`, before the next attempt.

    With `jitter` (the default) the wait is drawn evenly from `[floor, that]`, so that jobs that failed together do
    not come back together. `floor` keeps a fast-failing job from spinning.

        Backoff()                        about 1 s, 2 s, 4 s … on average, at most 1 h
        Backoff(base=30, factor=1)       always around 15 s
    """

    base: float = 2.0
    factor: float = 2.0
    cap: float = 3600.0
    floor: float = 0.1
    jitter: bool = True

    def __post_init__(self) -> None:
        for name in ("base", "factor", "cap", "floor"):
            value = getattr(self, name)
            # Compared with the largest float, for `isfinite` raises on an int beyond it.
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
                raise ConfigurationError(f"Backoff({name}={value!r}): must be a finite number of at least 0")

    def ceiling(self, attempt: int) -> float:
        """The longest wait in seconds after this attempt (1 = the first)."""
        cap = min(self.cap, MAX_DELAY)
        if self.base <= 0:
            return 0.0
        try:
            # The exponent is bounded by us, because attempt numbers are not; by then every growth is at its cap.
            return min(self.base * float(self.factor) ** min(max(attempt, 1) - 1, 10_000), cap)
        except OverflowError:
            return cap

    def delay(self, attempt: int, draw: Callable[[], float] = random.random) -> float:
        """Seconds to wait after this attempt. `draw` returns a number in [0, 1)."""
        top = self.ceiling(attempt)
        if not self.jitter:
            return max(self.floor, top)
        return max(self.floor, top * draw())


RetryRule = Backoff | None  # None: do not retry, the job is dead at once
RetryMap = Mapping[type[BaseException], RetryRule]
DEFAULT_BACKOFF = Backoff()


def rule_for(error: BaseException, per_exception: RetryMap | None, otherwise: RetryRule) -> RetryRule:
    """The rule for this error: the entry of its nearest class in the method resolution order, or `otherwise`."""
    if per_exception:
        for cls in type(error).__mro__:
            if cls in per_exception:
                return per_exception[cls]
    return otherwise


def retry_delay(
    rule: RetryRule, attempt: int, max_attempts: int, draw: Callable[[], float] = random.random
) -> float | None:
    """Seconds until the next attempt, or None if the job is dead now.

    A rule that misbehaves must not lose the job: any value that is not a usable number falls back to the default.
    """
    if rule is None or attempt >= max_attempts:
        return None
    delay: Any = rule.delay(attempt, draw)
    if not isinstance(delay, int | float) or not math.isfinite(delay) or delay < 0:
        delay = DEFAULT_BACKOFF.delay(attempt, draw)
    return float(min(delay, MAX_DELAY))


def backoff_from_options(options: Mapping[str, Any]) -> Backoff | None:
    """The backoff a job carries itself (`using(backoff=…)`), or None."""
    found = options.get("backoff")
    return Backoff(**found) if isinstance(found, dict) else None
