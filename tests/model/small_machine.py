"""Two workers, a job or two, and a world that cuts connections, delays requests, kills, stops the clock and fails over.

A worker does not run in step with anybody: it may take its next step at any time or never, so that a process that is
suspended, a handler that takes an hour and a request that crawls are all just other orders of the same steps. What the
world may do is counted (`World`), because that is what makes the number of states finite.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.model import small_database as db
from tests.model.explorer import Step
from tests.model.small_database import COMPLETED, RELEASE, RETRY, RUNNING, Database, Outcome, Protections, Row
from tests.model.small_state import (
    GONE,
    KILLED,
    STOPPING,
    UP,
    Attempt,
    ClaimRequest,
    Process,
    Request,
    RescueRequest,
    Scope,
    SettleRequest,
    State,
    World,
    first_free,
    rows,
    runs,
    workers,
)


class Protocol:
    """The machine that the explorer goes through."""

    def __init__(self, scope: Scope, protections: Protections = Protections()) -> None:
        self._scope, self._protections = scope, protections

    def start(self) -> State:
        database = Database(tuple(Row(job, db.READY) for job in range(1, self._scope.jobs + 1)))
        if not self._scope.started:
            return State(database, (Process(0, GONE),) * self._scope.workers, self._scope.world)
        numbers = range(1, self._scope.workers + 1)
        for worker in numbers:
            database = db.register(database, worker)
        return State(database, tuple(Process(worker) for worker in numbers), self._scope.world)

    def steps(self, state: State) -> Iterator[Step[State]]:
        for process in state.processes:
            if process.life in (UP, STOPPING):
                yield from self._claim(state, process)
                yield from self._run(state, process)
                yield from self._settle(state, process)
                yield from self._beat(state, process)
                yield from self._reconcile(state, process)
                yield from self._rescue(state, process)
                yield from self._stop(state, process)
            yield from self._die_and_start(state, process)
        yield from self._arrive(state)
        yield from self._time_and_failover(state)

    def wrong(self, state: State) -> str:
        return state.wrong or db.problem(state.database, self._scope.jobs, self._scope.limits)

    def done(self, state: State) -> bool:
        return all(row.stage in (db.DONE, db.DEAD) for row in state.database.rows)

    def show(self, state: State) -> str:
        rows = [
            f"job {row.job} {row.stage}" + f" ({row.attempt} begun, lease {row.lease or '-'} of {row.worker or '-'})"
            for row in state.database.rows
        ]
        silent = [f"{found.worker}{' silent' * found.silent}" for found in state.database.workers]
        return f"{'; '.join(rows)} | workers {', '.join(silent) or 'none'}"

    # -- a worker's work ---------------------------------------------------------------------------------------------

    def _claim(self, state: State, process: Process) -> Iterator[Step[State]]:
        me = f"worker {process.worker}"
        if process.unanswered:
            database = db.release(state.database, *process.unanswered[0])
            after = process._replace(unanswered=process.unanswered[1:])
            yield self._step(f"{me} gives back the claim it heard nothing of", state, process, after, database)
            return
        room = self._scope.slots - len(process.held)
        if process.life != UP or room <= 0:
            return
        before, lease, run = self._draw_lease(state)
        database, taken = db.claim(before, process.worker, lease, run, room)
        cut = process._replace(unanswered=((process.worker, lease),))
        if taken:
            held = tuple(Attempt(row.job, row.lease, row.run) for row in taken)
            after = process._replace(held=tuple(sorted(process.held + held)))
            step = self._step(f"{me} claims", state, process, after, database, wrong=self._repeated(state, taken))
            yield step
            yield from self._cut(f"{me} claims, the answer is lost", state, process, cut, database)
        late = ClaimRequest(process.worker, lease, run, room)
        yield from self._cut(f"{me} claims, the request is delayed", state, process, cut, before, late)

    def _run(self, state: State, process: Process) -> Iterator[Step[State]]:
        for attempt in process.held:
            held = tuple(kept for kept in process.held if kept is not attempt)
            for verdict in (COMPLETED, RETRY) if self._scope.handlers_fail else (COMPLETED,):
                outbox = tuple(sorted([*process.outbox, Outcome(*attempt, verdict)]))
                name = f"worker {process.worker} ends job {attempt.job}: {verdict}"
                yield self._step(name, state, process, process._replace(held=held, outbox=outbox))

    def _settle(self, state: State, process: Process) -> Iterator[Step[State]]:
        if not process.outbox:
            return
        name = f"worker {process.worker} settles"
        found = db.settle(state.database, process.outbox, self._protections, self._scope.limits)
        heard = process._replace(outbox=(), settled=self._remembered(process, found.refused))
        wrong = found.wrong or _in_vain(found, process.outbox)
        answer = "" if not found.refused else " and is refused"
        yield self._step(name + answer, state, process, heard, found.database, wrong=wrong)
        if found.database != state.database:
            lost = self._cut(f"{name}, the answer is lost", state, process, process, found.database, wrong=found.wrong)
            yield from lost
        late = SettleRequest(process.outbox)
        yield from self._cut(f"{name}, the request is delayed", state, process, process, state.database, late)

    def _remembered(self, process: Process, refused: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
        if not self._scope.world.failovers:
            return ()
        # A release need not be remembered: it is what becomes of an attempt that nobody remembers.
        fresh = [found for found in process.outbox if found not in refused and found.verdict != RELEASE]
        latest = {outcome.job: outcome for outcome in (*process.settled, *fresh)}
        return tuple(sorted(latest.values()))

    # -- liveness ----------------------------------------------------------------------------------------------------

    def _beat(self, state: State, process: Process) -> Iterator[Step[State]]:
        found = state.database.registration(process.worker)
        name = f"worker {process.worker} beats"
        if found is None:
            # What it holds goes on: a handler need not obey when it is told to stop.
            database, worker = self._register(state)
            after = process._replace(worker=worker)
            yield self._step(f"{name}, is not known, registers as {worker}", state, process, after, database)
        elif found.silent:
            yield self._step(name, state, process, process, db.beat(state.database, process.worker))

    def _rescue(self, state: State, process: Process) -> Iterator[Step[State]]:
        for found in state.database.workers:
            if found.silent and found.worker != process.worker:
                request = RescueRequest(found.worker, state.database.running(found.worker))
                name = f"worker {process.worker} rescues the jobs of worker {found.worker}"
                yield self._step(name, state, process, process, self._rescued(state.database, request))
                yield from self._cut(f"{name}, and is slow", state, process, process, state.database, request)
        known = {found.worker for found in state.database.workers}
        rows = [row for row in state.database.rows if row.stage == RUNNING and row.worker not in known]
        if rows and self._protections.unregistered_swept:
            database = db.lose(state.database, rows, None, self._protections, self._scope.limits)
            yield self._step("jobs of unregistered workers are rescued", state, process, process, database)

    def _rescued(self, database: Database, request: RescueRequest) -> Database:
        database = db.lose(database, request.seen, None, self._protections, self._scope.limits)
        return db.forget(database, request.worker)

    def _reconcile(self, state: State, process: Process) -> Iterator[Step[State]]:
        """See src/skiplock/work/reconcile.py: what differs is dropped, settled again, or given back."""
        if process.unanswered or not self._protections.reconciled:
            return
        running = {(row.job, row.lease): row for row in state.database.running(process.worker)}
        held = tuple(attempt for attempt in process.held if attempt[:2] in running)
        shown = {attempt[:2] for attempt in process.held} | {outcome[:2] for outcome in process.outbox}
        unknown = [row for pair, row in running.items() if pair not in shown]
        if held == process.held and not unknown:
            return
        remembered = {outcome[:2]: outcome for outcome in process.settled if self._protections.outcomes_remembered}
        again = [remembered.get(_pair(row)) or Outcome(*_pair(row), row.run, RELEASE) for row in unknown]
        after = process._replace(held=held, outbox=tuple(sorted([*process.outbox, *again])))
        yield self._step(f"worker {process.worker} reconciles", state, process, after)

    # -- beginnings and ends -----------------------------------------------------------------------------------------

    def _stop(self, state: State, process: Process) -> Iterator[Step[State]]:
        world = state.world
        if process.life == UP and world.stops:
            outbox = tuple(sorted([*process.outbox, *[Outcome(*attempt, RELEASE) for attempt in process.held]]))
            after = process._replace(life=STOPPING, held=(), outbox=outbox)
            name = f"worker {process.worker} is told to stop"
            yield self._step(name, state, process, after, world=world._replace(stops=world.stops - 1), fault=True)
        if process.life == STOPPING and not process.outbox and not process.unanswered:
            database = db.forget(db.release(state.database, process.worker), process.worker)
            yield self._step(f"worker {process.worker} leaves", state, process, Process(0, GONE), database)

    def _die_and_start(self, state: State, process: Process) -> Iterator[Step[State]]:
        world = state.world
        if process.life in (UP, STOPPING) and world.kills:
            name = f"worker {process.worker} is killed"
            after = process._replace(life=KILLED)
            yield self._step(name, state, process, after, world=world._replace(kills=world.kills - 1), fault=True)
        if process.life == KILLED:
            rows = state.database.running(process.worker)
            started = {held.job for held in process.held} | {outcome.job for outcome in process.outbox}
            database = db.lose(state.database, rows, started, self._protections, self._scope.limits)
            name = f"its supervisor reports worker {process.worker} lost"
            yield self._step(name, state, process, Process(0, GONE), db.forget(database, process.worker))
        if process.life in (KILLED, GONE):
            database, worker = self._register(state)
            yield self._step(f"a new process starts as worker {worker}", state, process, Process(worker), database)

    # -- the world ---------------------------------------------------------------------------------------------------

    def _arrive(self, state: State) -> Iterator[Step[State]]:
        for request in set(state.requests):
            requests = list(state.requests)
            requests.remove(request)
            database, wrong = state.database, ""
            match request:
                case ClaimRequest(worker, lease, run, room):
                    database, _ = db.claim(database, worker, lease, run, room)
                case SettleRequest(outcomes):
                    found = db.settle(database, outcomes, self._protections, self._scope.limits)
                    database, wrong = found.database, found.wrong
                case RescueRequest():
                    database = self._rescued(database, request)
            later = state._replace(requests=tuple(requests))
            name = f"a late {type(request).__name__} arrives"
            yield self._step(name, later, None, None, database, wrong=wrong, fault=True)

    def _time_and_failover(self, state: State) -> Iterator[Step[State]]:
        living = {process.worker for process in state.processes if process.life in (UP, STOPPING)}
        silent = db.silent(state.database, but=living)
        if silent != state.database:
            yield self._step("time passes, the living beat", state, None, None, silent)
        silent = db.silent(state.database)
        if state.world.pauses and silent != state.database:
            world = state.world._replace(pauses=state.world.pauses - 1)
            yield self._step("time passes, nobody beats", state, None, None, silent, world=world, fault=True)
        for lost, database in enumerate(reversed(state.before), 1):
            world = state.world._replace(failovers=state.world.failovers - 1)
            to = state._replace(database=database, before=(), world=world)
            yield Step(f"a failover undoes {lost} transactions", to, fault=True)

    # -- steps -------------------------------------------------------------------------------------------------------

    def _step(
        self,
        name: str,
        state: State,
        process: Process | None,
        after: Process | None,
        database: Database | None = None,
        *,
        world: World | None = None,
        request: Request | None = None,
        wrong: str = "",
        fault: bool = False,
    ) -> Step[State]:
        database = state.database if database is None else database
        world = world or state.world
        before = state.before
        if not world.failovers:
            before = ()
        elif database != state.database:
            before = (*before, state.database)[-self._scope.undone :]
        processes = state.processes
        if process is not None and after is not None and after is not process:
            rest = list(processes)
            rest.remove(process)
            processes = tuple(sorted([*rest, after]))
        requests = state.requests if request is None else tuple(sorted([*state.requests, request], key=repr))
        return Step(name, State(database, processes, world, requests, before, wrong), fault)

    def _cut(
        self,
        name: str,
        state: State,
        process: Process,
        after: Process,
        database: Database,
        request: Request | None = None,
        wrong: str = "",
    ) -> Iterator[Step[State]]:
        cuts = state.world.cuts
        if cuts:
            world = state.world._replace(cuts=cuts - 1)
            yield self._step(
                name, state, process, after, database, world=world, request=request, wrong=wrong, fault=True
            )

    def _draw_lease(self, state: State) -> tuple[Database, int, int]:
        """The database after that, a lease, and which attempt it is in truth. What nobody remembers is free to be drawn."""
        run = first_free({row.run for row in rows(state)} | runs(state))
        if self._protections.random_leases:
            return state.database, run, run
        drawn = state.database.leases_drawn + 1
        return state.database._replace(leases_drawn=drawn), drawn, run

    def _register(self, state: State) -> tuple[Database, int]:
        if self._protections.unique_workers:
            worker = first_free({row.worker for row in rows(state)} | workers(state))
            return db.register(state.database, worker), worker
        worker = state.database.workers_drawn + 1
        return db.register(state.database, worker)._replace(workers_drawn=worker), worker

    def _repeated(self, state: State, taken: tuple[Row, ...]) -> str:
        """Where nothing but the latest transaction can be undone, no job runs again whose end was acknowledged."""
        calm = self._scope.undone == 1 and not self._scope.world.kills and not self._scope.world.pauses
        known = {
            outcome.job for process in state.processes for outcome in process.settled if outcome.verdict == COMPLETED
        }
        return "a job runs again whose end was acknowledged" if calm and known & {row.job for row in taken} else ""


def _pair(row: Row) -> tuple[int, int]:
    return row.job, row.lease


def _in_vain(found: db.Settled, outcomes: tuple[Outcome, ...]) -> str:
    """An acknowledged outcome is the one that ended the attempt: this settle's or an earlier one's."""
    ended = {(row.job, row.lease): row.ended_by for row in found.database.rows}
    for outcome in outcomes:
        if outcome not in found.refused and ended.get((outcome.job, outcome.lease)) != outcome.verdict:
            return "a settle was acknowledged and had no effect"
    return ""
