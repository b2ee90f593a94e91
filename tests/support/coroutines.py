"""Tests that are coroutine functions run in an event loop of their own; no plugin needed.

The loop is always asyncio's own, never uvloop, whatever a test or an import installed: what passes here must pass on
the loop everybody has. With hypothesis, each example gets its own loop.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

import pytest


def run_in_loop(function: Callable[..., Coroutine[Any, Any, Any]], /, *args: Any, **kwargs: Any) -> Any:
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        return runner.run(function(*args, **kwargs))


def run_if_coroutine(item: pytest.Function) -> bool | None:
    """The body of `pytest_pyfunc_call`: True says that the test was run here."""
    inner = getattr(getattr(item.obj, "hypothesis", None), "inner_test", None)
    if inspect.iscoroutinefunction(inner):
        item.obj.hypothesis.inner_test = _as_plain_function(inner)
        return None
    if not inspect.iscoroutinefunction(item.obj):
        return None
    run_in_loop(item.obj, **{name: item.funcargs[name] for name in item._fixtureinfo.argnames})
    return True


def _as_plain_function(function: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:  # hypothesis wants a function with code, not a partial
        return run_in_loop(function, *args, **kwargs)

    return run
