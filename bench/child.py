"""The processes of the benchmark: `python -m bench.child SYSTEM DSN MARKS VERB …`. The driver starts them.

    bulk FIRST N         enqueue jobs FIRST … FIRST+N-1 in bulk
    single FIRST N       enqueue them one at a time, each awaited
    load FIRST N RATE    open loop: job k is due k/RATE seconds after the first, whether or not the others are done
    work                 run one worker until SIGTERM

All but `work` print {"seconds", "lag"} as JSON; lag is by how many seconds the worst job of `load` was late.
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


def systems() -> dict[str, type[System]]:
    """What can be measured, by name."""
    from bench.adapter import SkiplockSystem
    from bench.reference import Reference

    return {system.name: system for system in (Reference, SkiplockSystem)}


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """On uvloop, as skiplock's worker does where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(coroutine)
    return uvloop.run(coroutine)


async def produce(system: System, marks: Marks, verb: str, first: int, jobs: int, rate: int = 0) -> dict[str, float]:
    """Enqueue, and say how long it took."""
    await system.open()
    lag, began = 0.0, time.perf_counter()
    if verb == "bulk":
        await system.bulk(range(first, first + jobs))
    elif verb == "single":
        for n in range(first, first + jobs):
            await system.one(n)
    else:
        lag = await _load(system, marks, first, jobs, rate)
    seconds = time.perf_counter() - began
    await system.close()
    return {"seconds": seconds, "lag": lag}


async def _load(system: System, marks: Marks, first: int, jobs: int, rate: int) -> float:
    lag, began = 0.0, time.perf_counter()
    for k in range(jobs):
        wait = began + k / rate - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        lag = max(lag, -wait)
        marks.send(first + k)
        await system.one(first + k)
    return lag


def main(name: str, dsn: str, path: str, verb: str, *numbers: str) -> None:
    """One verb of one system."""
    system, marks = systems()[name](dsn), Marks(Path(path))
    if verb == "work":
        system.work(marks)
    else:
        print(json.dumps(run(produce(system, marks, verb, *map(int, numbers)))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
