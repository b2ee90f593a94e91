"""Code of this release on a schema of an earlier one that nobody has migrated yet: said once and clearly, then over.

Kinds: refused with a clear message beyond the contract (UPG-14), no crash loop, no spam.
To see them fail: take `required_call` out of `Worker._register`; the worker then starts, and every beat of it fails.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from skiplock import SchemaError, Skiplock
from skiplock.core.settings import WorkerSettings
from skiplock.store.migrate import migrate
from skiplock.store.schema import migrations
from skiplock.worker import Worker
from tests.compat.releases import NEW, Release
from tests.support.catalog import run


@pytest.fixture
def old_dsn(oldest: Release, empty_dsn: str) -> str:
    oldest.install(empty_dsn)
    return empty_dsn


def test_new_workers_refuse_to_start(old_dsn: str, tmp_path: Path) -> None:
    """Under a supervisor, which would restart whatever a restart can cure."""
    with NEW.worker(old_dsn, tmp_path, processes=2) as fleet:
        assert fleet.wait() == 5
        said = fleet.log.read_text()
    assert "skiplock db migrate" in said and migrations()[-1].name in said
    assert "Traceback" not in said
    assert len(said.splitlines()) <= 8, said
    assert run(old_dsn, "SELECT * FROM skiplock.workers") == []


async def test_it_is_a_schema_error(old_dsn: str) -> None:
    app = Skiplock(old_dsn)
    with pytest.raises(SchemaError, match="skiplock db migrate"):
        await Worker(app, WorkerSettings()).run()
    migrate(old_dsn)
    worker = Worker(app, WorkerSettings(drain=True))
    await worker.run()
    assert worker.id > 0
    await app.aclose()


def test_new_producers_may_come_first(old_dsn: str) -> None:
    """What they send has not changed, so nothing forces web servers to wait for the migration. What they read has."""
    with Skiplock(old_dsn) as app:

        @app.task(name="t")
        def work() -> None: ...

        job = work.enqueue()
        assert run(old_dsn, "SELECT id, state FROM skiplock.jobs") == [(job.id, "ready")]
        with pytest.raises(SchemaError, match="skiplock db migrate"):
            job.get()
