"""Jobs, errors and results of every hostile shape: each job ends, with a reason that can be read; the worker and the jobs beside
it live; lists and pages still show them.

Kinds: arguments that only PostgreSQL can read, enqueued by SQL (PAY-04, PAY-05, LIFE-37), nested beyond a decoder's stack,
numbers beyond all numbers (PAY-09), a million keys, settings of a job that are nonsense; reasons, errors and results that
cannot be stored or run code of their own (PAY-02, PAY-03, PAY-08, PAY-20 to PAY-26).
"""

from __future__ import annotations

import asyncio
import enum
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import pydantic
import pytest

from skiplock import Backoff, Cancel, Dead, JobContext, JobRecord, Retry, Skiplock, Snooze
from skiplock.desk.find import list_call
from tests.support import clone, drop
from tests.support.handlers import both_kinds
from tests.support.verbs import open_verbs
from tests.support.workers import running_worker, settled

AT_ONCE = Backoff(base=0, floor=0, jitter=False)
Records = dict[str, JobRecord]


def lists(levels: int) -> str:
    return "[" * levels + "]" * levels


def objects(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


# --- arguments that came by SQL ---------------------------------------------------------------------------------------

# args, and what the dead job's error says; each is enqueued for a task that takes anything and for one that takes numbers.
POISON = {
    "lists nested 900 deep": (f'{{"x":{lists(900)}}}', "nested deeper than 200 levels"),
    "objects nested 900 deep": (f'{{"x":{objects(900)}}}', "nested deeper than 200 levels"),
    "nested as deep as PostgreSQL takes": (f'{{"x":{lists(5_000)}}}', "nested deeper than 200 levels"),
    "nested behind brackets in strings": (
        '{"x":' + '["]",' * 900 + "1" + ',"["]' * 900 + "}",
        "nested deeper than 200 levels",
    ),
    "one level too many": (f'{{"x":{lists(200)}}}', "nested deeper than 200 levels"),
    "a number beyond all floats": ('{"x":[1e400]}', "inf"),
    "one below all floats": ('{"x":[-1e400]}', "-inf"),
    "an integer of 5,000 digits": ('{"x":[' + "9" * 5_000 + "]}", "cannot be read: "),
    "a lone surrogate": (r'{"x":["\ud800"]}', "$.x[0] holds a lone surrogate"),
    "a lone surrogate in a key": (r'{"x":[{"\udc81":1}]}', "holds a lone surrogate"),
    "a key that the task has not": ('{"y":1}', "unknown field `y`"),
    "a key of a megabyte": ('{"' + "k" * 1_000_000 + '":1}', "unknown field"),
    "a million keys of its own": (
        "{" + ",".join(f'"k{n}":0' for n in range(1_000_000)) + "}",
        "unknown field `k0`",
    ),
    "nothing": ("{}", "missing required field `x`"),
}
TASKS = ["takes anything", "takes numbers", "takes a tree"]
CASES = [(name, task) for name in POISON for task in (TASKS[:1] if "million" in name else TASKS)]
# args that are odd and all right, and what the handler gets.
ODD: dict[str, tuple[str, Any]] = {
    "as deep as allowed": (f'{{"x":{lists(199)}}}', json.loads(lists(199))),
    "brackets in a string": ('{"x":"' + "[{" * 5_000 + '"}', "[{" * 5_000),
    "the same key twice: the last counts": ('{"x":1,"x":2}', 2),
    "the same key twice within": ('{"x":{"a":1,"a":2}}', {"a": 2}),
    "a million keys": (
        '{"x":{' + ",".join(f'"k{n}":{n}' for n in range(1_000_000)) + "}}",
        {f"k{n}": n for n in range(1_000_000)},
    ),
    "an integer of 4,000 digits": ('{"x":' + "9" * 4_000 + "}", 10**4_000 - 1),
    "an empty key": ('{"x":{"":1}}', {"": 1}),
    "a key of a megabyte within": ('{"x":{"' + "k" * 1_000_000 + '":1}}', {"k" * 1_000_000: 1}),
    "a byte order mark": ('{"x":"\ufeff"}', "\ufeff"),
    "what no one can see": ('{"x":"\u202e\u2028\u200b\x7f"}', "\u202e\u2028\u200b\x7f"),
    "white space around": (' \n{ "x" :\t1 } ', 1),
}
# Settings of a job that are nonsense, and what becomes of it.
SETTINGS: dict[str, tuple[dict[str, Any], str, str]] = {
    "options nested too deep": ({"options": f'{{"a":{lists(900)}}}'}, "dead", "nested deeper than 200 levels"),
    "options that are a list": ({"options": "[1]"}, "dead", "options are no JSON object"),
    "options that are text": ({"options": '"timeout"'}, "dead", "options are no JSON object"),
    "options beyond all floats": ({"options": '{"timeout":1e400}'}, "dead", "out of range"),
    "a timeout of NaN, as text": ({"options": '{"timeout":"nan"}'}, "dead", "timeout 'nan' is not a positive"),
    "a timeout that has passed": ({"options": '{"timeout":-1}'}, "dead", "timeout '-1' is not a positive"),
    "a timeout of a list": ({"options": '{"timeout":[3]}'}, "dead", "is not a positive number"),
    "a timeout of true": ({"options": '{"timeout":true}'}, "dead", "is not a positive number"),
    "a timeout of 400 digits": ({"options": '{"timeout":' + "9" * 400 + "}"}, "dead", "too large"),
    "a timeout of ages": ({"options": '{"timeout":1e300}'}, "completed", ""),
    "no timeout": ({"options": '{"timeout":null}'}, "completed", ""),
    "a backoff of nonsense": ({"options": '{"backoff":{"base":"x","y":[]}}'}, "completed", ""),
    "options nobody knows": ({"options": '{"colour":"red"}'}, "completed", ""),
    "meta nested too deep, not asked for": ({"meta": lists(900)}, "completed", ""),
    "meta with NUL, not asked for": ({"meta": r'{"a":"\u0000"}'}, "completed", ""),
    "tags of any text": ({"tags": ["", "NULL", "a\nb", "\u202e", '"{},']}, "completed", ""),
}


@pytest.fixture(scope="module")
def by_sql(template_server: str) -> Iterator[tuple[Records, str]]:
    """All of these enqueued by SQL in one transaction, so that they come in one claim with good jobs between them."""
    dsn = clone(template_server)
    app = Skiplock(dsn)

    @app.task(name="takes anything")
    async def anything(x: Any) -> bool:
        return x in wanted

    @app.task(name="takes numbers")
    def numbers(x: list[int]) -> None: ...

    @app.task(name="takes a tree")
    async def tree(x: dict[str, dict[str, int]]) -> None: ...

    @app.task(name="good")
    async def good(n: int) -> int:
        return n

    @app.task(name="looks at its meta")
    async def looks(ctx: JobContext) -> Any:
        return ctx.meta

    wanted = [value for _, value in ODD.values()]
    ids: dict[str, int] = {}
    with open_verbs(dsn) as db, db.transaction():
        for name, task in CASES:
            ids[f"{task}: {name}"] = db.enqueue(task, args=POISON[name][0], max_attempts=1)
            ids[f"good after {task}: {name}"] = db.enqueue("good", args='{"n":3}')
        for name, (args, _) in ODD.items():
            ids[f"odd: {name}"] = db.enqueue("takes anything", args=args, max_attempts=1)
        for name, (options, _, _) in SETTINGS.items():
            ids[f"settings: {name}"] = db.enqueue("good", args='{"n":3}', max_attempts=1, **options)
        ids["meta nested too deep"] = db.enqueue("looks at its meta", meta=lists(900), max_attempts=1)

    async def run_all() -> Records:
        async with running_worker(app, queues={"default": 1000}):
            return {name: await settled(app.job(job_id)) for name, job_id in ids.items()}

    yield asyncio.run(run_all()), dsn
    drop(template_server, dsn)


@pytest.mark.parametrize(("name", "task"), CASES)
def test_arguments_that_cannot_be_read_end_their_job_only(by_sql: tuple[Records, str], name: str, task: str) -> None:
    """To see it fail: let ArgsCodec.decode go without its check of the depth (the message), or crash on `lists(900)` in a
    thread with a small stack (tests/unit/test_depth.py)."""
    record = by_sql[0][f"{task}: {name}"]
    assert (record.state, len(record.attempts)) == ("dead", 1)
    message = record.attempts[0].message or ""
    assert message.startswith(f"{task}: the stored arguments do not fit its signature: $")
    assert len(message) < 1_000
    said = POISON[name][1]
    if task == "takes anything" or "deeper" in said or "field" in said:
        assert said in message
    good = by_sql[0][f"good after {task}: {name}"]
    assert (good.state, good.result) == ("completed", 3)
    assert good.worker == record.worker


@pytest.mark.parametrize("name", ODD)
def test_arguments_that_are_only_odd(by_sql: tuple[Records, str], name: str) -> None:
    record = by_sql[0][f"odd: {name}"]
    assert (record.state, record.error, record.result) == ("completed", None, True)


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_of_a_job_that_are_nonsense(by_sql: tuple[Records, str], name: str) -> None:
    """To see it fail: let `timeout_of` take what `float()` makes of it: "nan" puts the timers of all jobs out of order."""
    record = by_sql[0][f"settings: {name}"]
    _, state, said = SETTINGS[name]
    assert record.state == state
    assert said in (record.error or "")


def test_metadata_that_cannot_be_read_fails_the_handler_that_asks_for_it(by_sql: tuple[Records, str]) -> None:
    record = by_sql[0]["meta nested too deep"]
    assert record.state == "dead"
    assert "nested deeper than 200 levels" in (record.error or "")


def test_all_of_them_can_be_listed(by_sql: tuple[Records, str]) -> None:
    records, dsn = by_sql
    with Skiplock(dsn) as app:
        listed = {record.id: record for record in app.run(list_call("skiplock", limit=1000))}
    assert set(listed) == {record.id for record in records.values()}
    deep = records["takes anything: lists nested 900 deep"].id
    assert listed[deep].args == f'{{"x":{lists(900)}}}', "as text: nobody can read it"


# --- what handlers raise ----------------------------------------------------------------------------------------------


class SaysNothing:
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__

    def __bool__(self) -> bool:
        raise RuntimeError("no")


class Lies(Exception):
    """About its class, its cause and its notes."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no class")

    @property
    def __cause__(self) -> Any:  # type: ignore[override]
        raise SystemExit

    @property
    def __notes__(self) -> Any:
        raise KeyboardInterrupt


class LyingCancel(Cancel):
    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise RuntimeError("no class")


class Unspeakable(type):
    def __getattribute__(cls, name: str) -> Any:
        if name in ("__name__", "__qualname__", "__module__"):
            raise RuntimeError("no name")
        return super().__getattribute__(name)


class OfNoName(Exception, metaclass=Unspeakable):
    pass


def noted() -> Exception:
    error = ValueError("noted")
    for _ in range(1_000):
        error.add_note("n\0\ud800" * 10_000)
    return error


def of_giant_name() -> Exception:
    return type("E" * 1_000_000, (Exception,), {"__module__": "m" * 1_000_000})("of a giant")


def tower() -> BaseException:
    error: Exception = ValueError("at the bottom")
    for _ in range(500):
        error = ExceptionGroup("a floor", [error])
    return error


def family() -> BaseException:
    first = ValueError("first")
    error: BaseException = first
    for n in range(10_000):
        later = ValueError(n)
        later.__context__ = error
        error = later
    first.__context__ = error
    return error


# What is raised, the state of its job (one attempt), and what its error says.
RAISED: dict[str, tuple[Callable[[], BaseException], str, str]] = {
    "Dead with NUL": (lambda: Dead("a\0b"), "dead", r"Dead: a\x00b"),
    "Dead with a lone surrogate": (lambda: Dead("a\ud800b"), "dead", r"Dead: a\ud800b"),
    "Dead of ten million characters": (lambda: Dead("x" * 10_000_000), "dead", "Dead: xxx"),
    "Dead with no text": (lambda: Dead(7), "dead", "Dead: 7"),  # type: ignore[arg-type]
    "Dead that says nothing": (lambda: Dead(SaysNothing()), "dead", "Dead: <no message: str() of"),  # type: ignore[arg-type]
    "Cancel with NUL": (lambda: Cancel("a\0b"), "cancelled", r"Cancel: a\x00b"),
    "Cancel with a lone surrogate": (lambda: Cancel("\udcff"), "cancelled", r"Cancel: \udcff"),
    "Cancel that lies": (lambda: LyingCancel("lying"), "cancelled", "Cancel: lying"),
    "Retry with NUL": (lambda: Retry("a\0b", delay=0), "dead", r"Retry: a\x00b"),
    "Retry with a lone surrogate": (lambda: Retry("\ud800", delay=0), "dead", r"Retry: \ud800"),
    "Retry that says nothing": (lambda: Retry(SaysNothing(), delay=0), "dead", "Retry: <no message"),  # type: ignore[arg-type]
    "Snooze for a thousand years": (
        lambda: Snooze("365000d"),
        "dead",
        "OptionError: Snooze(delay): '365000d' is more than",
    ),
    "Retry in ages": (lambda: Retry(delay=1e300), "dead", "OptionError: Retry(delay=…): 1e+300 is more than"),
    "one that lies about itself": (lambda: Lies("lying"), "dead", "Lies: lying"),
    "one whose class has no name": (lambda: OfNoName("nameless"), "dead", "nameless"),
    "one of a giant name": (of_giant_name, "dead", "mmm"),
    "a thousand notes": (noted, "dead", "ValueError: noted"),
    "a tower of groups": (tower, "dead", "ExceptionGroup: a floor"),
    "a circle of ten thousand contexts": (family, "dead", "ValueError: 9999"),
    "a group of ten thousand": (
        lambda: ExceptionGroup("many", [ValueError("x" * 10_000)] * 10_000),
        "dead",
        "ExceptionGroup: many",
    ),
    "a text of escapes": (lambda: ValueError("\x1b[2J\r\u202e\u2028\n\nend"), "dead", "ValueError: \x1b[2J"),
    "a recursion": (lambda: endless(0), "dead", "RecursionError: "),
}


def endless(n: int) -> BaseException:
    return endless(n + 1)


# --- what handlers return ---------------------------------------------------------------------------------------------


class Leaves(pydantic.BaseModel):
    """Runs code of its own when it is encoded."""

    n: int = 1

    @pydantic.model_serializer
    def leave(self) -> Any:
        raise SystemExit(3)


class Interrupts(Leaves):
    @pydantic.model_serializer
    def leave(self) -> Any:
        raise KeyboardInterrupt


class RaisesTheUnspeakable(Leaves):
    @pydantic.model_serializer
    def leave(self) -> Any:
        raise OfNoName(SaysNothing())


class PassesForAModel:
    """Pydantic turns what a model raises into errors of its own; this one does not."""

    model_validate_json = None

    def model_dump(self, **options: Any) -> Any:
        raise SystemExit(3)


class Ghost(str):
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __str__
    __eq__ = None  # type: ignore[assignment]
    __hash__ = None  # type: ignore[assignment]


class Colour(enum.Enum):
    NUL = "\0"
    OBJECT = object()


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = ["]", value, "["]
    return value


UNSTORABLE: dict[str, Callable[[], Any]] = {
    "one that leaves": Leaves,
    "one that leaves in its own way": PassesForAModel,
    "one that interrupts": Interrupts,
    "one that raises what cannot be told": RaisesTheUnspeakable,
    "nested behind brackets": lambda: nested(300),
    "nested just too deep": lambda: json.loads(lists(201)),
    "300 megabytes": lambda: "x" * 300_000_000,
    "a million keys": lambda: {f"k{n}": n for n in range(1_000_000)},
    "an integer of 5,000 digits": lambda: 10**5_000,
    "an enum of NUL": lambda: Colour.NUL,
    "an enum of an object": lambda: [Colour.OBJECT],
    "a generator": lambda: (n for n in range(3)),
    "an object of no name": lambda: OfNoName("x"),
    "what says nothing": SaysNothing,
    "a key of NaN": lambda: {math.nan: 1},
    "bytes of a surrogate": lambda: "\udcff" * 1_000,
}
STORABLE: dict[str, tuple[Callable[[], Any], Any]] = {
    "as deep as allowed": (lambda: json.loads(lists(200)), json.loads(lists(200))),
    "brackets in text": (lambda: "[{" * 5_000, "[{" * 5_000),
    "a ghost of a text": (lambda: Ghost("boo"), "boo"),
    "what no one can see": (lambda: "\u202e\u2028\x7f\ufeff", "\u202e\u2028\x7f\ufeff"),
    "an integer of 4,000 digits": (lambda: 10**4_000, 10**4_000),
    "bytes": (lambda: b"\0\xff", "AP8="),
}


def handlers(make: Callable[[], Any], act: Callable[[Any], Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    async def on_loop() -> Any:
        return act(make())

    def in_thread() -> Any:
        return act(make())

    return on_loop, in_thread


def throw(error: BaseException) -> None:
    raise error


@pytest.fixture(scope="module")
def ended(template_server: str) -> Iterator[tuple[Records, list[dict[str, Any]]]]:
    """Every handler of the tables, once as `async def` and once as `def`, and what the worker told meanwhile."""
    dsn = clone(template_server)
    app = Skiplock(dsn)
    for name, (raised, _, _) in RAISED.items():
        for kind, function in zip(("async", "def"), handlers(raised, throw), strict=True):
            app.task(name=f"raises {name} {kind}", max_attempts=1)(function)
    for name, returned in (UNSTORABLE | {name: make for name, (make, _) in STORABLE.items()}).items():
        for kind, function in zip(("async", "def"), handlers(returned, lambda value: value), strict=True):
            app.task(name=f"returns {name} {kind}", max_attempts=1)(function)

    @app.task(name="the last")
    async def last() -> str:
        return "alive"

    async def run_all() -> tuple[Records, list[dict[str, Any]]]:
        # Few at a time: some of them hold hundreds of megabytes.
        async with running_worker(app, queues={"default": 2}) as worker:
            jobs = {name: await task.aenqueue() for name, task in app.tasks.items() if name != "the last"}
            found = {name: await settled(job, limit=60) for name, job in jobs.items()}
            found["the last"] = await settled(await last.aenqueue())
            return found, worker.heard("settle_failed")

    yield asyncio.run(run_all())
    drop(template_server, dsn)


Ended = tuple[Records, list[dict[str, Any]]]


@both_kinds
@pytest.mark.parametrize("name", RAISED)
def test_whatever_is_raised_is_kept_as_text(ended: Ended, name: str, kind: str) -> None:
    """To see it fail: let `_said` keep the reason as it is (NUL makes a cancelled job dead), or `failed` use isinstance."""
    record = ended[0][f"raises {name} {kind}"]
    _, state, said = RAISED[name]
    assert (record.state, len(record.attempts)) == (state, 1)
    assert said in (record.error or "")
    [attempt] = record.attempts
    assert len(attempt.message or "") <= 4_000
    assert len(attempt.traceback or "") <= 32_000


@both_kinds
@pytest.mark.parametrize("name", UNSTORABLE)
def test_whatever_cannot_be_stored_ends_the_job_dead(ended: Ended, name: str, kind: str) -> None:
    """To see it fail: let `completed` catch ArgumentError only (the worker ends with SystemExit)."""
    record = ended[0][f"returns {name} {kind}"]
    assert (record.state, record.result) == ("dead", None)
    assert (record.error or "").startswith("ResultNotStorable: the handler succeeded, but its result cannot be stored")


@both_kinds
@pytest.mark.parametrize("name", STORABLE)
def test_whatever_can_be_stored_is(ended: Ended, name: str, kind: str) -> None:
    record = ended[0][f"returns {name} {kind}"]
    assert (record.state, record.result, record.error) == ("completed", STORABLE[name][1], None)


def test_the_worker_has_outlived_them_and_the_database_refused_nothing(ended: Ended) -> None:
    records, refusals = ended
    assert (records["the last"].state, records["the last"].result) == ("completed", "alive")
    assert len({record.worker for record in records.values()}) == 1
    assert refusals == []


# --- at a timeout -----------------------------------------------------------------------------------------------------


@both_kinds
async def test_an_error_that_lies_at_its_timeout_frees_its_slot(app: Skiplock, kind: str) -> None:
    """To see it fail: ask `isinstance(error, CancelledError)` in run.py: it raises, and the slot is never free again."""
    if kind == "async":

        @app.task(name="lies", max_attempts=1, timeout=0.2)
        async def lies() -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                raise Lies("at the timeout") from None
    else:

        @app.task(name="lies", max_attempts=1, timeout=0.2)
        def lies(ctx: JobContext) -> None:
            while not ctx.cancelled:
                ctx._cancelled.wait(0.05)
            raise Lies("at the timeout")

    async with running_worker(app, queues={"default": 1}):
        first, second = await lies.aenqueue(), await lies.aenqueue()
        for job in (first, second):
            record = await settled(job)
            assert record.state == "dead"


class BadHook:
    """Raises when it is called, and when it is asked for its name."""

    def __call__(self, event: Any) -> None:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


async def test_a_hook_that_cannot_even_be_named(app: Skiplock) -> None:
    @app.task(name="hooked", hooks={"attempt_started": BadHook(), "attempt_ended": BadHook()})
    async def hooked() -> int:
        return 1

    async with running_worker(app, queues={"default": 1}) as worker:
        for _ in range(3):
            assert (await settled(await hooked.aenqueue())).state == "completed"
        assert {told["hook"] for told in worker.heard("hook_failed")} == {"BadHook"}
