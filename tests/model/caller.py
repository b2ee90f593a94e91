"""What a worker process believes, which may be long untrue; and what may become of a call of its."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar, TypeVar

from hypothesis.stateful import RuleBasedStateMachine

from tests.model.reality import Reality
from tests.model.reference import Tables
from tests.model.values import FRESH, Job, Outcome, Pair

A = TypeVar("A")
T = TypeVar("T")


class Fate(Enum):
    """Of a call."""

    ANSWERED = "answered"
    UNHEARD = "unheard"  # done, but the answer is lost
    UNDONE = "undone"  # cut before it was committed


@dataclass
class Caller:
    """A worker process."""

    worker: int
    held: set[Pair] = field(default_factory=set)  # claimed, not ended
    outbox: dict[Pair, Outcome] = field(default_factory=dict)  # ended, not acknowledged
    settled: dict[Pair, Outcome] = field(default_factory=dict)  # acknowledged
    unanswered: list[tuple[int, int]] = field(default_factory=list)  # (worker, lease) of claims
    cursor: dict[tuple[str, int], int] = field(default_factory=dict)
    started: set[int] = field(default_factory=set)  # when it is dead: the jobs its supervisor knows to have begun

    def lanes(self) -> list[tuple[str, int, int]]:
        """Where its claims had got to: (queue, priority, position), best priority first within a queue."""
        found = [(queue, priority, at) for (queue, priority), at in self.cursor.items()]
        return sorted(found, key=lambda lane: (lane[0], -lane[1]))


class Compared(RuleBasedStateMachine):
    """Does each step twice, on the server and in the reference, and compares the answers and all tables afterwards."""

    real: Reality  # these are set by the test
    other: Reality  # another session, for what happens at once
    seen: ClassVar[Counter[str]]

    def __init__(self) -> None:
        super().__init__()
        self.real.reset()
        self.tables = Tables()
        self.callers: list[Caller] = []
        self.dead: list[Caller] = []
        self.numbers: dict[int, int] = {}  # the argument of each job
        self.expected: set[int] = set()  # jobs that were enqueued and not deleted
        self.highest = 0  # number drawn from the server's sequence, as far as seen
        self.leases = 1000
        self.ended: Counter[Pair] = Counter()
        self.steps = 0

    def saw(self, what: str) -> None:
        self.seen[what] += 1

    @staticmethod
    def one(items: list[T], pick: int) -> T:
        return items[pick % len(items)]

    def fresh_lease(self) -> int:
        self.leases += 1
        return self.leases

    def do(
        self, verb: str, fate: Fate, call: Callable[[], A], predict: Callable[[Tables, A], A | None]
    ) -> tuple[bool, A]:
        """One call. Whether its caller hears the answer, and the answer. `predict` changes the tables; None: any will do."""
        after = self.tables.copy()
        with self.real.undone(fate is Fate.UNDONE):
            answer = call()
        expected = predict(after, answer)
        assert expected is None or answer == expected, f"{verb} answered {answer}, must be {expected}"
        self.saw(f"{verb} {fate.value}")
        self._note_moves(verb, fate, after)
        if fate is not Fate.UNDONE:
            self.tables = after
        self.agree()
        return fate is Fate.ANSWERED, answer

    def _note_moves(self, verb: str, fate: Fate, after: Tables) -> None:
        if fate is Fate.UNDONE:
            return
        for job_id in self.tables.jobs.keys() | after.jobs.keys():
            job, now = self.tables.jobs.get(job_id), after.jobs.get(job_id)
            if job != now:
                self.saw(f"{verb}: {job.state if job else 'nothing'} → {now.state if now else 'nothing'}")

    def agree(self) -> None:
        """The server holds what the reference says, and what holds whatever the reference says."""
        actual, wanted = self.real.read(), self.tables
        self._draw(wanted.jobs, actual.jobs)
        actual.now = wanted.now
        for name in ("jobs", "workers", "cancellations", "steps", "paused", "leader", "leads_until"):
            found, must = getattr(actual, name), getattr(wanted, name)
            assert found == must, f"{name}: {_difference(found, must)}"
        assert sorted(actual.attempts, key=repr) == sorted(wanted.attempts, key=repr)
        check(actual, self.expected)

    def _draw(self, wanted: dict[int, Job], actual: dict[int, Job]) -> None:
        """Places drawn by the server: at the end of the line, whatever else."""
        for job_id, job in list(wanted.items()):
            if job.position == FRESH and job_id in actual:
                place = actual[job_id].position
                assert place is not None and place > self.highest, f"job {job_id} was put at {place}, not at the end"
                wanted[job_id] = Job(**{**job.__dict__, "position": place})
        drawn = [job.position or 0 for job in actual.values()]
        self.highest = max([self.highest, *actual, *drawn])


def check(tables: Tables, expected: set[int]) -> None:
    """What must hold after every step, said without help of the reference's verbs."""
    jobs = list(tables.jobs.values())
    assert set(tables.jobs) == expected, "a job is lost, or came from nowhere"
    places = [job.position for job in jobs if job.state == "ready"]
    assert None not in places and len(set(places)) == len(places), "two jobs in one place of the line"
    for job in jobs:
        running = job.state == "running"
        assert 0 <= job.attempt <= job.max_attempts, f"more attempts than allowed: {job}"
        assert job.attempt < job.max_attempts or job.state not in ("ready", "scheduled", "retryable"), job
        assert 0 <= job.losses <= (0 if job.state in ("scheduled", "retryable") else 2), job
        assert not running or (job.lease is not None and job.worker is not None and job.attempt >= 1), job
    live = [(job.unique, job.id) for job in jobs if job.unique is not None and job.is_live]
    assert sorted(tables.uniques.items()) == sorted(live), "two live jobs of one key, or a key held for what has ended"
    for job_id, worker in tables.cancellations.items():
        owner = tables.jobs.get(job_id)
        assert owner is not None and owner.state == "running" and owner.worker == worker, (
            "a cancel request nobody hears"
        )
    for kept in tables.attempts:
        assert kept.job in tables.jobs and 1 <= kept.attempt <= tables.jobs[kept.job].max_attempts, kept


def _difference(found: object, must: object) -> str:
    if isinstance(found, dict) and isinstance(must, dict):
        keys = [key for key in found.keys() | must.keys() if found.get(key) != must.get(key)]
        return "; ".join(f"{key} is {found.get(key)}, must be {must.get(key)}" for key in keys)
    return f"{found}, must be {must}"
