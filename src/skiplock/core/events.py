"""Named events. The rooms emit them; logs, metrics and traces only subscribe.

| event             | when                                              | fields                                               |
|-------------------|---------------------------------------------------|------------------------------------------------------|
| worker_started    | a worker process is registered                    | worker, name, queues, processes                      |
| worker_stopping   | it was told to stop                               | worker, reason, running, buffered                    |
| worker_stopped    | it has left                                       | worker, released                                     |
| worker_lost       | it learned that it was declared lost              | worker, running                                      |
| worker_rescued    | this worker rescued another one's jobs            | worker, name, silent_for, jobs                       |
| claimed           | a claim was answered, nothing of it has started   | jobs, queues                                         |
| attempt_started   | a handler is about to run                         | job, task, queue, attempt                            |
| attempt_ended     | an attempt ended                                  | job, task, queue, attempt, verdict, took, failure, delay |
| attempt_failed    | one ended other than completed (beside the above) | as attempt_ended                                     |
| job_dead          | its final failure                                 | job, task, queue, attempt, failure                   |
| settled           | the database has taken a batch of outcomes        | jobs                                                 |
| settle_refused    | results came too late, their lease was lost       | jobs                                                 |
| handler_stuck     | a handler runs on after its timeout or cancel     | job, task, why, seconds, stack                       |
| handler_unstuck   | such a handler ended after all                    | job, task, seconds                                   |
| loop_blocked      | a handler keeps the event loop from going round   | job, task, seconds, stack                            |
| loop_unblocked    | it goes round again                               | seconds                                              |
| claim_failed, settle_failed, beat_failed, listen_failed | a statement failed; it will be repeated | error, retry_in      |
| hook_failed       | a hook or subscriber raised                       | hook, error                                          |
| queue_not_served  | a task's queue is not among a worker's            | queue, tasks                                         |
| reconciled        | a failover had undone claims or settles; put right | lost, settled_again, released                       |
| promoted          | waiting jobs became ready                         | jobs                                                 |
| schedule_fired    | a schedule's fire became a job                    | schedule, scheduled_for, late, job                   |
| schedule_held     | one did not: `why` is skipped or waiting          | schedule, scheduled_for, late, why                   |
| schedule_failed   | a schedule cannot fire; tried again in a minute   | schedule, error                                      |
| tick_failed       | looking after the schedules failed; to be repeated | error, retry_in                                     |
| task_process_started | a child process for tasks with executor="process" | pid                                               |
| task_process_ended | one ended, was replaced or died                  | pid, jobs, reason                                    |
| worker_recycling  | a worn-out process claims no more                 | worker, reason, jobs, memory, age, running, then     |
| worker_vouched    | the supervisor beats for a process that is silent | pid, worker, silent_for, jobs                        |
| worker_heard      | such a process beats again by itself              | pid, worker, silent_for                              |
| child_started, child_restarted | the supervisor started a worker process | pid, instead_of (a worn-out one's pid)               |
| child_died        | one died                                          | pid, code, reason, restart_in, stack                 |
| child_retiring    | a worn-out one was told that its successor works  | pid, successor                                       |
| child_recycled    | it has ended                                      | pid                                                  |
| child_rescued     | a dead one's jobs were given back                 | pid, worker, jobs, started                           |
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from skiplock.core.failure import safe_text
from skiplock.core.inspect_value import kind_of, shown

Subscriber = Callable[["Event"], None]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened. `fields` as in the table of this module."""

    name: str
    fields: dict[str, Any] = field(default_factory=dict)


class Events:
    """Who listens to what. Emitting an event nobody listens to costs a dictionary look-up."""

    def __init__(self) -> None:
        self._by_name: dict[str, list[Subscriber]] = {}

    def subscribe(self, subscriber: Subscriber, *names: str) -> None:
        """Call `subscriber` for each event of these names."""
        for name in names:
            self._by_name.setdefault(name, []).append(subscriber)

    def wants(self, name: str) -> bool:
        """Whether anyone listens: lets the hot path skip building the event."""
        return name in self._by_name

    def emit(self, name: str, /, **fields: Any) -> None:
        """Tell the subscribers. One that raises is reported and does no harm."""
        subscribers = self._by_name.get(name)
        if not subscribers:
            return
        event = Event(name, fields)
        for subscriber in subscribers:
            try:
                subscriber(event)
            except BaseException as error:  # not even SystemExit: a subscriber never decides the fate of a job
                if name != "hook_failed":
                    self.emit("hook_failed", hook=name_of(subscriber), error=error)
                else:
                    print(f"skiplock: subscriber {name_of(subscriber)} failed: {shown(error)}", file=sys.stderr)


def name_of(hook: object) -> str:
    """What to call it in messages: it may be an object of any kind, and its `repr` code that fails too."""
    try:
        return safe_text(getattr(hook, "__qualname__", None) or kind_of(hook), 200)
    except Exception:
        return kind_of(hook)
