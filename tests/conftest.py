"""Fixtures of every test. A database per test module, cloned from a template in a fraction of a second.

    server      the run's PostgreSQL: DSN of its maintenance database
    dsn         a database with skiplock's schema, shared by a module's tests
    fresh_dsn   the same, for one test
    empty_dsn   a database without the schema, for one test
    place       a folder like tmp_path, which other users can reach

Coroutine tests need no marker; see `tests.support.coroutines`. Each test may take 120 s (`timeout` in pyproject.toml).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import clone, create_empty, drop
from tests.support.coroutines import run_if_coroutine
from tests.support.server import ServerHandle, SharedServer

shared = pytest.StashKey[SharedServer]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[shared] = SharedServer()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest test first: begun last, it would be all that the whole run still waits for."""
    items.sort(key=lambda item: "test_soak" not in item.nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """In xdist's controller, for each worker it is about to start."""
    handle = node.config.stash[shared].handle()
    node.workerinput["skiplock_dsn"] = handle.dsn
    node.workerinput["skiplock_template_error"] = handle.template_error


def pytest_unconfigure(config: pytest.Config) -> None:
    config.stash[shared].stop()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    return run_if_coroutine(pyfuncitem)


@pytest.fixture(scope="session")
def server_handle(pytestconfig: pytest.Config) -> ServerHandle:
    given = getattr(pytestconfig, "workerinput", None)
    if given is not None:
        return ServerHandle(given["skiplock_dsn"], given["skiplock_template_error"])
    return pytestconfig.stash[shared].handle()


@pytest.fixture(scope="session")
def server(server_handle: ServerHandle) -> str:
    return server_handle.dsn


@pytest.fixture(scope="session")
def template_server(server_handle: ServerHandle) -> str:
    if server_handle.template_error:
        pytest.fail(f"skiplock's schema could not be made:\n{server_handle.template_error}", pytrace=False)
    return server_handle.dsn


@pytest.fixture(scope="module")
def dsn(template_server: str) -> Iterator[str]:
    database = clone(template_server)
    yield database
    drop(template_server, database)


@pytest.fixture
def fresh_dsn(template_server: str) -> Iterator[str]:
    database = clone(template_server)
    yield database
    drop(template_server, database)


@pytest.fixture
def empty_dsn(server: str) -> Iterator[str]:
    database = create_empty(server)
    yield database
    drop(server, database)


@pytest.fixture
def place() -> Iterator[Path]:
    """Like tmp_path, whose parents pytest closes to everybody else: not even the server's user gets through."""
    folder = Path(tempfile.mkdtemp(prefix="place-", dir="/tmp")).resolve()
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)
