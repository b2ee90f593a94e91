"""One attempt with everything that a task may ask for around its handler: the same in a worker and in a child process.

resources of the loop ─▶ middleware ─▶ handler: on the loop, or in a thread with its own resources
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from typing import Any

from skiplock.work.context import JobContext
from skiplock.work.prepared import Prepared
from skiplock.work.resources import WorkerResources, enter, enter_sync

Body = Callable[[], tuple[bool, Any]]  # answers (it returned, what) or (it raised, what)
InThread = Callable[[Body], Awaitable[tuple[bool, Any]]]


async def whole_attempt(
    task: Prepared, context: JobContext, arguments: dict[str, Any], resources: WorkerResources, in_thread: InThread
) -> Any:
    """What the handler returns. Raises whatever it or anything around it raises."""
    spec = task.spec
    first = (context,) if spec.wants_context else ()
    async with AsyncExitStack() as stack:
        for name, resource in task.outside.items():
            if resource.scope == "worker":
                arguments[name] = await resources.get(resource)
            else:
                arguments[name] = await enter(stack, resource)

        async def handler() -> Any:
            if task.on_loop:
                return await task.function(*first, **arguments)
            returned, value = await in_thread(_body(task, first, arguments))
            if not returned:
                raise value
            return value

        call: Callable[[], Awaitable[Any]] = handler
        for middleware in reversed(spec.middleware):
            call = _wrapped(middleware, context, call)
        return await call()


def _body(task: Prepared, first: tuple[Any, ...], arguments: dict[str, Any]) -> Body:
    def body() -> tuple[bool, Any]:
        # The error travels as a value: a future would treat StopIteration and SystemExit in ways of its own.
        value = None  # and stays it if a resource swallows the error
        try:
            with ExitStack() as stack:
                opened = {n: enter_sync(stack, r, n) for n, r in task.inside.items()}
                value = task.function(*first, **arguments, **opened)
        except BaseException as error:
            return False, error
        return True, value

    return body


def _wrapped(
    middleware: Callable[..., Any], context: JobContext, inner: Callable[[], Awaitable[Any]]
) -> Callable[[], Awaitable[Any]]:
    async def call() -> Any:
        return await middleware(context, inner)

    return call
