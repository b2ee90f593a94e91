"""How often something dear may be done that is usually cheap: at most a fixed share of the time.

Searches from the left end of an index walk over dead entries while someone's old snapshot pins them. They cannot be left out,
since they alone find what came late, but their price must not become everybody's.
"""

from __future__ import annotations

from dataclasses import dataclass

DOUBTFUL = 0.5  # seconds: more than the dear form takes but under an old snapshot of hours
CONFIRM_AFTER = 2.0  # seconds


@dataclass(slots=True)
class Share:
    """Bounds the dear form of an action that has a cheap form too. Times are seconds of any monotonic clock.

    `share` of the time may be spent beyond what the cheap form costs. While both cost the same, the dear form is free.
    """

    share: float
    next_at: float = 0.0
    usual: float = 0.0  # what the cheap form takes, smoothed
    confirms: bool = False  # a large measurement counts only when the next one confirms it
    doubted: bool = False  # the latest measurement was so large that it has to be confirmed

    def is_due(self, now: float) -> bool:
        """Whether the dear form may be used."""
        return now >= self.next_at

    def spent(self, dear: bool, seconds: float, now: float) -> None:
        """One of the two forms took that long."""
        if not dear:
            self.usual = seconds if self.usual == 0 else 0.8 * self.usual + 0.2 * seconds
        elif self.usual == 0:
            # Nothing to compare with yet: let one of the cheap form run soon and show the difference.
            self.next_at = now + min(seconds, 0.05)
        else:
            self._wait(seconds, now)

    def failed(self, seconds: float, now: float) -> None:
        """The dear form took that long and came to nothing (a statement_timeout, say): the cheap one must have its turn."""
        self._wait(seconds, now)

    def _wait(self, seconds: float, now: float) -> None:
        """One large measurement may be of something else, a process stopped or a laptop asleep meanwhile: at a hundredth of the
        time, three such seconds would be five minutes without a look. For a heart, which looks seldom, it counts in full only if
        the next one confirms it; claims, which go on by their cursors, keep strictly within their share.
        """
        wait = max(0.0, seconds - self.usual * 1.5 - 0.0005) / self.share
        self.doubted = self.confirms and seconds > DOUBTFUL and not self.doubted
        self.next_at = now + (min(wait, CONFIRM_AFTER) if self.doubted else wait)

    def reset(self) -> None:
        """Start afresh."""
        self.next_at = self.usual = 0.0
        self.doubted = False
