"""The whole protocol against a real server: everything that producers, workers, supervisors and people may do, in any order,
with answers that are lost and transactions that come to nothing in between, beside a reference in plain Python.

Covers: a settle under a stale lease, a settle repeated, a late message of a dead process, a claim whose answer was lost,
a worker that was declared lost and does not know, losses and attempts counted wrongly, a cancel request that nobody hears,
jobs lost or doubled by any sequence of verbs, and (`tests/model/caller.py`, check) whatever else must hold after each step.

The same examples each time, so that a failure is a change of the code. For others, and more of them (`make soak` does):
SKIPLOCK_PROTOCOL_SEED=1000 SKIPLOCK_PROTOCOL_ROUNDS=500 pytest tests/property/test_protocol.py
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.caller import Fate
from tests.model.protocol_machine import ProtocolMachine
from tests.model.reality import Reality

SEED = int(os.environ.get("SKIPLOCK_PROTOCOL_SEED", 0))
ROUNDS = int(os.environ.get("SKIPLOCK_PROTOCOL_ROUNDS", 20))
HOW: dict[str, Any] = {
    # Many rounds of ten rather than one of many: from the eleventh on, Hypothesis spends five of six examples on variations of
    # the sixth, and sees less.
    "max_examples": 10,
    "stateful_step_count": 50,
    "database": None,
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
}

# Each verb, and what became of the call.
CALLS = """
enqueue    claim    claim with cursor    claim of suspects    settle    complete    record    beat    rescue    report_lost
leave      promote  cancel               retry                delete    pause       resume
"""
MOVES = """
enqueue: nothing → ready               enqueue: nothing → scheduled         claim: ready → running
claim with cursor: ready → running     claim of suspects: ready → running   claim of suspects, alone: ready → running
settle: running → completed            settle: running → retryable          settle: running → cancelled
settle: running → dead                 settle: running → ready              complete: running → completed
release_claim: running → ready         release_claim: running → cancelled   leave: running → ready
leave: running → cancelled             beat: running → ready                rescue: running → ready
rescue: running → dead                 rescue: running → cancelled          report_lost: running → ready
report_lost: running → dead            report_lost: running → cancelled     promote: scheduled → ready
promote: retryable → ready             cancel: scheduled → cancelled        cancel: retryable → cancelled
cancel: ready → cancelled              retry: dead → ready                  retry: cancelled → ready
retry: scheduled → ready               retry: retryable → ready             delete: scheduled → nothing
delete: retryable → nothing            delete: ready → nothing              delete: completed → nothing
delete: cancelled → nothing            delete: dead → nothing
"""
SITUATIONS = """
enqueue in bulk                        enqueue one                          claim of a paused queue
two claims at once, both kept          two claims at once, one undone       a settle repeated
a settle refused                       one job in a batch under a stale lease and its own
complete refused                       record refused                       a lost worker hears of it and registers anew
a worker hears of a cancel request     reconcile finds what nobody holds    reconcile finds what is held in vain
cancel of running, done                cancel of None, refused              cancel of completed, refused
retry of running, refused              retry of completed, refused          delete of running, refused
delete of None, refused                cancel of cancelled, done            cancel of dead, refused
enqueue keeps                          enqueue replaces                     retry of taken, refused
"""


def named(table: str) -> set[str]:
    return {name.strip() for line in table.splitlines() for name in line.split("  ") if name.strip()}


EXPECTED = named(MOVES) | named(SITUATIONS)
EXPECTED |= {f"{verb} {fate.value}" for verb in named(CALLS) for fate in Fate}


@pytest.fixture
def machine(fresh_dsn: str) -> Iterator[type[ProtocolMachine]]:
    class Machine(ProtocolMachine):
        real = Reality(fresh_dsn)
        other = Reality(fresh_dsn)
        seen: ClassVar[Counter[str]] = Counter()

    yield Machine
    Machine.real.connection.close()
    Machine.other.connection.close()


def play(machine: type[ProtocolMachine], rounds: Iterable[int], phases: Collection[Phase]) -> None:
    for number in rounds:
        try:
            run_state_machine_as_test(seed(number)(machine), settings=settings(phases=phases, **HOW))
        except BaseException as error:
            error.add_note(f"To repeat it: SKIPLOCK_PROTOCOL_SEED={number} SKIPLOCK_PROTOCOL_ROUNDS=1")
            raise


@pytest.mark.timeout(600 + 5 * ROUNDS)  # a failure is made small before it is told, which takes minutes
def test_whatever_happens_in_whatever_order_the_tables_are_what_the_reference_says(
    machine: type[ProtocolMachine],
) -> None:
    """Over 10 s: some 7,000 calls, each compared with all tables, are what makes this test worth having."""
    played = 0
    while played < ROUNDS or (EXPECTED - machine.seen.keys() and played < 100):
        play(machine, [SEED + played], [Phase.generate, Phase.shrink])
        played += 1
    missing = sorted(EXPECTED - machine.seen.keys())
    assert not missing, f"never happened in {played} rounds, so nothing was tested of it: {missing}"


# What each mutant replaces in a function of the database.
MUTANTS = {
    "a settle does not look at the lease": ("_finish", "AND x.lease = u.lease", ""),
    "a retry knows no end": ("_settle_others", "r.attempt >= r.max_attempts", "false"),
    "a retry wins over a cancel request": ("_settle_others", "AND c.job_id IS NOT NULL", "AND false"),
    "cancel requests stay behind": ("_finish", "c.job_id = ANY (v_moved)", "false"),
    "a release spends the attempt": ("_release", "g.attempt - 1", "g.attempt"),
    "a release moves to the end of the line": ("_release", "SELECT g.id, g.position", "SELECT g.id, g.id + 1000000"),
    "a snooze spends the attempt": ("_retry_later", "ELSE g.attempt - 1", "ELSE g.attempt"),
    "losses are not forgotten": ("_retry_later", "g.priority, 0, 'retryable'", "g.priority, g.losses, 'retryable'"),
    "a rescued job keeps its lease": ("_lose", "nextval('skiplock.job_numbers'), NULL", "nextval('skiplock.job_numbers'), g.lease"),
    "a crash never kills a job": ("_lose", "r.losses >= 2 OR", "false OR"),
    "a loss by the host spends the attempt": ("_lose", "WHEN $3 IS NULL THEN g.attempt - 1", "WHEN $3 IS NULL THEN g.attempt"),
    "what was only claimed ahead counts as begun": ("_lose", "AND r.id <> ALL ($3)", "AND false"),
    "rows of unregistered workers are left": ("rescue", "IF NOT sweep THEN", "IF true THEN"),
    "a claim takes the suspects along": ("claim", "AND r.losses = 0", ""),
    "a claim does not look at the pause": ("claim", "p.paused_at IS NOT NULL", "false"),
    "a stale settle is accepted in silence": ("_not_settled", "AND w.lease = u.lease", ""),
    "a stale lease hides behind the right one": ("settle", "HAVING count(*) > 1", "HAVING count(*) > 9"),
    "a promotion goes by number": ("promote", "ORDER BY d.run_at LIMIT", "ORDER BY d.id DESC LIMIT"),
    "a key outlives its job": ("_let_go", "PERFORM skiplock._free_unique(v_keys, v_ids)", "PERFORM 1"),
    "who is replaced is gone": ("_unique_owners", "v_fate = 'taken'", "v_fate = 'no'"),
    "a retry takes no key": ("retry", "v_fresh AND v_job.flow ? 'unique'", "false"),
    "a retry by hand keeps the attempts used up": ("retry", "greatest(v_job.max_attempts - v_job.attempt, 1)", "0"),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_the_reference_notices(machine: type[ProtocolMachine], name: str) -> None:
    """Each takes one protection out of the SQL, and shows that the test above would fail."""
    function, text, instead = MUTANTS[name]
    rows = machine.real.db.rows("SELECT pg_get_functiondef(p.oid) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = 'skiplock' AND p.proname = %s", function)  # fmt: skip
    [[source]] = rows
    assert text in source, "the mutant has nothing to change any more"
    machine.real.db.rows(source.replace(text, instead).replace("%", "%%"))
    with pytest.raises(Exception) as found:
        play(machine, range(30), [Phase.generate])
    assert isinstance(found.value, AssertionError) or "SK00" in str(getattr(found.value, "sqlstate", "")), found.value
