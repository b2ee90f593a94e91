"""What every verb must do, in plain Python: the reference that a real server is compared with, step by step.

A `Tables` value is what the database must hold after a step. Each verb changes it and answers what the real one must answer.
Times are whole seconds of the test's own clock. Places in line that the server draws are `FRESH` until the comparison has
read them.

To add a feature: a field of Job (or a table of its own in Tables), its part in the verbs, and a line in `reality.read`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from tests.model.values import FINAL, FRESH, LOST, WAITING, Beat, Job, Kept, NewJob, Outcome, Pair, Worker


@dataclass
class Tables:
    """All that is stored."""

    now: int = 0
    jobs: dict[int, Job] = field(default_factory=dict)
    workers: dict[int, Worker] = field(default_factory=dict)
    cancellations: dict[int, int] = field(default_factory=dict)  # job: worker
    attempts: list[Kept] = field(default_factory=list)
    steps: set[tuple[int, str]] = field(default_factory=set)
    paused: set[str] = field(default_factory=set)
    uniques: dict[str, int] = field(default_factory=dict)  # as read; here they are what the live jobs have
    leader: int | None = None
    leads_until: int | None = None

    def copy(self) -> Tables:
        found = replace(self, jobs=dict(self.jobs), workers=dict(self.workers), cancellations=dict(self.cancellations))
        found.attempts, found.steps, found.paused = list(self.attempts), set(self.steps), set(self.paused)
        return found

    def in_state(self, *states: str) -> list[Job]:
        return [job for job in self.jobs.values() if job.state in states]

    def running(self, worker: int) -> list[Job]:
        return [job for job in self.in_state("running") if job.worker == worker]

    def owned(self, job_id: int, lease: int) -> Job | None:
        job = self.jobs.get(job_id)
        return job if job is not None and job.state == "running" and job.lease == lease else None

    def _put(self, job: Job, **changes: object) -> Job:
        self.jobs[job.id] = replace(job, **changes)  # type: ignore[arg-type]
        return self.jobs[job.id]

    # -- produce -----------------------------------------------------------------------------------------------------

    def holder(self, key: str | None) -> Job | None:
        """The live job of a unique key."""
        return next((job for job in self.jobs.values() if key is not None and job.unique == key and job.is_live), None)

    def enqueue(self, new: Sequence[NewJob], ids: Sequence[int]) -> tuple[list[int], dict[int, int]]:
        """The job that each row stands for, and of which row each job that was written is. `ids`: as the server drew them."""
        answers, written = [], {}
        before = set(self.jobs)
        replaced: dict[int, Job] = {}  # by several rows, perhaps: only what the last one says is written
        for nth, (job, job_id) in enumerate(zip(new, ids, strict=True)):
            there = self.holder(job.unique)
            assert there is not None or job_id not in before, f"job {job_id} is there already"
            if there is None:
                self._write(job, job_id, None)
            elif job.replaces and there.state != "running":
                self._write(job, there.id, replaced.setdefault(there.id, there) if there.id in before else None)
            else:
                answers.append(there.id)
                continue
            answers.append(job_id if there is None else there.id)
            written[answers[-1]] = nth
        return answers, written

    def _write(self, job: NewJob, job_id: int, old: Job | None) -> None:
        """As new; or in the place of an old one, whose attempts stay on record and do not count."""
        due = None if job.delay is None else self.now + job.delay
        ready = due is None or due <= self.now
        place = job_id if old is None else FRESH if old.position is None else old.position
        attempt = old.attempt if old else 0
        state, position = ("ready", place) if ready else ("scheduled", None)
        self.jobs[job_id] = Job(
            job_id,
            job.queue,
            job.priority,
            job.max_attempts + attempt,
            state,
            position,
            due,
            attempt,
            large=job.large,
            unique=job.unique,
        )
        self.steps = {step for step in self.steps if step[0] != job_id}

    # -- claim -------------------------------------------------------------------------------------------------------

    def claim(
        self,
        worker: int,
        lease: int,
        rooms: Mapping[str, int],
        lanes: Sequence[tuple[str, int, int]] | None,
        locked: Collection[int] = (),
    ) -> list[Job]:
        """`lanes` are cursors: (queue, priority, position); `locked` rows are another's just now."""
        taken: list[Job] = []
        for queue, room in rooms.items():
            line = [job for job in self._line(queue) if job.losses == 0 and job.id not in locked]
            if lanes is None:
                taken += sorted(line, key=_by_rank)[:room]
            else:
                seen = [job for name, p, at in lanes if name == queue for job in _lane(line, p, at)]
                taken += seen[:room]
        return self._start(worker, lease, taken)

    def claim_suspects(self, worker: int, lease: int, rooms: Mapping[str, int], alone: bool) -> list[Job]:
        taken: list[Job] = []
        for queue, room in rooms.items():
            line = [job for job in self._line(queue) if (job.losses > 1 if alone else job.losses == 1)]
            taken += sorted(line, key=lambda job: job.position or 0)[:room]
        return self._start(worker, lease, taken[:1] if alone else taken)

    def _line(self, queue: str) -> list[Job]:
        return [] if queue in self.paused else [job for job in self.in_state("ready") if job.queue == queue]

    def _start(self, worker: int, lease: int, jobs: Iterable[Job]) -> list[Job]:
        change = {"state": "running", "worker": worker, "lease": lease}
        return sorted([self._put(job, attempt=job.attempt + 1, **change) for job in jobs], key=_by_rank)

    # -- settle ------------------------------------------------------------------------------------------------------

    def settle(self, outcomes: Iterable[Outcome]) -> set[Pair]:
        """What is refused: neither ended now nor before under the lease shown."""
        outcomes = list(outcomes)
        for outcome in outcomes:
            job = self.owned(outcome.id, outcome.lease)
            if job is not None:
                self._end(job, outcome)
        return {found.pair for found in outcomes if not self._ended_under(found)}

    def _ended_under(self, outcome: Outcome) -> bool:
        job = self.jobs.get(outcome.id)
        return job is not None and job.state != "running" and job.lease == outcome.lease

    def _end(self, job: Job, outcome: Outcome) -> None:
        verdict = outcome.verdict
        if verdict in ("retry", "dead", "cancelled"):
            self.attempts.append(Kept(job.id, job.attempt, verdict, job.worker))
        if job.id in self.cancellations and verdict in ("retry", "snooze", "release"):
            verdict = "cancelled"
        elif verdict == "retry" and job.attempt >= job.max_attempts:
            verdict = "dead"
        if verdict == "release":
            self._release(job)
        elif verdict in ("retry", "snooze"):
            due = self.now + (outcome.delay or 0)
            attempt = job.attempt - (verdict == "snooze")
            change = {"state": "retryable", "position": None, "worker": None, "losses": 0}
            self._put(job, run_at=due, attempt=attempt, error=outcome.error or job.error, **change)
        else:
            self._finish(job, verdict, outcome.error or job.error)

    def _finish(self, job: Job, state: str, error: str | None) -> None:
        self._put(job, state=state, error=None if state == "completed" else error)
        self.cancellations.pop(job.id, None)

    def _release(self, job: Job) -> None:
        if job.id in self.cancellations:
            self._finish(job, "cancelled", job.error)
        else:
            self._put(job, state="ready", attempt=job.attempt - 1, worker=None)

    def complete(self, job_id: int, lease: int) -> bool:
        job = self.owned(job_id, lease)
        if job is not None:
            self._finish(job, "completed", None)
        return job is not None

    def record(self, job_id: int, lease: int, name: str) -> bool:
        if self.owned(job_id, lease) is None:
            return False
        self.steps.add((job_id, name))
        return True

    def release_claim(self, worker: int, lease: int) -> int:
        return self._all([job for job in self.running(worker) if job.lease == lease], self._release)

    def reconcile(self, worker: int, held: Collection[Pair]) -> tuple[set[Pair], set[Pair]]:
        """(shown and not running, running and not shown)"""
        running = {(job.id, job.lease or 0) for job in self.running(worker)}
        return set(held) - running, running - set(held)

    @staticmethod
    def _all(jobs: Sequence[Job], change: Callable[[Job], None]) -> int:
        for job in jobs:
            change(job)
        return len(jobs)

    # -- liveness ----------------------------------------------------------------------------------------------------

    def register(self, worker: int, lost_after: int) -> int:
        self.workers[worker] = Worker(self.now, lost_after)
        return worker

    def beat(self, worker: int, state: str, queues: Sequence[str], duty_for: int, *, sweep: bool, asleep: bool) -> Beat:
        known = worker in self.workers
        leader, rescued = False, []
        if known:
            self.workers[worker] = replace(self.workers[worker], beat_at=self.now, state=state)
            leader = state == "running" and self._takes_the_lead(worker, duty_for)
        if leader:
            rescued = self.rescue(sweep)
        due = [job.run_at or 0 for job in self.in_state(*WAITING)]
        ready = [job for job in self.in_state("ready") if job.queue in queues]
        levels = [min(job.losses, 2) for job in ready]
        waiting = [name for name in queues if asleep and any(job.queue == name and job.losses == 0 for job in ready)]
        cancelled = sorted(job for job, owner in self.cancellations.items() if owner == worker)
        due_in = min(due) - self.now if due else None
        return Beat(known, leader, due_in, waiting, max(levels, default=0), cancelled, rescued)

    def vouch(self, workers: Iterable[int]) -> list[int]:
        known = sorted(set(workers) & set(self.workers))
        for worker in known:
            self.workers[worker] = replace(self.workers[worker], beat_at=self.now)
        return known

    def _takes_the_lead(self, worker: int, duty_for: int) -> bool:
        free = self.leads_until is None or self.leads_until < self.now or self.leader not in self.workers
        if self.leader == worker or free:
            self.leader, self.leads_until = worker, self.now + duty_for
            return True
        return False

    def rescue(self, sweep: bool) -> list[tuple[int, int]]:
        """(worker, jobs) of each that was lost."""
        lost = [
            (worker, self._lose(worker, None))
            for worker, row in sorted(self.workers.items())
            if row.beat_at + row.lost_after < self.now
        ]
        for worker, _ in lost:
            del self.workers[worker]
        if sweep:
            unknown = {job.worker or 0 for job in self.in_state("running")} - set(self.workers)
            lost += [(worker, self._lose(worker, None)) for worker in sorted(unknown)]
        return lost

    def report_lost(self, worker: int, started: Collection[int] | None) -> int:
        jobs = self._lose(worker, started)
        self._forget(worker)
        return jobs

    def leave(self, worker: int) -> int:
        self._forget(worker)
        return self._all(self.running(worker), self._release)

    def _forget(self, worker: int) -> None:
        self.workers.pop(worker, None)
        if self.leader == worker:
            self.leader = self.leads_until = None

    def _lose(self, worker: int, started: Collection[int] | None) -> int:
        jobs = self.running(worker)
        for job in jobs:
            if started is not None and job.id not in started:
                self._release(job)
                continue
            self.attempts.append(Kept(job.id, job.attempt, "lost", worker))
            if job.id in self.cancellations:
                self._finish(job, "cancelled", LOST)
            elif job.losses >= 2 or (started is not None and job.attempt >= job.max_attempts):
                self._finish(job, "dead", LOST)
            else:
                change = {"state": "ready", "position": FRESH, "lease": None, "worker": None, "error": LOST}
                self._put(job, attempt=job.attempt - (started is None), losses=job.losses + 1, **change)
        return len(jobs)

    # -- promote -----------------------------------------------------------------------------------------------------

    def due(self) -> list[Job]:
        """In the order in which they become ready."""
        found = [job for job in self.in_state(*WAITING) if (job.run_at or 0) <= self.now]
        return sorted(found, key=lambda job: (job.run_at or 0, job.id))

    def promote(self, moved: Collection[int]) -> None:
        """Which of several that are due at the same time come into a batch that is too small is the server's choice."""
        for job_id in moved:
            self._put(self.jobs[job_id], state="ready", position=FRESH)

    # -- desk --------------------------------------------------------------------------------------------------------

    def retry(self, job_id: int) -> tuple[bool, str | None]:
        job = self.jobs.get(job_id)
        if job is None or job.state in ("ready", "running", "completed"):
            return False, job.state if job else None
        if job.state in FINAL and self.holder(job.unique) is not None:
            return False, "taken"
        left = max(job.max_attempts - job.attempt, 1)
        most = job.attempt + left if job.state in FINAL else job.max_attempts
        change = {"state": "ready", "position": FRESH, "worker": None, "losses": 0}
        self._put(job, run_at=self.now, max_attempts=most, **change)
        return True, job.state

    def cancel(self, job_id: int) -> tuple[bool, str | None]:
        job = self.jobs.get(job_id)
        if job is None or job.state in FINAL:
            return job is not None and job.state == "cancelled", job.state if job else None
        if job.state == "running":
            self.cancellations[job_id] = job.worker or 0
        else:
            self._put(job, state="cancelled")
        return True, job.state

    def delete(self, job_id: int) -> tuple[bool, str | None]:
        job = self.jobs.get(job_id)
        if job is None or job.state == "running":
            return False, job.state if job else None
        del self.jobs[job_id]
        self.attempts = [kept for kept in self.attempts if kept.job != job_id]
        self.steps = {step for step in self.steps if step[0] != job_id}
        return True, job.state

    def pause(self, queue: str) -> None:
        self.paused.add(queue)

    def resume(self, queue: str) -> None:
        self.paused.discard(queue)


def _by_rank(job: Job) -> tuple[int, int]:
    return -job.priority, job.position or 0


def _lane(line: Iterable[Job], priority: int, at: int) -> list[Job]:
    found = [job for job in line if job.priority == priority and (job.position or 0) >= at]
    return sorted(found, key=lambda job: job.position or 0)
