"""A task made ready for running: everything that can be worked out once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from skiplock.core.task import PROCESS, TaskSpec
from skiplock.work.resources import split


class Prepared:
    """`plain`: an `async def` without context, resources and middleware, which is called with nothing around it.

    `in_child`: a worker hands it to a child process. The child itself prepares it too, and then does not look at that.
    """

    __slots__ = ("decode", "function", "hooks", "in_child", "inside", "on_loop", "outside", "plain", "spec", "timeout")

    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec
        self.function: Callable[..., Any] = spec.function
        self.decode = spec.codec.decode
        self.timeout = spec.timeout
        self.in_child = spec.executor == PROCESS
        self.on_loop = spec.is_async
        self.outside, self.inside = split(spec.resources, not self.on_loop)
        self.plain = self.on_loop and not (spec.wants_context or spec.resources or spec.middleware)
        self.hooks = spec.hooks
