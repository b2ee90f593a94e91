"""The rules of producers and workers: enqueue, claim, settle."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize

from tests.model.actions import FATE, LOST_AFTER, NEW, PICK, ROOMS, VERDICT, action, some_caller, some_held
from tests.model.caller import Caller, Compared, Fate
from tests.model.reference import Tables
from tests.model.values import Job, NewJob, Outcome, Pair


class ProducerRules(Compared):
    @initialize(new=st.lists(NEW, min_size=2, max_size=6))
    def begin(self, new: list[NewJob]) -> None:
        for _ in range(2):
            self.register()
        self.enqueue(new, Fate.ANSWERED)

    @action(3, when=lambda self: len(self.tables.jobs) < 20, new=st.lists(NEW, min_size=1, max_size=4), fate=FATE)
    def enqueue(self, new: list[NewJob], fate: Fate) -> None:
        first = max(self.numbers.values(), default=0) + 1

        def predict(tables: Tables, ids: list[int]) -> list[int]:
            before = tables.copy()
            answers, written = tables.enqueue(new, ids)
            if fate is not Fate.UNDONE:
                self.expected |= set(written)
                self.numbers.update({job_id: first + nth for job_id, nth in written.items()})
            for job_id in set(answers) & before.jobs.keys():
                self.saw("enqueue replaces" if job_id in written else "enqueue keeps")
            return answers

        self.do("enqueue", fate, lambda: self.real.enqueue(new, first), predict)
        self.saw("enqueue in bulk" if len(new) > 1 else "enqueue one")

    def register(self) -> None:
        self.callers.append(Caller(self.new_worker()))

    def new_worker(self) -> int:
        _, worker = self.do(
            "register",
            Fate.ANSWERED,
            lambda: self.real.register(LOST_AFTER),
            lambda t, found: t.register(found, LOST_AFTER),
        )
        return worker


class ClaimRules(ProducerRules):
    @action(when=lambda self: len(self.callers) < 4)
    def start_worker(self) -> None:
        self.register()

    @action(3, when=some_caller, pick=PICK, rooms=ROOMS, cursor=st.booleans(), fate=FATE)
    def claim(self, pick: int, rooms: dict[str, int], cursor: bool, fate: Fate) -> None:
        caller, lease = self.one(self.callers, pick), self.fresh_lease()
        lanes = caller.lanes() if cursor and caller.cursor else None
        self._give_back(caller)
        heard, rows = self.do(
            "claim" if lanes is None else "claim with cursor",
            fate,
            lambda: self.real.claim(caller.worker, lease, rooms, lanes),
            lambda tables, _: self._rows(tables.claim(caller.worker, lease, rooms, lanes)),
        )
        self._took(caller, lease, heard, rows)
        if any(room and queue in self.tables.paused for queue, room in rooms.items()):
            self.saw("claim of a paused queue")

    @action(2, when=some_caller, pick=PICK, rooms=ROOMS, alone=st.booleans(), fate=FATE)
    def claim_suspects(self, pick: int, rooms: dict[str, int], alone: bool, fate: Fate) -> None:
        caller, lease = self.one(self.callers, pick), self.fresh_lease()
        self._give_back(caller)
        heard, rows = self.do(
            "claim of suspects, alone" if alone else "claim of suspects",
            fate,
            lambda: self.real.claim_suspects(caller.worker, lease, rooms, alone),
            lambda tables, _: self._rows(tables.claim_suspects(caller.worker, lease, rooms, alone)),
        )
        self._took(caller, lease, heard, rows)

    @action(4, when=lambda self: len(self.callers) > 1, pick=PICK, rooms=ROOMS, kept=st.booleans())
    def claim_at_once(self, pick: int, rooms: dict[str, int], kept: bool) -> None:
        """Two claims, of which one has not committed when the other looks, and then does or does not."""
        one, two = self.one(self.callers, pick), self.one(self.callers, pick + 1)
        first, second = self.fresh_lease(), self.fresh_lease()
        after = self.tables.copy()
        self.other.set_clock(after.now)
        with self.other.connection.transaction(force_rollback=not kept):
            rows = self.other.claim(one.worker, first, rooms, None)
            taken = (after if kept else self.tables.copy()).claim(one.worker, first, rooms, None)
            assert rows == self._rows(taken)
            others = self.real.claim(two.worker, second, rooms, None)
            locked = {job.id for job in taken}
            assert others == self._rows(after.claim(two.worker, second, rooms, None, locked))
        self.tables = after
        self.agree()
        if rows and others:
            self.saw("two claims at once, both kept" if kept else "two claims at once, one undone")
        self._took(one, first, kept, rows)
        self._took(two, second, True, others)

    @action(2, when=lambda self: self.callers + self.dead, pick=PICK, rooms=ROOMS)
    def claim_that_crawls(self, pick: int, rooms: dict[str, int]) -> None:
        """It arrives when its worker has given up on it, and has given back whatever it might have taken, or is dead."""
        worker, lease = self.one(self.callers + self.dead, pick).worker, self.fresh_lease()
        self._release_claim(worker, lease)
        self.do(
            "claim",
            Fate.UNHEARD,
            lambda: self.real.claim(worker, lease, rooms, None),
            lambda t, _: self._rows(t.claim(worker, lease, rooms, None)),
        )

    def _rows(self, jobs: list[Job]) -> list[Any]:
        """As the server answers them."""
        return [
            (j.id, j.lease, j.queue, j.priority, j.position, j.attempt, j.max_attempts, j.losses, self.numbers[j.id])
            for j in jobs
        ]

    def _took(self, caller: Caller, lease: int, heard: bool, rows: list[Any]) -> None:
        if not heard:
            caller.unanswered.append((caller.worker, lease))
            return
        for row in rows:
            caller.held.add((row.id, lease))
            caller.cursor[row.queue, row.priority] = row.position

    def _give_back(self, caller: Caller) -> None:
        while caller.unanswered:
            self._release_claim(*caller.unanswered.pop(0))

    def _release_claim(self, worker: int, lease: int) -> None:
        self.do(
            "release_claim",
            Fate.ANSWERED,
            lambda: self.real.release_claim(worker, lease),
            lambda t, _: t.release_claim(worker, lease),
        )

    @action(when=lambda self: any(caller.unanswered for caller in self.callers), pick=PICK)
    def give_back(self, pick: int) -> None:
        self._give_back(self.one([caller for caller in self.callers if caller.unanswered], pick))


class SettleRules(ClaimRules):
    @action(5, when=some_held, pick=PICK, verdicts=st.lists(VERDICT, min_size=1, max_size=3), fate=FATE)
    def settle(self, pick: int, verdicts: list[tuple[str, int | None]], fate: Fate) -> None:
        """What ended just now, and whatever was not acknowledged before."""
        self._settle_some(self.one([caller for caller in self.callers if caller.held], pick), verdicts, fate)

    def _settle_some(self, caller: Caller, verdicts: list[Any], fate: Fate) -> None:
        for pair, (verdict, delay) in zip(sorted(caller.held), verdicts, strict=False):
            caller.held.discard(pair)
            caller.outbox[pair] = Outcome(*pair, verdict, delay)
        self._send(caller, fate)

    @action(
        5,
        when=some_caller,
        pick=PICK,
        rooms=ROOMS,
        cursor=st.booleans(),
        verdicts=st.lists(VERDICT, max_size=4),
        fate=FATE,
    )
    def work(self, pick: int, rooms: dict[str, int], cursor: bool, verdicts: list[Any], fate: Fate) -> None:
        """What happens most of the time. In one step, so that the others find something to disturb."""
        self.claim(pick, rooms, cursor, Fate.ANSWERED)
        if self.one(self.callers, pick).held:
            self._settle_some(self.one(self.callers, pick), verdicts, fate)

    @action(2, when=lambda self: any(caller.outbox for caller in self.callers), pick=PICK, fate=FATE)
    def settle_again(self, pick: int, fate: Fate) -> None:
        self._send(self.one([caller for caller in self.callers if caller.outbox], pick), fate)

    def _send(self, caller: Caller, fate: Fate) -> None:
        heard, refused = self._settle(list(caller.outbox.values()), fate)
        if heard:
            caller.settled.update({pair: found for pair, found in caller.outbox.items() if pair not in refused})
            caller.outbox.clear()

    @action(
        2,
        when=lambda self: any(caller.outbox or caller.settled for caller in self.callers + self.dead),
        pick=PICK,
        size=st.integers(1, 3),
    )
    def old_message(self, pick: int, size: int) -> None:
        """A settle that crawled through the network, of a process that lives or not: nobody hears the answer."""
        found = [caller for caller in self.callers + self.dead if caller.outbox or caller.settled]
        caller = self.one(found, pick)
        self._settle(list({**caller.settled, **caller.outbox}.values())[-size:], Fate.UNHEARD)

    def _settle(self, outcomes: list[Outcome], fate: Fate) -> tuple[bool, set[Pair]]:
        before = self.tables.jobs
        heard, refused = self.do("settle", fate, lambda: self.real.settle(outcomes), lambda t, _: t.settle(outcomes))
        for outcome in outcomes:
            job = before.get(outcome.id)
            ours = job is not None and job.lease == outcome.lease
            assert (outcome.pair not in refused) == ours, f"{outcome} under a stale lease: {job}"
            if ours and job and job.state == "running" and fate is not Fate.UNDONE:
                self.ended[outcome.pair] += 1
                assert self.ended[outcome.pair] == 1, f"{outcome}: accepted twice"
            elif ours:
                self.saw("a settle repeated")
        if refused:
            self.saw("a settle refused")
        if {job_id for job_id, _ in refused} & {found.id for found in outcomes if found.pair not in refused}:
            self.saw("one job in a batch under a stale lease and its own")
        return heard, refused

    @action(4, when=some_held, pick=PICK, fate=FATE)
    def complete(self, pick: int, fate: Fate) -> None:
        """In a transaction of the handler's, which is committed, rolled back, or committed and not heard of."""
        caller = self.one([caller for caller in self.callers if caller.held], pick)
        pair = self.one(sorted(caller.held), pick)
        heard, owned = self.do("complete", fate, lambda: self.real.complete(*pair), lambda t, _: t.complete(*pair))
        self.saw("complete refused") if not owned else None
        if fate is not Fate.UNDONE:
            caller.held.discard(pair)
        if owned and fate is not Fate.UNDONE:
            self.ended[pair] += 1
            (caller.settled if heard else caller.outbox)[pair] = Outcome(*pair, "completed")

    @action(4, when=some_held, pick=PICK, fate=FATE)
    def record(self, pick: int, fate: Fate) -> None:
        self.steps += 1
        caller = self.one([caller for caller in self.callers if caller.held], pick)
        step = (*self.one(sorted(caller.held), pick), f"step {self.steps}")
        _, owned = self.do("record", fate, lambda: self.real.record(*step), lambda t, _: t.record(*step))
        self.saw("record refused") if not owned else None
