"""One connection for one command: unlike a pool it fails at once, and says why."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from skiplock.cli.failures import database_errors
from skiplock.store.again import repeat
from skiplock.store.call import Call
from skiplock.store.exchange import Exchange
from skiplock.store.pool import connect, run_call

T = TypeVar("T")
CONNECT_TIMEOUT = 5  # seconds; a person is waiting


class Run(Protocol):
    """Runs calls, each in a transaction of its own."""

    def __call__(self, call: Call[T], /) -> T: ...


@contextmanager
def connected(dsn: str) -> Iterator[Run]:
    """Connect and run calls. Raises SkiplockErrors only."""
    with database_errors():
        connection = connect(dsn, connect_timeout=CONNECT_TIMEOUT, application_name="skiplock cli")
        exchange = Exchange(connection)
        try:

            def run(call: Call[T]) -> T:
                with database_errors():
                    return repeat(lambda: run_call(exchange, call))

            yield run
        finally:
            connection.close()


def run_once(dsn: str, call: Call[T]) -> T:
    """Connect, run one call, disconnect."""
    with connected(dsn) as run:
        return run(call)
