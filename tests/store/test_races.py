"""Two statements at once, where one commits between two steps of the other.

Covers: a claim of a dead worker that commits while that worker's jobs are given back; registrations after a failover that
set the sequences back. The interleavings that need no second transaction are in tests/model.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.support import eventually
from tests.support.verbs import Verbs, open_verbs


@pytest.fixture
def db(fresh_dsn: str) -> Iterator[Verbs]:
    with open_verbs(fresh_dsn) as verbs:
        yield verbs


@pytest.mark.parametrize("known", [True, False], ids=["reported", "silent"])
@pytest.mark.parametrize("cancelled", [True, False], ids=["cancelled", "not cancelled"])
def test_a_claim_that_commits_while_its_worker_is_given_up_is_not_taken_along(
    db: Verbs, fresh_dsn: str, known: bool, cancelled: bool
) -> None:
    """Its job had not begun, and nobody has looked whether its attempts are used up or someone wants it cancelled.

    To see it fail: in `_lose` (rescue.sql), delete by `r.worker = $1` instead of by the places that were locked first.
    """
    worker = db.register(lost_after=9)
    begun = db.enqueue(max_attempts=1)
    db.claim(worker, 1)
    late = db.enqueue(max_attempts=1)
    if not known:
        db.move_time(60)

    def give_up() -> None:
        with open_verbs(fresh_dsn) as other:
            if known:
                other.rows("SELECT skiplock.report_lost(%s, %s, 'killed by signal 9')", worker, [begun])
            else:
                other.rows("SELECT * FROM skiplock.rescue(false)")

    with open_verbs(fresh_dsn) as door, door.transaction():
        door.rows("LOCK TABLE skiplock.attempts IN SHARE MODE")  # where it will have looked and not yet written
        thread = threading.Thread(target=give_up)
        thread.start()
        eventually(lambda: db.value("SELECT count(*) FROM pg_locks WHERE database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND relation = 'skiplock.attempts'::regclass AND NOT granted"))  # fmt: skip
        assert [job.id for job in db.claim(worker)] == [late]
        if cancelled:
            db.rows("SELECT * FROM skiplock.cancel(%s)", late)
    thread.join(30)
    assert db.state(begun) == ("dead" if known else "ready")
    assert db.state(late) == "running", "a later rescue looks at it"
    db.rows("SELECT * FROM skiplock.rescue()")
    row = db.job(late)
    assert (row.state, row.attempt) == (("cancelled", 1) if cancelled else ("ready", 0))
    assert db.count("cancellations") == 0


def test_workers_keep_numbers_of_their_own_when_a_failover_sets_the_sequence_back(db: Verbs) -> None:
    """As when the standby had not received it. To see it fail: give out the numbers of the sequence as they are."""
    numbers = []
    for _ in range(20):
        numbers.append(db.register())
        db.rows("DELETE FROM skiplock.workers")
        db.rows("SELECT setval('skiplock.worker_numbers', 1, false)")
    assert len(set(numbers)) > 15
