"""The command: runs the soak and prints its balance. Exit code 1 if the balance is not even."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from skiplock.store.embedded import start_server
from skiplock.store.migrate import migrate
from tests.soak.balance import LIVE, Balance, draw_up
from tests.soak.faults import FAULTS, World
from tests.soak.producer import Producer
from tests.soak.record import Record
from tests.support.fleets import Fleet, one
from tests.support.server import binaries_under_test

STEP = 0.25  # seconds between two readings of the journal
KINDS_THAT_END = 0.97  # of the jobs come to the end of their handler; the others fail on purpose


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=3600.0, help="of load and faults (default: an hour)")
    parser.add_argument("--rate", type=float, default=500.0, help="jobs a second (500)")
    parser.add_argument("--every", type=float, default=5.0, help="seconds from one fault to the next (5)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="draws the faults (random)")
    parser.add_argument("--fault", action="append", help="only these")
    parser.add_argument(
        "--settle", type=float, default=120.0, help="seconds after the load in which all must end (120)"
    )
    options = parser.parse_args(arguments)
    chosen = [fault for fault in FAULTS if not options.fault or fault.__name__ in options.fault]
    if not chosen:
        parser.error(f"--fault: choose from {', '.join(fault.__name__ for fault in FAULTS)}")
    print(f"seed {options.seed}, {options.rate:g} jobs/s for {options.seconds:g} s, a fault every {options.every:g} s")
    with ExitStack() as stack:
        return Soak(stack, options, chosen).run()


class Soak:
    """One run."""

    def __init__(self, stack: ExitStack, options: argparse.Namespace, faults: list[object]) -> None:
        self._options = options
        self._random = random.Random(options.seed)
        self._folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="skiplock-soak-")))
        journal = self._folder / "journal"
        journal.mkdir()
        server = stack.enter_context(start_server(binaries=binaries_under_test(), settings={"max_connections": "200"}))
        migrate(server.dsn())
        self._record = Record(journal)
        producer = Producer(server.dsn(), self._record, options.rate, options.seed)
        self._world = World(server, self._random, producer, self._make, self._folder)
        stack.callback(lambda: [fleet.destroy() for fleet in self._world.fleets.values()])
        self._order = [self._random.choice(faults) for _ in range(int(options.seconds / options.every) + 1)]
        for n, fault in enumerate(self._random.sample(faults, len(faults))):
            if n < len(self._order):  # each at least once, if there is time
                self._order[n] = fault
        self._struck: list[tuple[float, str]] = []

    def _make(self, name: str) -> Fleet:
        environment = {"SKIPLOCK_SOAK_JOURNAL": str(self._folder / "journal")}
        log = self._folder / f"{name}.log"
        processes = 2 if name == "supervised" else None
        target = "tests.soak.jobs:app"
        return Fleet(
            self._world.dsn,
            log,
            queues={"default": 50},
            processes=processes,
            options=("--grace", "5"),
            target=target,
            environment=environment,
        )

    def run(self) -> int:
        world = self._world
        for name in ("supervised", "alone"):
            world.fleets[name] = self._make(name)
            world.fleets[name].ready(2 if name == "supervised" else 1)
        world.producer.start()
        self._load()
        world.keep(all_of_it=True)
        world.producer.stop()
        world.producer.join()
        ended = self._wait_for_the_end()
        self._record.read()
        balance = draw_up(world.dsn, self._record, world.producer.kinds)
        self._print(balance, ended)
        return 1 if balance.faults or ended is None else 0

    def _load(self) -> None:
        began = time.monotonic()
        strike_at = began + self._options.every
        while (now := time.monotonic()) - began < self._options.seconds:
            self._record.read()
            self._world.keep()
            if now >= strike_at and self._order:
                fault = self._order.pop(0)
                self._struck.append((time.monotonic(), fault.__name__))
                print(f"{now - began:7.1f} s  {fault.__name__}", flush=True)
                fault(self._world)
                strike_at += self._options.every
            time.sleep(STEP)

    def _wait_for_the_end(self) -> float | None:
        began = time.monotonic()
        while time.monotonic() - began < self._options.settle:
            self._record.read()
            self._world.keep()
            if one(self._world.dsn, LIVE) == 0:
                return time.monotonic() - began
            time.sleep(STEP)
        return None

    def _print(self, balance: Balance, ended: float | None) -> None:
        print(f"\naccepted {balance.accepted:,} jobs; of {balance.unknown:,} enqueue said that it does not know,")
        print(
            f"  and {balance.unknown_stored:,} of those are stored. Producer's errors: {self._world.producer.trouble or 'none'}"
        )
        print("states: " + ", ".join(f"{state} {count:,}" for state, count in sorted(balance.states.items())))
        print(
            f"handlers that ended more than once: {balance.again:,}; dead by three lost workers: {balance.lost_workers}"
        )
        print(f"all had ended {ended:.1f} s after the load" if ended is not None else "NOT all have ended")
        self._print_recoveries()
        for fault, count in balance.faults.items():
            print(f"WRONG: {fault}: {count:,}")
        for example in balance.examples:
            print(f"  {example}")
        print("even" if not balance.faults and ended is not None else "NOT even")

    def _print_recoveries(self) -> None:
        took: dict[str, list[float]] = defaultdict(list)
        for at, name in self._struck:
            found = self._record.recovered(at, 0.9 * KINDS_THAT_END * self._options.rate)
            took[name].append(float("inf") if found is None else found)
        print(
            f"\nseconds from a fault until 0.9 of {self._options.rate:g} jobs/s went through again (the worst of each kind):"
        )
        for name, all_of_them in sorted(took.items(), key=lambda item: -max(item[1])):
            print(f"  {name:32} {max(all_of_them):6.1f}   ({len(all_of_them)} times)")


if __name__ == "__main__":
    sys.exit(main())
