"""The job context: what a handler may know of its job, and how it settles it itself."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, TypeVar

from skiplock.core.codec import check_name, encode_result
from skiplock.core.depth import decode_json
from skiplock.core.errors import SkiplockError
from skiplock.core.job import Job
from skiplock.store.call import Call, nothing
from skiplock.store.guests import arun_on, is_async_connection, run_on
from skiplock.store.pool import AsyncDatabase, SyncDatabase
from skiplock.store.schema import render

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reach:
    """How a context gets at the database. The pools open at first use."""

    schema: str
    max_result_bytes: int
    sync_database: Callable[[], SyncDatabase]
    async_database: Callable[[], AsyncDatabase]


class JobContext:
    """Declare it as the first parameter of a task, annotated `JobContext`, to get it.

    It is valid for one attempt. Everything it writes is fenced: if this attempt no longer owns the job (its worker was
    thought lost, or the job was deleted) the write raises LeaseLostError and the surrounding transaction cannot commit.
    """

    __slots__ = ("_cancelled", "_reach", "completing", "job")

    def __init__(self, job: Job, reach: Reach | None) -> None:
        self.job = job
        self.completing = False
        self._reach = reach
        self._cancelled = threading.Event()

    @property
    def id(self) -> int:
        """The job's id: the same for every attempt, so a good idempotency key for other systems. 0 in a plain call."""
        return self.job.id

    @property
    def attempt(self) -> int:
        """This attempt's number, from 1."""
        return self.job.attempt

    @property
    def is_last_attempt(self) -> bool:
        """Whether a failure now is final."""
        return self.job.attempt >= self.job.max_attempts

    @property
    def enqueued_at(self) -> datetime:
        """When the job was enqueued, by the database's clock."""
        return datetime.fromisoformat(self.job.enqueued)

    @property
    def meta(self) -> Any:
        """What `using(meta=…)` gave."""
        return None if self.job.meta is None else decode_json(self.job.meta)

    @property
    def scheduled_for(self) -> datetime | None:
        """The instant of the schedule's fire that this job is for (UTC), however late it runs; None: no schedule made it.
        `meta["schedule"]` is the schedule's name."""
        meta = self.meta
        told = meta.get("scheduled_for") if isinstance(meta, dict) and "schedule" in meta else None
        return datetime.fromisoformat(told) if isinstance(told, str) else None

    @property
    def cancelled(self) -> bool:
        """Whether this attempt was told to end (timeout, cancel, shutdown). A `def` handler in a long loop should look
        at it: a thread cannot be stopped from outside."""
        return self._cancelled.is_set()

    def tell_cancelled(self) -> None:
        """Set `cancelled`. For the worker."""
        self._cancelled.set()

    # -- completing the job in a transaction -------------------------------------------------------------------------

    def complete(self, *, connection: object, result: Any = None) -> Awaitable[None]:
        """Complete this job inside the transaction of `connection`: its writes and the completion commit together.

        `await` it with an async connection; with a sync one it is done when it returns. If the transaction is rolled
        back afterwards, the job was not completed, and counts as failed if the handler then returns. Raises
        LeaseLostError.

            async with session.begin():
                session.add(Invoice(...))
                await ctx.complete(connection=session)
        """
        call = self._complete_call(result)
        if call is None:
            return _Done()
        self.completing = True
        if is_async_connection(connection):
            return arun_on(connection, call)
        run_on(connection, call)
        return _Done()

    def transaction(self, *, result: Any = None) -> JobTransaction:
        """A transaction on a connection of skiplock's pool; at the end of the block the job is completed in it.

        async with ctx.transaction() as connection:          # psycopg.AsyncConnection; `with` in a `def` handler
            await connection.execute("INSERT …")
        """
        return JobTransaction(self, result)

    def _complete_call(self, result: Any) -> Call[None] | None:
        if self._reach is None:
            return None
        sql = "SELECT skiplock.complete($1::text::bigint, $2::text::bigint, NULL, $3::text::json)"
        encoded = encode_result(result, limit=self._reach.max_result_bytes)
        return Call(render(sql, self._reach.schema), (str(self.job.id), str(self.job.lease), encoded), nothing)

    # -- effects that must happen once -------------------------------------------------------------------------------

    async def once(self, name: str, function: Callable[[], Awaitable[T] | T], *, connection: object = None) -> T:
        """Run `function` unless an earlier attempt completed it; answers its value (then or now).

        The value is kept as JSON and comes back as plain JSON data. With `connection` the record is written in its
        transaction, together with what `function` wrote there: exactly once. Without, the record follows the effect:
        a crash between the two runs the effect again, so give the outside system an idempotency key made of `ctx.id`.

            charge = await ctx.once("charge-card", lambda: stripe.charge(card, key=f"job-{ctx.id}"))
        """
        if self._reach is None:
            only: T = await _call(function)
            return only
        check_name(name, "step name")
        found = await self._arun(self._recall_call(name), connection)
        if found is not None:
            value: T = decode_json(found)
            return value
        result: T = await _call(function)
        await self._arun(self._record_call(name, result), connection)
        return result

    def once_sync(self, name: str, function: Callable[[], T], *, connection: object = None) -> T:
        """The twin of `once` for `def` handlers."""
        if self._reach is None:
            return function()
        check_name(name, "step name")
        found = self._run(self._recall_call(name), connection)
        if found is not None:
            value: T = decode_json(found)
            return value
        result = function()
        self._run(self._record_call(name, result), connection)
        return result

    def _recall_call(self, name: str) -> Call[str | None]:
        sql = "SELECT r::text FROM skiplock.recall($1::text::bigint, $2::text) AS r"
        return Call(render(sql, self._schema), (str(self.job.id), name), lambda rows: rows[0][0] if rows else None)

    def _record_call(self, name: str, value: Any) -> Call[None]:
        sql = "SELECT skiplock.record($1::text::bigint, $2::text::bigint, $3::text, $4::text::json)"
        limit = self._reach.max_result_bytes if self._reach else 0
        encoded = encode_result(value, limit=limit) or "null"
        return Call(render(sql, self._schema), (str(self.job.id), str(self.job.lease), name, encoded), nothing)

    @property
    def _schema(self) -> str:
        return self.reach.schema

    @property
    def reach(self) -> Reach:
        """How to get at the database. Raises SkiplockError in a plain call, which has no job."""
        if self._reach is None:
            raise SkiplockError("this handler was called plainly, not by a worker: it has no job and no transaction")
        return self._reach

    async def _arun(self, call: Call[T], connection: object) -> T:
        if connection is not None:
            return await arun_on(connection, call)
        return await self.reach.async_database().run(call)

    def _run(self, call: Call[T], connection: object) -> T:
        if connection is not None:
            return run_on(connection, call)
        return self.reach.sync_database().run(call)


class JobTransaction:
    """`async with` or `with`: begins, gives a psycopg connection, completes the job, commits. See `JobContext.transaction`."""

    def __init__(self, context: JobContext, result: Any) -> None:
        self._context = context
        self._result = result
        self._lent: Any = None
        self._transaction: Any = None
        self._connection: Any = None

    async def __aenter__(self) -> Any:
        lent: AbstractAsyncContextManager[Any] = self._context.reach.async_database().connection()
        self._lent, self._connection = lent, await lent.__aenter__()
        self._transaction = self._connection.transaction()
        try:
            await self._transaction.__aenter__()
        except BaseException:  # cut connection, or cancelled meanwhile: it must go back to the pool
            await self._lent.__aexit__(None, None, None)
            raise
        return self._connection

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None
    ) -> None:
        ended = error
        try:
            try:
                if error is None:
                    await self._context.complete(connection=self._connection, result=self._result)
            except BaseException as refused:
                await self._transaction.__aexit__(type(refused), refused, refused.__traceback__)
                raise
            await self._transaction.__aexit__(kind, error, tb)
        except BaseException as refused:
            ended = refused
            raise
        finally:
            # The pool wants to know how it ended: a connection to a server that takes no writes any more is not lent again.
            await self._lent.__aexit__(ended and type(ended), ended, ended and ended.__traceback__)

    def __enter__(self) -> Any:
        lent: AbstractContextManager[Any] = self._context.reach.sync_database().connection()
        self._lent, self._connection = lent, lent.__enter__()
        self._transaction = self._connection.transaction()
        try:
            self._transaction.__enter__()
        except BaseException:
            self._lent.__exit__(None, None, None)
            raise
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        ended = error
        try:
            try:
                if error is None:
                    self._context.complete(connection=self._connection, result=self._result)
            except BaseException as refused:
                self._transaction.__exit__(type(refused), refused, refused.__traceback__)
                raise
            self._transaction.__exit__(kind, error, tb)
        except BaseException as refused:
            ended = refused
            raise
        finally:
            self._lent.__exit__(ended and type(ended), ended, ended and ended.__traceback__)


class _Done(Awaitable[None]):
    """Something to await that is already done."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


async def _call(function: Callable[[], Any]) -> Any:
    value = function()
    return await value if inspect.isawaitable(value) else value
