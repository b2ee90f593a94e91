"""Every interleaving of a small model of the protocol (tests/model/small_machine.py), and what each protection is for.

Covers: workers killed, suspended and stopped at any point; requests and answers that are lost, delayed or repeated; a
rescuer that pauses between looking and writing; a failover that undoes acknowledged claims, settles and registrations.
"""

from __future__ import annotations

import os

import pytest

from tests.model.explorer import explore
from tests.model.small_database import Limits, Protections
from tests.model.small_machine import Protocol
from tests.model.small_state import Scope, World

ONE = Limits(attempts=1, losses=1)
SCOPES = {
    "a worker is suspended": Scope(World(pauses=1)),
    "workers are suspended twice": Scope(World(pauses=2), limits=ONE),
    "a worker is suspended, a connection is cut": Scope(World(pauses=1, cuts=1), limits=ONE, handlers_fail=False),
    "two connections are cut, a worker stops": Scope(World(cuts=2, stops=1)),
    "a worker is killed, one stops, a connection is cut": Scope(World(kills=1, stops=1, cuts=1), limits=ONE),
    "a worker is suspended, a failover undoes two transactions": Scope(
        World(pauses=1, failovers=1), limits=ONE, undone=2, handlers_fail=False
    ),
    "a failover undoes one transaction, a connection is cut": Scope(World(failovers=1, cuts=1)),
    "a failover undoes two transactions, a connection is cut": Scope(World(failovers=1, cuts=1), undone=2),
    "a failover undoes two transactions, a worker is killed": Scope(World(failovers=1, kills=1), undone=2, limits=ONE),
    "a failover undoes a registration, a connection is cut": Scope(
        World(failovers=1, cuts=1), limits=ONE, started=False
    ),
    "two jobs under one lease, a connection is cut": Scope(World(cuts=1), jobs=2, slots=2),
}
# Minutes.
WIDE = {
    "a job survives two losses": Scope(World(pauses=1), limits=Limits(2, 2)),
    "a worker is suspended, another stops, a connection is cut": Scope(
        World(pauses=1, cuts=1, stops=1), limits=ONE, handlers_fail=False
    ),
    "a worker is suspended, two connections are cut": Scope(World(pauses=1, cuts=2), limits=ONE, handlers_fail=False),
    "two jobs under one lease, a worker is killed, a connection is cut": Scope(
        World(cuts=1, kills=1), jobs=2, slots=2, limits=ONE
    ),
}
if os.environ.get("SKIPLOCK_INTERLEAVINGS") == "wide":
    SCOPES |= WIDE


FAULTS = {
    "kills": "is killed",
    "cuts": "arrives",
    "failovers": "a failover undoes",
    "stops": "is told to stop",
    "pauses": "nobody beats",
}


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SCOPES)
def test_no_order_of_steps_breaks_the_protocol(name: str) -> None:
    """In every state: each job in one place, no more attempts than allowed, no settle accepted under a stale lease, none
    acknowledged that had no effect. And from every state all jobs still end if the world leaves us alone from then on."""
    found = explore(Protocol(SCOPES[name]), limit=5_000_000)
    print(f"{name}: {found}")
    assert not found.problem, found
    for fault, words in FAULTS.items():
        happened = any(words in step for step in found.kinds)
        assert happened == bool(getattr(SCOPES[name].world, fault)), f"{fault}: {sorted(found.kinds)}"


STALE = "a settle was accepted under a stale lease"
TWO = "a job is lost, or in two places"
IN_VAIN = "a settle was acknowledged and had no effect"
STUCK = "stuck: from here it never ends"
AGAIN = "a job runs again whose end was acknowledged"
ATTEMPTS = "more attempts than were allowed, or fewer than none"

P = Protections
MUTANTS = {
    "a settle does not look at the lease": (P(lease_checked=False), Scope(World(pauses=1)), STALE),
    "a settle is applied again": (P(only_running=False), Scope(World(cuts=1, stops=1)), ATTEMPTS),
    "a rescue writes what it saw": (
        P(rescue_fenced=False),
        Scope(World(cuts=1, pauses=1), limits=ONE, handlers_fail=False),
        TWO,
    ),
    "a rescued job keeps its lease": (P(lease_cleared=False), Scope(World(pauses=1)), IN_VAIN),
    "a retry is always granted": (P(attempts_counted=False), Scope(World()), ATTEMPTS),
    "rows of unregistered workers are left": (
        P(unregistered_swept=False),
        Scope(World(cuts=1, kills=1), limits=ONE),
        STUCK,
    ),
    "leases come from a sequence": (P(random_leases=False), Scope(World(failovers=1)), STALE),
    "workers' numbers come from a sequence": (
        P(unique_workers=False),
        Scope(World(failovers=1), started=False),
        IN_VAIN,
    ),
    "outcomes are forgotten when settled": (P(outcomes_remembered=False), Scope(World(failovers=1)), AGAIN),
    "nobody compares after a failover": (P(reconciled=False), Scope(World(failovers=1)), STUCK),
    "nobody compares after a cut": (P(reconciled=False), Scope(World(cuts=1)), STUCK),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_each_protection_is_needed(name: str) -> None:
    """Without it the explorer finds the shortest way into trouble. With it, the same world is harmless."""
    protections, scope, problem = MUTANTS[name]
    found = explore(Protocol(scope, protections))
    print(f"{name}: {found}")
    assert found.problem == problem, found
    assert not explore(Protocol(scope)).problem
