"""The processes of the benchmark: `python -m bench.child SYSTEM DSN MARKS VERB …`. The driver starts them.

    setup                create the schema in an empty database
    bulk FIRST N         enqueue jobs FIRST … FIRST+N-1 in bulk
    single FIRST N       enqueue them one at a time, each awaited
    load FIRST N RATE [BATCH]
                         open loop: job k is due k/RATE seconds after the first, whether or not the others are done;
                         with BATCH they are enqueued so many at a time
    work                 run one worker until SIGTERM

`bulk`, `single` and `load` print {"seconds", "lag"} as JSON; lag is by how many seconds the worst job of `load` was late.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from bench.marks import Marks
from bench.system import System


def find(name: str) -> type[System]:
    """The system of this name. It imports no other: each has only its own packages."""
    if name == "reference":
        from bench.reference import Reference

        return Reference
    if name == "raw insert":
        from bench.rawinsert import RawInsert

        return RawInsert
    if name.startswith("skiplock"):
        from bench.variants import VARIANTS

        return VARIANTS[name]
    from bench.peers import load

    return load(name)


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """On uvloop, as skiplock's worker does where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine)
    return uvloop.run(coroutine)


async def produce(
    system: System, marks: Marks, verb: str, first: int, jobs: int, rate: int = 0, batch: int = 1
) -> dict[str, float]:
    """Enqueue, and say how long it took."""
    await system.open()
    lag, began = 0.0, time.perf_counter()
    if verb == "bulk":
        await system.bulk(range(first, first + jobs))
    elif verb == "single":
        for n in range(first, first + jobs):
            await system.one(n)
    else:
        lag = await _load(system, marks, range(first, first + jobs), rate, batch)
    seconds = time.perf_counter() - began
    await system.close()
    return {"seconds": seconds, "lag": lag}


async def _load(system: System, marks: Marks, numbers: range, rate: int, batch: int) -> float:
    lag, began = 0.0, time.perf_counter()
    for k in range(0, len(numbers), batch):
        wait = began + k / rate - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        lag = max(lag, -wait)
        due = numbers[k : k + batch]
        for n in due:
            marks.send(n)
        await (system.one(due[0]) if batch == 1 else system.bulk(due))
    return lag


def main(name: str, dsn: str, path: str, verb: str, *numbers: str) -> None:
    """One verb of one system."""
    system, marks = find(name)(dsn), Marks(Path(path))
    if verb == "setup":
        system.setup()
    elif verb == "work":
        system.work(marks)
    else:
        print(json.dumps(run(produce(system, marks, verb, *map(int, numbers)))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
