"""What tests with a worker in their own process share: a database emptied for each test, and a proxy in front of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.proxy import FaultProxy, fault_proxy
from tests.support.verbs import Verbs, open_verbs


@pytest.fixture
def db(dsn: str) -> Iterator[Verbs]:
    """On a connection that no fault touches."""
    with open_verbs(dsn) as verbs:
        verbs.empty()
        yield verbs


@pytest.fixture
def proxy(db: Verbs, dsn: str) -> Iterator[FaultProxy]:
    with fault_proxy(dsn) as found:
        yield found
