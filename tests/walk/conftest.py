"""What the walks share: a database emptied for each test, and an app on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from skiplock import Skiplock
from tests.support.handlers import Hold
from tests.support.verbs import Verbs, open_verbs


@pytest.fixture
def db(dsn: str) -> Iterator[Verbs]:
    with open_verbs(dsn) as verbs:
        verbs.empty()
        yield verbs


@pytest.fixture
def app(db: Verbs, dsn: str) -> Iterator[Skiplock]:
    with Skiplock(dsn) as found:
        yield found


@pytest.fixture
def hold() -> Iterator[Hold]:
    """Let go at the end, whatever happened."""
    found = Hold()
    yield found
    found.free.set()
