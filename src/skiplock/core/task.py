"""What a worker has to know of a task: one frozen value."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from skiplock.core.flow import NO_RULES, Flow
from skiplock.core.retry import DEFAULT_BACKOFF, RetryMap, RetryRule

if TYPE_CHECKING:
    from skiplock.core.codec import ArgsCodec

# Where a handler runs: on the worker's loop, in a thread of the worker (both `work/run.py`), or in a child process
# (`work/children.py` on the worker's side, `child.py` on the other).
EVENT_LOOP, THREAD, PROCESS = "async", "thread", "process"


@dataclass(frozen=True, slots=True)
class ResourceSpec:
    """A parameter that is opened for the handler. `scope` is "attempt" (around each attempt) or "worker"."""

    factory: Callable[..., Any]
    scope: str = "attempt"


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """A registered function and its settings. Times in seconds; `timeout=None` means no limit.

    `memory`: bytes that its child process may have while it runs there, None: no limit of ours.
    """

    name: str
    function: Callable[..., Any]
    codec: ArgsCodec
    executor: str = EVENT_LOOP
    queue: str = "default"
    priority: int = 0
    max_attempts: int = 10
    timeout: float | None = None
    memory: int | None = None
    backoff: RetryRule = DEFAULT_BACKOFF
    retry_on: RetryMap | None = None
    wants_context: bool = False
    resources: Mapping[str, ResourceSpec] = field(default_factory=dict)
    middleware: tuple[Callable[..., Any], ...] = ()
    hooks: Mapping[str, tuple[Callable[..., Any], ...]] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    flow: Flow = NO_RULES

    @property
    def is_async(self) -> bool:
        """Whether it is an `async def`, wherever it runs."""
        return inspect.iscoroutinefunction(self.function)
