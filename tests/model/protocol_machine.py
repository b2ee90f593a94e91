"""Everything that producers, workers, supervisors and people may do, in any order: the rules that Hypothesis draws from.

Each class of rules is made on top of another; `ProtocolMachine` is the last. A new feature adds one, or words to those that
are here and in work_rules.
"""

from __future__ import annotations

import inspect
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.model.actions import DUTY_FOR, FATE, LOST_AFTER, PICK, QUEUE, ROOMS, VERDICT, action, some_caller
from tests.model.caller import Caller, Fate
from tests.model.reality import NAMES
from tests.model.reference import Tables
from tests.model.values import Job, Outcome
from tests.model.work_rules import SettleRules


class LivenessRules(SettleRules):
    @action(seconds=st.sampled_from([1, 5, 10, 30, 100]))
    def time_passes(self, seconds: int) -> None:
        self.tables.now += seconds
        self.real.set_clock(self.tables.now)

    @action(
        5,
        when=some_caller,
        pick=PICK,
        state=st.sampled_from(["running"] * 4 + ["stopping"]),
        sweep=st.booleans(),
        fate=FATE,
    )
    def beat(self, pick: int, state: str, sweep: bool, fate: Fate) -> None:
        caller, asleep = self.one(self.callers, pick), bool(pick % 2)
        heard, found = self.do(
            "beat",
            fate,
            lambda: self.real.beat(caller.worker, state, NAMES, DUTY_FOR, sweep=sweep, asleep=asleep),
            lambda t, _: t.beat(caller.worker, state, NAMES, DUTY_FOR, sweep=sweep, asleep=asleep),
        )
        if heard and not found.known:
            # What it held goes on, and its outcomes are sent: a handler need not obey.
            self.saw("a lost worker hears of it and registers anew")
            caller.worker = self.new_worker()
        for pair in sorted(caller.held) if heard else []:
            if pair[0] in found.cancelled:
                self.saw("a worker hears of a cancel request")
                caller.held.discard(pair)
                caller.outbox[pair] = Outcome(*pair, "cancelled" if pick % 3 else "release")

    @action(3, when=some_caller, pick=PICK)
    def reconcile(self, pick: int) -> None:
        caller = self.one(self.callers, pick)
        self._give_back(caller)
        shown = caller.held | set(caller.outbox)
        _, found = self.do(
            "reconcile",
            Fate.ANSWERED,
            lambda: self.real.reconcile(caller.worker, shown),
            lambda t, _: t.reconcile(caller.worker, shown),
        )
        caller.held -= found[0]
        for pair in found[1]:
            self.saw("reconcile finds what nobody holds")
            caller.outbox[pair] = caller.settled.get(pair) or Outcome(*pair, "release")
        if found[0]:
            self.saw("reconcile finds what is held in vain")

    @action(when=some_caller, picks=st.lists(PICK, max_size=3))
    def vouch(self, picks: list[int]) -> None:
        workers = [self.one(self.callers + self.dead, pick).worker for pick in picks]
        self.do("vouch", Fate.ANSWERED, lambda: self.real.vouch(workers), lambda t, _: t.vouch(workers))

    @action(when=some_caller, pick=PICK)
    def kill(self, pick: int) -> None:
        self._kill(self.one(self.callers, pick), pick)

    def _kill(self, caller: Caller, pick: int) -> None:
        self.callers.remove(caller)
        begun = sorted(caller.held)[: pick % 4]
        caller.started = {pair[0] for pair in [*begun, *caller.outbox]}
        self.dead = [*self.dead, caller][-4:]

    @action(2, when=lambda self: self.dead, pick=PICK, known=st.booleans(), fate=FATE)
    def report_lost(self, pick: int, known: bool, fate: Fate) -> None:
        """By its supervisor; once, or again."""
        caller = self.one(self.dead, pick)
        started = caller.started if known else None
        self.do(
            "report_lost",
            fate,
            lambda: self.real.report_lost(caller.worker, started),
            lambda t, _: t.report_lost(caller.worker, started),
        )

    @action(2, sweep=st.booleans(), fate=FATE)
    def rescue(self, sweep: bool, fate: Fate) -> None:
        self.do("rescue", fate, lambda: self.real.rescue(sweep), lambda t, _: t.rescue(sweep))

    @action(when=some_caller, pick=PICK)
    def hosts_die(self, pick: int) -> None:
        """All of them at once, and nobody is left who knows what had begun. Another one takes over."""
        for caller in list(self.callers):
            self._kill(caller, pick)
        self.time_passes(LOST_AFTER + 1)
        self.register()
        self.rescue(True, Fate.ANSWERED)

    @action(times=st.integers(1, 4), begun=st.integers(0, 3), known=st.booleans(), care=st.booleans())
    def crash_again_and_again(self, times: int, begun: int, known: bool, care: bool) -> None:
        """What a job does that kills whoever runs it: fresh workers claim, die, and are reported or found silent."""
        for _ in range(times):
            self.register()
            if care:
                self.claim_suspects(-1, {"default": 1, "mail": 1}, self._worst() > 1, Fate.ANSWERED)
            else:
                self.claim(-1, {"default": 2, "mail": 2}, False, Fate.ANSWERED)
            self._kill(self.callers[-1], begun)
            if known:
                self.report_lost(-1, True, Fate.ANSWERED)
            else:
                self.time_passes(LOST_AFTER + 1)
                self.rescue(True, Fate.ANSWERED)

    @action(
        3,
        when=lambda self: len(self.callers) > 1,
        pick=PICK,
        meanwhile=st.lists(VERDICT, max_size=3),
        verdicts=st.lists(VERDICT, min_size=1, max_size=3),
        fate=FATE,
    )
    def suspend(self, pick: int, meanwhile: list[Any], verdicts: list[Any], fate: Fate) -> None:
        """One worker stops for a while (SIGSTOP); others take its jobs; then it goes on as if nothing had been."""
        caller, other = self.one(self.callers, pick), self.one(self.callers, pick + 1)
        if not caller.held:
            self.claim(pick, {"default": 2, "mail": 2}, False, Fate.ANSWERED)
        self.time_passes(LOST_AFTER + 1)
        self.vouch([pick + 1])
        self.rescue(True, Fate.ANSWERED)
        self.claim_suspects(self.callers.index(other), {"default": 3, "mail": 3}, self._worst() > 1, Fate.ANSWERED)
        if other.held:
            self._settle_some(other, meanwhile, Fate.ANSWERED)
        if caller.held:
            self._settle_some(caller, verdicts, fate)

    def _worst(self) -> int:
        return max((job.losses for job in self.tables.in_state("ready")), default=0)

    @action(2, when=lambda self: any(not caller.outbox for caller in self.callers), pick=PICK, fate=FATE)
    def leave(self, pick: int, fate: Fate) -> None:
        self._leave(self.one([caller for caller in self.callers if not caller.outbox], pick), fate)

    def _leave(self, caller: Caller, fate: Fate) -> None:
        self._give_back(caller)
        self.do("leave", fate, lambda: self.real.leave(caller.worker), lambda t, _: t.leave(caller.worker))
        self.callers.remove(caller)


class DeskRules(LivenessRules):
    @action(3, batch=st.sampled_from([1, 2, 1000]), later=st.sampled_from([0, 0, 10, 60]), fate=FATE)
    def promote(self, batch: int, later: int, fate: Fate) -> None:
        self.time_passes(later)
        chosen: list[Job] = []

        def predict(tables: Tables, _: object) -> tuple[int, int | None]:
            due, waiting = tables.due(), sorted(job.run_at or 0 for job in tables.in_state("scheduled", "retryable"))
            size = min(batch, len(due))
            if fate is not Fate.UNDONE:
                moved = {job.id for job in self.real.read().in_state("ready")}
                chosen.extend(job for job in due if job.id in moved)
                assert [job.run_at for job in chosen] == waiting[:size], "not the earliest"
                tables.promote({job.id for job in chosen})
            return size, waiting[size] - tables.now if waiting[size:] else None

        self.do("promote", fate, lambda: self.real.promote(batch), predict)
        places = [self.tables.jobs[job.id].position or 0 for job in chosen]
        assert places == sorted(places), "what was due first stands first"

    @action(
        8,
        when=lambda self: self.tables.jobs,
        what=st.sampled_from(["cancel", "cancel", "retry", "delete"]),
        state=PICK,
        pick=PICK,
        fate=FATE,
    )
    def act(self, what: str, state: int, pick: int, fate: Fate) -> None:
        states = sorted({job.state for job in self.tables.jobs.values()})
        chosen = self.one([*states, *states, "none"], state)
        self._act(what, 999_999 if chosen == "none" else self.one(self.tables.in_state(chosen), pick).id, fate)

    def _act(self, what: str, job_id: int, fate: Fate) -> None:
        def predict(tables: Tables, _: object) -> tuple[bool, str | None]:
            answer: tuple[bool, str | None] = getattr(tables, what)(job_id)
            self.expected = set(self.expected if fate is Fate.UNDONE else tables.jobs)
            return answer

        _, (done, was) = self.do(what, fate, lambda: self.real.act(what, job_id), predict)
        self.saw(f"{what} of {was}, {'done' if done else 'refused'}")

    @action(4, when=lambda self: self.tables.in_state("running"), pick=PICK, fate=FATE)
    def cancel_what_runs(self, pick: int, fate: Fate) -> None:
        self._act("cancel", self.one(self.tables.in_state("running"), pick).id, fate)

    @action(4, when=some_caller, pick=PICK, rooms=ROOMS, end=st.sampled_from(["beat", "leave", "give back", "report"]))
    def cancel_just_before(self, pick: int, rooms: dict[str, int], end: str) -> None:
        """Whatever becomes of a job that is running, a cancel request comes first."""
        caller = self.one(self.callers, pick)
        self.claim(pick, rooms, False, Fate.UNHEARD if end == "give back" else Fate.ANSWERED)
        running = self.tables.running(caller.worker)
        if running:
            self._act("cancel", self.one(running, pick).id, Fate.ANSWERED)
        if end == "beat":
            self.beat(pick, "running", False, Fate.ANSWERED)
        elif end == "give back":
            self._give_back(caller)
        elif end == "report":
            self._kill(caller, pick)
            self.report_lost(-1, bool(pick % 2), Fate.ANSWERED)
        elif not caller.outbox:
            self._leave(caller, Fate.ANSWERED)

    @action()
    def nothing(self) -> None:
        """What a step becomes that a failure does not need, before it goes."""

    @action(3, queue=QUEUE, paused=st.sampled_from([True, False, False]), fate=FATE)
    def pause_or_resume(self, queue: str, paused: bool, fate: Fate) -> None:
        def predict(tables: Tables, _: object) -> None:
            tables.pause(queue) if paused else tables.resume(queue)

        self.do("pause" if paused else "resume", fate, lambda: self.real.set_paused(queue, paused), predict)


ACTIONS = {name: member for name, member in inspect.getmembers(DeskRules) if hasattr(member, "draws")}
STEPS = st.one_of(
    [
        st.tuples(st.just(name), st.fixed_dictionaries(member.draws))
        for name, member in sorted(ACTIONS.items(), key=lambda named: (len(named[1].draws), named[0] != "nothing"))
        for _ in range(member.weight)
    ]
)


class ProtocolMachine(DeskRules):
    """All of it."""

    @rule(step=STEPS)
    def step(self, step: tuple[str, dict[str, Any]]) -> None:
        name, drawn = step
        if ACTIONS[name].when(self):
            getattr(self, name)(**drawn)
