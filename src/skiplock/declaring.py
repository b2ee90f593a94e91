"""What is made of a task's declaration, and what is refused there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from skiplock.core.errors import OptionError, TaskDefinitionError
from skiplock.core.flow import Flow, flow_of
from skiplock.core.retry import Backoff
from skiplock.core.size import Size, size_as_text, size_in_bytes
from skiplock.core.task import EVENT_LOOP, PROCESS, THREAD
from skiplock.work.context import JobContext

LEAST_MEMORY = 64 * 1024**2
HOOKS = ("attempt_started", "attempt_ended", "attempt_failed", "job_dead")


def default_name(function: Callable[..., Any]) -> str:
    """`module.function`. Raises TaskDefinitionError where a worker could not know it by that."""
    module, qualname = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not qualname or "<lambda>" in qualname:
        raise TaskDefinitionError(f"{function!r} has no name of its own; give name=")
    if module == "__main__":
        # A worker imports the module by its real name and would know the task by that one.
        raise TaskDefinitionError(
            f"task {qualname!r} is defined in the module run as __main__, whose name a worker cannot know; "
            "move it to a module of its own or give name="
        )
    return f"{module}.{qualname.replace('<locals>.', '')}"


def wants_context_of(function: Callable[..., Any]) -> bool:
    """Whether its first parameter is the JobContext. Raises TaskDefinitionError if another one is."""
    parameters = list(inspect.signature(function).parameters.values())
    annotated = [p.name for p in parameters if p.annotation is JobContext or str(p.annotation).endswith("JobContext")]
    if annotated and annotated[0] != parameters[0].name:
        raise TaskDefinitionError(f"parameter {annotated[0]!r}: the JobContext must be the first parameter")
    return bool(annotated)


def executor_of(function: Callable[..., Any], executor: str | None, name: str) -> str:
    """Where it runs. Raises TaskDefinitionError if it cannot run there."""
    is_async = inspect.iscoroutinefunction(function)
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        raise TaskDefinitionError(f"task {name!r} is a generator function; use a plain `def` or `async def`")
    found = executor or (EVENT_LOOP if is_async else THREAD)
    if found == PROCESS:
        _check_importable(function, name)
    elif found not in (EVENT_LOOP, THREAD) or (found == EVENT_LOOP) != is_async:
        raise TaskDefinitionError(
            f'task {name!r}: executor={executor!r} does not fit; "{EVENT_LOOP}" is for `async def`, "{THREAD}" for '
            f'`def`, "{PROCESS}" for both'
        )
    return found


def _check_importable(function: Callable[..., Any], name: str) -> None:
    """A child process imports modules and finds there what they declare: nothing else can be run in one."""
    qualname = getattr(function, "__qualname__", "")
    if not (getattr(function, "__module__", None) and qualname) or "<" in qualname:
        raise TaskDefinitionError(
            f'task {name!r}: executor="process" needs a function that a child process finds by importing its module; '
            f"{qualname or repr(function)} is not one. Define it with `def` at the top level of a module"
        )


def check_memory(memory: Size, executor: str | None, name: str) -> int:
    """In bytes. Raises TaskDefinitionError or OptionError."""
    if executor != PROCESS:
        raise TaskDefinitionError(f'task {name!r}: memory={memory!r} needs executor="process": only a child has a cap')
    found = size_in_bytes(memory, f"task {name!r}: memory")
    if found < LEAST_MEMORY:
        raise OptionError(
            f"task {name!r}: memory={memory!r}: Python and skiplock alone take {size_as_text(LEAST_MEMORY)}"
        )
    return found


def check_rules(task: str, backoff: Any, retry_on: Any, callables: Iterable[Any]) -> None:
    """Refuse at the declaration what would otherwise show up when the first attempt fails."""
    if backoff is not None and not isinstance(backoff, Backoff):
        raise TaskDefinitionError(f"task {task!r}: backoff={backoff!r}: give a Backoff(…), or None for no retries")
    for cls, rule in (retry_on or {}).items():
        if not (isinstance(cls, type) and issubclass(cls, BaseException)):
            raise TaskDefinitionError(f"task {task!r}: retry_on has the key {cls!r}: give exception classes")
        if rule is not None and not isinstance(rule, Backoff):
            raise TaskDefinitionError(f"task {task!r}: retry_on[{cls.__name__}]={rule!r}: give a Backoff(…) or None")
    for found in callables:
        if not callable(found):
            raise TaskDefinitionError(f"task {task!r}: {found!r} is given as a hook or middleware and cannot be called")


def rules_of(given: dict[str, Any]) -> Flow:
    """The flow rules among the settings of a task. Raises TypeError for any other setting, OptionError."""
    unknown = given.keys() - {"unique", "limits", "fair_key", "weight", "expires"}
    if unknown:
        raise TypeError(f"task() got an unexpected keyword argument {sorted(unknown)[0]!r}")
    return flow_of(*(given.get(name) for name in ("unique", "limits", "fair_key", "weight", "expires")))


def hooks_of(hooks: Mapping[str, Callable[..., Any]] | None, name: str) -> dict[str, tuple[Callable[..., Any], ...]]:
    """By moment. Raises TaskDefinitionError for a moment that there is not."""
    for moment in hooks or {}:
        if moment not in HOOKS:
            raise TaskDefinitionError(f"task {name!r}: hook {moment!r} is unknown; use {', '.join(HOOKS)}")
    return {moment: (hook,) for moment, hook in (hooks or {}).items()}
