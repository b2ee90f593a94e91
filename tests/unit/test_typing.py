"""What a type checker says of the public API: right calls pass, wrong ones are errors (API-20 to API-24)."""

from __future__ import annotations

import re
from pathlib import Path

from mypy import api

SOURCE = """
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from skiplock import Concurrency, JobContext, JobHandle, NewJob, Rate, Resource, Skiplock, Unique

app = Skiplock("postgresql://nowhere")

class Session: ...

@asynccontextmanager
async def session() -> AsyncIterator[Session]:
    yield Session()

@app.task
async def plain(to: str, times: int = 1) -> int:
    return times

@app.task(queue="mail", timeout="30s")
def threaded(to: str) -> None: ...

@app.task(max_attempts=5)
async def with_context(ctx: JobContext, path: str, db: Session = Resource(session)) -> str:
    return path

@app.cron("0 3 * * *", tz="Europe/Berlin", overlap="skip")
@app.every("1h", name="also")
@app.task
def scheduled(ctx: JobContext, n: int = 1) -> None: ...

@app.every("10m")
async def shortly(ctx: JobContext, n: int = 1) -> None: ...

@app.task(unique=Unique(by=["path"], hold="1m"), limits=[Concurrency("path:{path}", 3), Rate("api", 10)], fair_key="{path}", expires=60)
async def ruled(path: str) -> None: ...

@app.task(unique=True, limits=())
def unique(path: str) -> None: ...

async def right() -> None:
    scheduled.enqueue(n=2)
    await shortly.aenqueue(2)
    a_number: int = app.run(app.schedules.run("also"))
    is_new: bool = ruled.enqueue("x").is_new
    ruled.using(unique=False, limits=[], weight=2.5).enqueue(path="x")
    unique.using(unique=Unique(by=lambda path, **_: path, on_conflict="replace")).enqueue("x")
    handle: JobHandle = plain.enqueue("ann", times=2)
    handle = await plain.aenqueue(to="ann")
    job: NewJob = threaded.job(to="ann")
    app.enqueue_many([job, with_context.job(path="x")])
    number: int = await plain("ann")
    nothing: None = threaded("ann")
    text: str = await with_context(path="x")
    handle = with_context.using(delay="5m", priority=2).enqueue("x")

async def wrong() -> None:
    plain.enqueue(to=1)                       # E: arg-type
    plain.enqueue()                           # E: call-arg
    plain.enqueue("ann", tiems=2)             # E: call-arg
    await threaded.aenqueue(2)                # E: arg-type
    with_context.enqueue(path=3)              # E: arg-type
    with_context.using(priority="high")       # E: arg-type
    text: str = await plain("ann")            # E: assignment
    ruled.enqueue(5)                          # E: arg-type
    ruled.using(unique="path")                # E: arg-type
    ruled.using(limits=["path"])              # E: list-item
    ruled.using(limits=Rate("api", 10))       # E: arg-type
    Unique(by=5)                              # E: arg-type
    Concurrency("path", "3")                  # E: arg-type
    app.task(unique="path")                   # E: call-overload
"""


def test_a_type_checker_knows_the_arguments_of_every_task(tmp_path: Path) -> None:
    file = tmp_path / "uses.py"
    file.write_text(SOURCE)
    root = Path(__file__).resolve().parents[2]
    out, _, _ = api.run(["--strict", "--config-file", str(root / "pyproject.toml"), "--no-incremental", str(file)])
    found = {int(line): code for line, code in re.findall(r"uses\.py:(\d+): error: .*\[([a-z-]+)\]", out)}
    expected = {
        number: line.rpartition("# E: ")[2].strip()
        for number, line in enumerate(SOURCE.splitlines(), 1)
        if "# E: " in line
    }
    assert found == expected, out
