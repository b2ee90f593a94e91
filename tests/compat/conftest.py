"""Fixtures: the previous release, unpacked once a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.releases import WHEELS, Release


@pytest.fixture(scope="session", params=WHEELS, ids=[wheel.name.split("-py3")[0] for wheel in WHEELS])
def each_release(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Every kept release in turn: all can be upgraded from."""
    wheel: Path = request.param
    return Release.unpack(wheel, tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The latest kept release: its workers run on the schema of this checkout."""
    return Release.unpack(WHEELS[-1], tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="session")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The first of them, which is surely older than this checkout."""
    return Release.unpack(WHEELS[0], tmp_path_factory.mktemp("release"))
