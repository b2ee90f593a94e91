"""An app's limits at run time: what they are, how full they are, and changing them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from skiplock.core.outcome import Duration
from skiplock.desk.limits import (
    LimitRecord,
    limit_keys_call,
    limit_queue_call,
    limits_call,
    set_limit_call,
    unset_limit_call,
)

if TYPE_CHECKING:
    from skiplock.app import Skiplock

Records = list[LimitRecord]


class Limits:
    """`app.limits`. Every change counts at once, for all workers and for the jobs that are queued already.

    app.limits.set("customer:{customer_id}", slots=5)                            # all customers
    app.limits.set("customer:{customer_id}", value="customer:42", slots=1)       # this one
    app.limits.set("api.example.org", rate=50, per="1s", burst=5)
    app.limits.unset("api.example.org")                                          # as the code says
    app.limits.set_queue("mail", 5)                                              # over all workers
    """

    def __init__(self, app: Skiplock) -> None:
        self._app = app

    def set(
        self,
        name: str,
        *,
        value: str | None = None,
        slots: int | None = None,
        rate: float | None = None,
        per: Duration | None = None,
        burst: int | None = None,
    ) -> None:
        """Set the limit of that name (its key as written in the code, or its `name=`), or its key with that value.

        `slots` is for a Concurrency, the others for a Rate; 0 lets nothing start. Raises OptionError.
        """
        self._app.run(set_limit_call(name, self._app.schema, value=value, slots=slots, rate=rate, per=per, burst=burst))

    async def aset(
        self,
        name: str,
        *,
        value: str | None = None,
        slots: int | None = None,
        rate: float | None = None,
        per: Duration | None = None,
        burst: int | None = None,
    ) -> None:
        """The async twin of `set`."""
        call = set_limit_call(name, self._app.schema, value=value, slots=slots, rate=rate, per=per, burst=burst)
        await self._app.arun(call)

    def unset(self, name: str, *, value: str | None = None) -> bool:
        """Let what the code says count again; answers whether anything had been set."""
        return self._app.run(unset_limit_call(name, self._app.schema, value=value))

    async def aunset(self, name: str, *, value: str | None = None) -> bool:
        """The async twin of `unset`."""
        return await self._app.arun(unset_limit_call(name, self._app.schema, value=value))

    def list(self) -> Records:
        """All limits, by name."""
        return self._app.run(limits_call(self._app.schema))

    async def alist(self) -> Records:
        """The async twin of `list`."""
        return await self._app.arun(limits_call(self._app.schema))

    def keys(self, name: str, *, most: int = 50) -> Records:
        """The keys of one limit, those with the longest lines first."""
        return self._app.run(limit_keys_call(name, self._app.schema, most=most))

    async def akeys(self, name: str, *, most: int = 50) -> Records:
        """The async twin of `keys`."""
        return await self._app.arun(limit_keys_call(name, self._app.schema, most=most))

    def set_queue(self, queue: str, slots: int | None) -> None:
        """At most so many jobs of a queue run at a time, over all workers; None: as many as they have slots for.

        Jobs that run already go on, and are not counted if they were started without such a limit. Raises OptionError.
        """
        self._app.run(limit_queue_call(queue, slots, self._app.schema))

    async def aset_queue(self, queue: str, slots: int | None) -> None:
        """The async twin of `set_queue`."""
        await self._app.arun(limit_queue_call(queue, slots, self._app.schema))
