"""A task made ready for running: everything that can be worked out once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from skiplock.core.task import EVENT_LOOP, TaskSpec
from skiplock.work.resources import split


class Prepared:
    """`plain`: an `async def` without context, resources and middleware, which is called with nothing around it."""

    __slots__ = ("decode", "function", "hooks", "inside", "on_loop", "outside", "plain", "spec", "timeout")

    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec
        self.function: Callable[..., Any] = spec.function
        self.decode = spec.codec.decode
        self.timeout = spec.timeout
        self.on_loop = spec.executor == EVENT_LOOP
        self.outside, self.inside = split(spec.resources, not self.on_loop)
        self.plain = self.on_loop and not (spec.wants_context or spec.resources or spec.middleware)
        self.hooks = spec.hooks
