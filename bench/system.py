"""What the benchmark needs of a system under test."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from bench.marks import Marks


class System(ABC):
    """One system. The driver uses the class, `setup` and the SQL; the rest runs in child processes."""

    name: ClassVar[str]
    # The highest job id given out so far, as `base` of the next one.
    base_sql: ClassVar[str]
    # How many of `jobs` jobs with ids above `base` are not yet recorded as done. It looks at those jobs alone, so that it
    # costs the same however many dead rows lie around.
    unfinished_sql: ClassVar[str]

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    @abstractmethod
    def setup(self) -> None:
        """Create the schema in an empty database."""

    @abstractmethod
    async def open(self) -> None:
        """Get ready to enqueue."""

    @abstractmethod
    async def bulk(self, numbers: Sequence[int]) -> None:
        """Enqueue these jobs by the fastest way there is."""

    @abstractmethod
    async def one(self, n: int) -> None:
        """Enqueue one job, durably."""

    @abstractmethod
    async def close(self) -> None:
        """The end of enqueuing."""

    @abstractmethod
    def work(self, marks: Marks) -> None:
        """Run one worker process until SIGTERM; the handler calls `marks.start(n)`."""
