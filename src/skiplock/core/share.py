"""How often something dear may be done that is usually cheap: at most a fixed share of the time.

Searches from the left end of an index walk over dead entries while someone's old snapshot pins them. They cannot be left out,
since they alone find what came late, but their price must not become everybody's.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Share:
    """Bounds the dear form of an action that has a cheap form too. Times are seconds of any monotonic clock.

    `share` of the time may be spent beyond what the cheap form costs. While both cost the same, the dear form is free.
    """

    share: float
    next_at: float = 0.0
    usual: float = 0.0  # what the cheap form takes, smoothed

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
            self.next_at = now + max(0.0, seconds - self.usual * 1.5 - 0.0005) / self.share

    def failed(self, seconds: float, now: float) -> None:
        """The dear form took that long and came to nothing (a statement_timeout, say): the cheap one must have its turn."""
        self.next_at = now + max(0.0, seconds - self.usual * 1.5 - 0.0005) / self.share

    def reset(self) -> None:
        """Start afresh."""
        self.next_at = self.usual = 0.0
