"""Resources: things a handler needs opened, declared as parameters.

@asynccontextmanager
async def session_scope():
    async with SessionLocal() as session:
        yield session

@app.task
async def import_rows(path: str, db: AsyncSession = Resource(session_scope)) -> int: ...
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
)
from typing import Any, TypeVar, overload

from skiplock.core.errors import TaskDefinitionError
from skiplock.core.task import ResourceSpec

T = TypeVar("T")


@overload
def Resource(factory: Callable[[], AbstractAsyncContextManager[T]], *, scope: str = "attempt") -> T: ...
@overload
def Resource(factory: Callable[[], AbstractContextManager[T]], *, scope: str = "attempt") -> T: ...
@overload
def Resource(factory: Callable[[], AsyncIterator[T]], *, scope: str = "attempt") -> T: ...
@overload
def Resource(factory: Callable[[], Iterator[T]], *, scope: str = "attempt") -> T: ...
def Resource(factory: Callable[[], Any], *, scope: str = "attempt") -> Any:
    """Default of a task's parameter: open it with `factory` for the handler.

    `factory` takes nothing and returns a context manager (sync or async), or is a generator function that yields once.
    scope="attempt" (default): opened before and closed after each attempt, told of the handler's exception, if any.
    scope="worker": opened at first use, shared by all attempts of the worker process, closed when it stops.
    In a `def` task a sync one is opened, used and closed in the handler's own thread.
    """
    if not callable(factory):
        raise TaskDefinitionError(f"Resource({factory!r}): give a function that returns a context manager")
    if scope not in ("attempt", "worker"):
        raise TaskDefinitionError(f"Resource(scope={scope!r}): use 'attempt' or 'worker'")
    return ResourceSpec(factory, scope)


def resources_of(function: Callable[..., Any], task: str) -> dict[str, ResourceSpec]:
    """The parameters of a function that are resources."""
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        if isinstance(parameter.default, ResourceSpec):
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise TaskDefinitionError(f"task {task!r}: resource {name!r} cannot be positional-only")
            found[name] = parameter.default
    return found


def manager_of(spec: ResourceSpec) -> Any:
    """A new context manager of a resource."""
    factory = spec.factory
    if inspect.isasyncgenfunction(factory):
        return asynccontextmanager(factory)()
    if inspect.isgeneratorfunction(factory):
        return contextmanager(factory)()
    made = factory()
    if hasattr(made, "__aenter__") or hasattr(made, "__enter__"):
        return made
    raise TypeError(f"Resource factory {factory!r} returned {type(made).__name__}, which is no context manager")


async def enter(stack: AsyncExitStack, spec: ResourceSpec) -> Any:
    """Open it on the event loop; `stack` closes it."""
    manager = manager_of(spec)
    if hasattr(manager, "__aenter__"):
        return await stack.enter_async_context(manager)
    return stack.enter_context(manager)


def enter_sync(stack: ExitStack, spec: ResourceSpec, name: str) -> Any:
    """Open it in the current thread; `stack` closes it."""
    manager = manager_of(spec)
    if not hasattr(manager, "__enter__"):
        raise TypeError(f"resource {name!r} is async; a plain call of a `def` task needs a sync one")
    return stack.enter_context(manager)


class WorkerResources:
    """Resources with scope="worker": one of each, opened at first use."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._values: dict[Callable[..., Any], Any] = {}
        self._lock = asyncio.Lock()

    async def get(self, spec: ResourceSpec) -> Any:
        """The shared value, opened by the first who asks."""
        async with self._lock:
            if spec.factory not in self._values:
                self._values[spec.factory] = await enter(self._stack, spec)
            return self._values[spec.factory]

    async def close(self) -> None:
        """Close all, last opened first."""
        async with self._lock:
            self._values.clear()
            await self._stack.aclose()


def is_async_resource(spec: ResourceSpec) -> bool:
    """Whether it can only be opened on the event loop. Asks the factory's kind, without opening anything."""
    factory: Any = inspect.unwrap(spec.factory) if callable(spec.factory) else spec.factory
    return inspect.isasyncgenfunction(factory) or inspect.iscoroutinefunction(getattr(factory, "__aenter__", None))


def split(
    resources: Mapping[str, ResourceSpec], in_thread: bool
) -> tuple[dict[str, ResourceSpec], dict[str, ResourceSpec]]:
    """(opened on the loop, opened in the handler's thread)."""
    inside = {n: r for n, r in resources.items() if in_thread and r.scope == "attempt" and not is_async_resource(r)}
    return {n: r for n, r in resources.items() if n not in inside}, inside
