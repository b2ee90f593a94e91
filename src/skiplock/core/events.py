"""Named events. The rooms emit them; logs, metrics and traces only subscribe.

| event             | when                                              | fields                                               |
|-------------------|---------------------------------------------------|------------------------------------------------------|
| worker_started    | a worker process is registered                    | worker, name, queues, processes                      |
| worker_stopping   | it was told to stop                               | worker, reason, running, buffered                    |
| worker_stopped    | it has left                                       | worker, released                                     |
| worker_lost       | it learned that it was declared lost              | worker, running                                      |
| worker_rescued    | this worker rescued another one's jobs            | worker, name, silent_for, jobs                       |
| attempt_started   | a handler is about to run                         | job, task, queue, attempt                            |
| attempt_ended     | an attempt ended                                  | job, task, queue, attempt, verdict, took, failure, delay |
| attempt_failed    | one ended other than completed (beside the above) | as attempt_ended                                     |
| job_dead          | its final failure                                 | job, task, queue, attempt, failure                   |
| settle_refused    | results came too late, their lease was lost       | jobs                                                 |
| handler_stuck     | a handler runs on after its timeout or cancel     | job, task, why, stack                                |
| handler_unstuck   | such a handler ended after all                    | job, task, seconds                                   |
| claim_failed, settle_failed, beat_failed, listen_failed | a statement failed; it will be repeated | error, retry_in      |
| hook_failed       | a hook or subscriber raised                       | hook, error                                          |
| queue_not_served  | a task's queue is not among a worker's            | queue, tasks                                         |
| promoted          | waiting jobs became ready                         | jobs                                                 |
| child_started, child_restarted | the supervisor started a worker process | pid                                                  |
| child_died        | one died                                          | pid, code, reason, restart_in                        |
| child_rescued     | its jobs were given back                          | pid, worker, jobs, started                           |
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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
                    self.emit("hook_failed", hook=getattr(subscriber, "__qualname__", repr(subscriber)), error=error)
                else:
                    print(f"skiplock: subscriber {subscriber!r} failed: {error!r}", file=sys.stderr)
