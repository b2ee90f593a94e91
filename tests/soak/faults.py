"""The faults. Each is a function of the world; what must be undone later is put on its agenda."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import psycopg

from skiplock.store.embedded import EmbeddedServer
from tests.soak import jobs
from tests.soak.producer import Producer
from tests.support.fleets import Fleet

OURS = "application_name LIKE 'skiplock%' AND pid <> pg_backend_pid()"
CUT = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {OURS}"


@dataclass
class World:
    """Everything that can be hurt. `make(name)` starts a fleet; `agenda`: what to do later, by monotonic time."""

    server: EmbeddedServer
    random: Random
    producer: Producer
    make: Callable[[str], Fleet]
    folder: Path
    fleets: dict[str, Fleet] = field(default_factory=dict)
    agenda: list[tuple[float, Callable[[], None]]] = field(default_factory=list)

    @property
    def dsn(self) -> str:
        return self.server.dsn()

    def later(self, seconds: float, act: Callable[[], None]) -> None:
        """Do this in so many seconds."""
        self.agenda.append((time.monotonic() + seconds, act))

    def keep(self, *, all_of_it: bool = False) -> None:
        """Do what is due, and start fleets that have ended, as a platform does."""
        now = time.monotonic()
        due = [entry for entry in self.agenda if all_of_it or entry[0] <= now]
        self.agenda = [entry for entry in self.agenda if entry not in due]
        for _, act in sorted(due, key=lambda entry: entry[0]):
            act()
        for name, fleet in list(self.fleets.items()):
            if fleet.process.poll() is not None:
                self.fleets[name] = self.make(name)

    def sql(self, *statements: str) -> None:
        """Run these on a connection of our own, which no fault cuts."""
        with psycopg.connect(self.dsn, autocommit=True, application_name="soak") as connection:
            for statement in statements:
                connection.execute(statement)  # type: ignore[call-overload]

    def pids(self) -> list[int]:
        """The worker processes: children of the fleets, and the fleet that is one itself."""
        owned = [int(pid) for pid in os.listdir("/proc") if pid.isdigit()]
        return [pid for pid in owned if any(f.owns(pid) for f in self.fleets.values()) and not self._supervises(pid)]

    def _supervises(self, pid: int) -> bool:
        return pid == self.fleets["supervised"].process.pid


def kill(world: World) -> None:
    """SIGKILL a worker process."""
    _signal(world.random.choice(world.pids()), signal.SIGKILL)


def kill_supervisor(world: World) -> None:
    """SIGKILL the supervisor."""
    _signal(world.fleets["supervised"].process.pid, signal.SIGKILL)


def suspend(world: World) -> None:
    """SIGSTOP a worker process for up to 12 seconds."""
    pid = world.random.choice(world.pids())
    _signal(pid, signal.SIGSTOP)
    world.later(world.random.uniform(0.5, 12.0), lambda: _signal(pid, signal.SIGCONT))


def deploy(world: World) -> None:
    """SIGTERM to a fleet, which is started again."""
    _signal(world.random.choice(list(world.fleets.values())).process.pid, signal.SIGTERM)


def restart_server(world: World) -> None:
    """The server restarts."""
    world.server.restart("fast")


def crash_server(world: World) -> None:
    """The server crashes and comes back."""
    world.server.restart("immediate")


def cut_all(world: World) -> None:
    """Every connection is terminated."""
    world.sql(CUT)


def cut_one(world: World) -> None:
    """One connection is terminated."""
    world.sql(f"{CUT} ORDER BY random() LIMIT 1")


def lock_table(world: World) -> None:
    """The running jobs are locked for 1.5 seconds."""
    world.sql("BEGIN; LOCK TABLE skiplock.jobs_running; SELECT pg_sleep(1.5); COMMIT")


def _setting(name: str, value: str) -> Callable[[World], None]:
    def set_for_a_while(world: World) -> None:
        def undo() -> None:
            # The session that undoes it must not suffer from it itself.
            world.sql("SET default_transaction_read_only = off", f"ALTER DATABASE postgres RESET {name}", CUT)

        world.sql(f"ALTER DATABASE postgres SET {name} = '{value}'", CUT)
        world.later(3.0, undo)

    set_for_a_while.__doc__ = f"{name} = {value} for 3 seconds."
    set_for_a_while.__name__ = name
    return set_for_a_while


def old_snapshot(world: World) -> None:
    """A snapshot is held for 4 seconds."""
    connection = psycopg.connect(world.dsn, application_name="soak")
    connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
    connection.execute("SELECT 1")
    world.later(4.0, connection.close)


def block_loop(world: World) -> None:
    """A handler blocks its event loop for 4 seconds."""
    world.producer.send([("block", lambda n: jobs.block.job(n, 4.0))])


def hold_interpreter(world: World) -> None:
    """A handler holds the interpreter's lock for 4 seconds."""
    world.producer.send([("hold", lambda n: jobs.hold.job(n, 4))])


def poison(world: World) -> None:
    """A handler kills its process, twice."""
    world.producer.send([("poison", jobs.poison.job)])


FAULTS: tuple[Callable[[World], None], ...] = (
    kill,
    kill_supervisor,
    suspend,
    deploy,
    restart_server,
    crash_server,
    cut_all,
    cut_one,
    lock_table,
    _setting("statement_timeout", "15ms"),
    _setting("lock_timeout", "1ms"),
    _setting("default_transaction_isolation", "serializable"),
    _setting("default_transaction_read_only", "on"),
    _setting("idle_session_timeout", "300ms"),
    old_snapshot,
    block_loop,
    hold_interpreter,
    poison,
)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # it had ended by itself
