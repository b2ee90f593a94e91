"""What the benchmark needs of a system under test."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any, ClassVar, Literal

from bench.marks import Marks

# One command to the store's Redis, and its answer.
Ask = Callable[..., Any]


class System(ABC):
    """One system. The driver uses the class alone; instances live in child processes, on the system's own Python.

    So a module with a System imports nothing but the standard library when it is imported.
    """

    name: ClassVar[str]
    kind_of_store: ClassVar[Literal["pg", "redis"]] = "pg"
    # What was configured, in a line; where nothing was, it is not mentioned.
    settings: ClassVar[str] = "defaults"
    # Whether `bulk` is more than a loop of `one`.
    has_bulk: ClassVar[bool] = True
    # The Python that runs `bench.child` for it.
    python: ClassVar[str] = sys.executable
    # The highest job id given out so far, as `base` of the next one.
    base_sql: ClassVar[str] = "select 0"
    # How many of `jobs` jobs with ids above `base` are not yet recorded as done. If it looks at those jobs alone, it
    # costs the same however many dead rows lie around.
    unfinished_sql: ClassVar[str]

    def __init__(self, dsn: str) -> None:
        self.dsn = dsn

    # -- for the driver ----------------------------------------------------------------------------------------------

    @classmethod
    def command(cls) -> list[str]:
        """What runs its child processes; DSN, MARKS, VERB and numbers follow. See `bench.child`."""
        return [cls.python, "-m", "bench.child", cls.name]

    @classmethod
    def version(cls) -> str:
        """Of the installed distribution."""
        return version(cls.name)

    @classmethod
    def unfinished(cls, ask: Ask) -> int:
        """Like `unfinished_sql`, where the store is Redis."""
        raise NotImplementedError

    # -- in child processes ------------------------------------------------------------------------------------------

    def setup(self) -> None:  # noqa: B027
        """Create the schema in an empty database. Redis needs none."""

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
