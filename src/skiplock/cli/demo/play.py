"""The demo itself, from the first server to the summary."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from skiplock.app import Skiplock
from skiplock.cli.demo import jobs, truth
from skiplock.cli.demo.data import shop
from skiplock.cli.demo.documents import module_names
from skiplock.cli.demo.fleet import Fleet
from skiplock.cli.demo.screen import Screen, open_screen
from skiplock.cli.demo.servers import Servers
from skiplock.cli.demo.summary import Hit, Summary
from skiplock.cli.demo.surroundings import INDEX, MAIL, WEBHOOK, Surroundings
from skiplock.cli.demo.truth import Snapshot, Worker
from skiplock.core.errors import ConfigurationError, SkiplockError
from skiplock.core.settings import LISTEN_VARIABLE
from skiplock.store.call import Call, nothing
from skiplock.store.embedded import start_server
from skiplock.store.migrate import migrate
from skiplock.store.pool import SyncDatabase

SCHEMA = "skiplock"
KILL_AT = 0.4  # of all jobs settled: then one worker dies
LOOK_EVERY = 0.1  # seconds
RESERVE = 15.0  # seconds of the limit that are kept for stopping
QUERY = "temporary file"
_FIRST_RETRY = {
    MAIL: "a mailbox is busy (450): that mail waits, then is tried again",
    WEBHOOK: "the partner is busy (503): that call waits, then is tried again",
}


@dataclass(slots=True)
class Kill:
    """The worker we killed, what it held, and how that went on."""

    worker: Worker
    held: frozenset[int]
    at: float
    recovered_after: float | None = None
    replaced_by: int | None = None


@dataclass(slots=True)
class Scene:
    """Everything that is up while the demo runs."""

    screen: Screen
    database: SyncDatabase
    fleet: Fleet
    enqueued: Sequence[int]
    deadline: float
    kill: Kill | None = None
    known: set[int] = field(default_factory=set)  # pids of workers announced
    told: set[str] = field(default_factory=set)


def play(console: Console, output: Path, dsn: str | None, seconds_limit: float, pace: float) -> Summary:
    """Run the demo. Whatever is started here is stopped here, also on an error or Ctrl-C."""
    began = time.monotonic()
    where = Surroundings(smtp_port=0, http_port=0, output=output.resolve(), pace=pace)
    with ExitStack() as stack:
        screen = stack.enter_context(open_screen(console))
        dsn = dsn or _embedded(stack, screen)
        database = _database(stack, dsn)
        where.clear()
        servers = stack.enter_context(Servers(where.mails, pace))
        where = Surroundings(servers.smtp_port, servers.http_port, where.output, pace)
        screen.event(f"mail server on port {servers.smtp_port}, partner's web server on port {servers.http_port}")
        ids = _enqueue(dsn, screen)
        fleet = stack.enter_context(
            Fleet(
                {"SKIPLOCK_DATABASE_URL": dsn, LISTEN_VARIABLE: dsn, "SKIPLOCK_SCHEMA": SCHEMA, **where.to_env()},
                where.worker_log,
            )
        )
        scene = Scene(screen, database, fleet, ids, deadline=began + seconds_limit - RESERVE)
        _watch(scene)
        hits = truth.search(database, QUERY)
        screen.event(f"search for “{QUERY}” finds " + (", ".join(hit.module for hit in hits[:3]) or "nothing"), "green")
        code = fleet.stop()
        seen = truth.snapshot(database)
        screen.event("fleet stopped" if code == 0 else f"the fleet ended with {code}", "" if code == 0 else "bold red")
        screen.update(seen)
        return _summary(scene, servers, where, seen, hits, time.monotonic() - began)


def _embedded(stack: ExitStack, screen: Screen) -> str:
    began = time.monotonic()
    server = stack.enter_context(start_server())
    screen.event(f"PostgreSQL is up after {time.monotonic() - began:.1f} s, a temporary one")
    return server.dsn()


def _database(stack: ExitStack, dsn: str) -> SyncDatabase:
    migrate(dsn)
    database = SyncDatabase(dsn)
    stack.callback(database.close)
    left = truth.traces(database)
    if left:
        raise ConfigurationError(f"the demo needs a database it has not been in: {left}; give it a fresh one, or none")
    truth.create_documents(database)
    return database


def _enqueue(dsn: str, screen: Screen) -> list[int]:
    data = shop()
    orders = [order.number for order in data.orders]
    new = [jobs.send_welcome.job(to=customer.email, name=customer.name) for customer in data.customers]
    new += [jobs.make_invoice.job(order=order) for order in orders]
    new += [jobs.post_webhook.job(order=order) for order in orders]
    new += [jobs.index_document.job(module=module) for module in module_names()]
    with Skiplock(dsn, schema=SCHEMA) as app:
        app.run(Call("SELECT 1", (), nothing))  # connect first: the clock is for the jobs
        began = time.monotonic()
        handles = app.enqueue_many(new)
        took = time.monotonic() - began
    screen.event(f"{len(handles)} jobs enqueued in {took * 1000:.0f} ms, all or none")
    return [handle.id for handle in handles]


def _watch(scene: Scene) -> None:
    """Look at the database until every job is settled, and kill a worker on the way."""
    while time.monotonic() < scene.deadline:
        seen = truth.snapshot(scene.database)
        _tell(scene, seen)
        scene.screen.update(seen)
        if seen.settled() >= len(scene.enqueued):
            return
        if scene.fleet.ended:
            raise SkiplockError(f"the workers ended by themselves; the end of {scene.fleet.log}:\n{scene.fleet.tail()}")
        if scene.kill is None and seen.settled() >= KILL_AT * len(scene.enqueued):
            scene.kill = _kill(scene, seen)
        time.sleep(LOOK_EVERY)
    scene.screen.event("time is up", "bold red")


def _kill(scene: Scene, seen: Snapshot) -> Kill | None:
    """SIGKILL to the busiest worker. It is frozen first, so that we know for sure what it held when it died."""
    ours = [worker for worker in seen.workers if scene.fleet.owns(worker.pid)]
    victim = max(ours, key=lambda worker: worker.holds, default=None)
    if victim is None or len(ours) < 2 or victim.holds == 0:
        return None  # not now; the next look may find it busy
    os.kill(victim.pid, signal.SIGSTOP)
    time.sleep(0.1)  # a statement under way in the server gets done
    held = truth.held_by(scene.database, victim.id)
    if not held:
        os.kill(victim.pid, signal.SIGCONT)
        return None
    os.kill(victim.pid, signal.SIGKILL)
    scene.screen.killed(victim.pid)
    scene.screen.event(f"SIGKILL to worker pid {victim.pid}, which holds {_jobs(len(held))}", "bold red")
    return Kill(victim, held, time.monotonic())


def _tell(scene: Scene, seen: Snapshot) -> None:
    """Say what is new."""
    for worker in seen.workers:
        if worker.pid not in scene.known:
            scene.known.add(worker.pid)
            _welcome(scene, worker)
    for queue, text in _FIRST_RETRY.items():
        if seen.retried.get(queue, 0) and queue not in scene.told:
            scene.told.add(queue)
            scene.screen.event(text, "yellow")
    if seen.count("dead") and "dead" not in scene.told:
        scene.told.add("dead")
        scene.screen.event("a mailbox does not exist (550): that mail is dead, and kept", "red")
    kill = scene.kill
    if kill and kill.recovered_after is None and not truth.held_by(scene.database, kill.worker.id):
        kill.recovered_after = time.monotonic() - kill.at
        scene.screen.event(
            f"{_jobs(len(kill.held))} taken back from the dead worker after {kill.recovered_after:.1f} s", "bold green"
        )


def _welcome(scene: Scene, worker: Worker) -> None:
    if scene.kill is None:
        scene.screen.event(f"worker pid {worker.pid} is at work")
        return
    scene.kill.replaced_by = worker.pid
    after = time.monotonic() - scene.kill.at
    scene.screen.event(f"worker pid {worker.pid} works in its place after {after:.1f} s", "bold green")


def _summary(
    scene: Scene, servers: Servers, where: Surroundings, seen: Snapshot, hits: tuple[Hit, ...], seconds: float
) -> Summary:
    final, kill, data = truth.final_rows(scene.database), scene.kill, shop()
    return Summary(
        enqueued=len(scene.enqueued),
        completed=seen.count("completed"),
        dead=seen.count("dead"),
        lost=sum(1 for id in scene.enqueued if id not in final),
        twice=sum(number - 1 for number in final.values()),
        retried=seen.retries,
        rescued=len(kill.held & set(final)) if kill else 0,
        held=len(kill.held) if kill else 0,
        mails=len(set(servers.mail.delivered.values())),
        mails_expected=sum(1 for customer in data.customers if not customer.email.startswith("nobody@")),
        mail_duplicates=servers.mail.duplicates,
        invoices=sum(1 for order in data.orders if (where.invoices / f"invoice-{order.number}.pdf").is_file()),
        invoices_expected=len(data.orders),
        webhooks=len(set(servers.webhook.delivered.values())),
        webhooks_expected=len(data.orders),
        webhook_duplicates=servers.webhook.duplicates,
        documents=truth.documents(scene.database),
        documents_expected=seen.total(INDEX),
        dead_expected=sum(1 for customer in data.customers if customer.email.startswith("nobody@")),
        killed_pid=kill.worker.pid if kill else None,
        recovered_after=kill.recovered_after if kill else None,
        fleet_exit=scene.fleet.exit_code,
        seconds=seconds,
        query=QUERY,
        hits=hits,
    )


def _jobs(number: int) -> str:
    return "1 job" if number == 1 else f"{number} jobs"
