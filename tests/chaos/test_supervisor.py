"""The supervisor keeps its fleet complete whatever happens to it, and ends in time with the right exit code.

Kinds: a child is killed again and again (LIFE-20), a child that ends by itself, with whatever code (LIFE-24, LIFE-59), a signal for
the whole group (LIFE-22), the same order twice or thrice (case 9, LIFE-51), a claim, an outage or a handler that does not let go
(LIFE-54, LIFE-55), descriptors that children inherit or that pile up (LIFE-42). What to remove to see them fail is said with each.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from skiplock.store.embedded import EmbeddedServer, start_server
from skiplock.store.migrate import migrate
from tests.support.chaos_jobs import make_runs
from tests.support.fleet_jobs import BROKEN, JOBS
from tests.support.fleets import ROOT, Fleet, add, fleet, one, rows, states
from tests.support.server import SETTINGS, binaries_under_test
from tests.support.waiting import eventually

QUICK = ("--beat-every", "0.3", "--lost-after", "1")
FULL = os.environ.get("SKIPLOCK_HAMMER") == "full"
TERM, INT, HUP = signal.SIGTERM, signal.SIGINT, signal.SIGHUP


@pytest.fixture(autouse=True)
def _a_terminal_that_can_close() -> Iterator[None]:
    """Whoever runs the tests may have been started under nohup, which processes inherit."""
    before = signal.signal(HUP, signal.SIG_DFL)
    yield
    signal.signal(HUP, before)


# --- children that die ------------------------------------------------------------------------------------------------


def test_a_child_that_is_killed_again_and_again_under_load(fresh_dsn: str, tmp_path: Path) -> None:
    """The other works on, the killed one is replaced each time, and no job is lost or settled twice."""
    make_runs(fresh_dsn)
    with fleet(fresh_dsn, tmp_path, target=JOBS, queues={"default": 20}, processes=2) as attacked:
        [(_, survivor), _] = attacked.ready(2)
        for kills in range(1, 5):
            eventually(lambda: len(attacked.workers()) == 2)
            victim = next(pid for _, pid in attacked.workers() if pid != survivor)
            while not one(fresh_dsn, "SELECT count(*) FROM runs WHERE pid = %s", victim):
                add(fresh_dsn, "wait", 40, '{"seconds": 0.05}')
            os.kill(victim, signal.SIGKILL)
            eventually(lambda k=kills: len(attacked.events("child_rescued")) == k)
        eventually(lambda: states(fresh_dsn).keys() == {"completed"})
        assert [event["pid"] for event in attacked.events("child_died")].count(survivor) == 0
        eventually(lambda: len(attacked.workers()) == 2)
    lost = one(fresh_dsn, "SELECT count(*) FROM skiplock.attempts WHERE verdict = 'lost'")
    jobs = one(fresh_dsn, "SELECT count(*) FROM skiplock.jobs")
    assert (
        jobs <= one(fresh_dsn, "SELECT count(*) FROM runs") <= jobs + lost
    )  # whatever ran again had been lost with a victim


def test_a_crash_loop_pauses_and_recovers(fresh_dsn: str, tmp_path: Path) -> None:
    """Pauses double while it goes on; the first start that succeeds is the end of it. Remove the pause in `_crashed`."""
    broken = tmp_path / "broken"
    with fleet(fresh_dsn, tmp_path, target=JOBS, environment={BROKEN: str(broken)}) as crashing:
        [(_, pid)] = crashing.ready()
        broken.write_text("7")
        os.kill(pid, signal.SIGKILL)
        died = eventually(lambda: found if len(found := crashing.events("child_died")) >= 4 else None) or []
        assert [event["restart_in"] for event in died[:4]] == [0.1, 0.2, 0.4, 0.8]
        assert [event["code"] for event in died[:4]] == [-9, 7, 7, 7]
        broken.unlink()
        crashing.ready()
        assert crashing.process.poll() is None


@pytest.mark.parametrize("code", [0, 3, 84, 85])
def test_a_handler_that_ends_its_process_is_a_death_whatever_the_code(
    fresh_dsn: str, tmp_path: Path, code: int
) -> None:
    """0 is not "finished", 3 no wrong configuration once it works, 84 and 85 not the supervisor's own "drained" and "recycled".
    Remove the look at `has_left` in `Supervisor._ended`."""
    make_runs(fresh_dsn)
    with fleet(fresh_dsn, tmp_path, target=JOBS, options=("--grace", "5")) as quitting:
        [(_, pid)] = quitting.ready()
        [job] = add(fresh_dsn, "quit", 1, f'{{"code": {code}}}', max_attempts=1)
        eventually(lambda: states(fresh_dsn) == {"dead": 1})
        assert "JobLostError" in one(fresh_dsn, "SELECT error FROM skiplock.jobs WHERE id = %s", job)
        [died] = quitting.events("child_died")
        assert (died["pid"], died["code"]) == (pid, code)
        eventually(lambda: [p for _, p in quitting.workers() if p != pid])


def test_a_child_that_someone_else_tells_to_stop_is_replaced(fresh_dsn: str, tmp_path: Path) -> None:
    """It finishes its job, ends in good order, and its place is filled again. Remove `_refill` in `Supervisor._ended`."""
    make_runs(fresh_dsn)
    with fleet(fresh_dsn, tmp_path, target=JOBS) as told:
        [(_, pid)] = told.ready()
        add(fresh_dsn, "wait", 1, '{"seconds": 1}')
        eventually(lambda: one(fresh_dsn, "SELECT count(*) FROM runs") == 1)
        os.kill(pid, TERM)
        eventually(lambda: states(fresh_dsn) == {"completed": 1})
        eventually(lambda: [p for _, p in told.workers() if p != pid])
        assert told.process.poll() is None and not told.events("child_rescued")


# --- descriptors ------------------------------------------------------------------------------------------------------


@contextmanager
def scripted(dsn: str, processes: int, script: str, failing: int = 0) -> Iterator[subprocess.Popen[str]]:
    """A supervisor of children that run this script. See tests/support/supervising.py."""
    command = [sys.executable, "-m", "tests.support.supervising", dsn, str(processes), script, str(failing)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def heard(process: subprocess.Popen[str], name: str) -> Iterator[dict[str, Any]]:
    """Its events of that name, as they come."""
    assert process.stdout is not None
    for line in process.stdout:
        event: dict[str, Any] = json.loads(line)
        if event["event"] == name:
            yield event


def open_files(pid: int) -> list[str]:
    """What each descriptor of a process is."""
    folder = Path(f"/proc/{pid}/fd")
    return sorted(os.readlink(folder / name) for name in os.listdir(folder))


def test_descriptors_do_not_pile_up_over_sixty_restarts(fresh_dsn: str) -> None:
    """Each child registers, dies, and is reported on the database; those of the supervisor and of the last child are what they
    were at the first. Remove `child.close()` in `Supervisor._reap`."""
    with scripted(fresh_dsn, 2, "tell(os.getpid())\nos._exit(1)") as process:
        deaths = heard(process, "child_rescued")
        next(deaths)
        before = len(open_files(process.pid))
        for _ in range(60):
            next(deaths)
        assert len(open_files(process.pid)) <= before + 4  # of the two children that may be starting at this moment
        process.send_signal(TERM)
        process.communicate(timeout=20)
        assert process.returncode in (0, 1)


def test_a_system_that_lets_no_process_start_for_a_while(fresh_dsn: str) -> None:
    """The supervisor tries again; it does not fall, and take the others with it. Remove `except OSError` in `_start`."""
    with scripted(fresh_dsn, 2, "time.sleep(60)", failing=3) as process:
        refused = heard(process, "child_died")
        for _ in range(3):
            assert "could not be started" in next(refused)["reason"]
        assert [next(heard(process, "child_restarted"))["pid"] for _ in range(2)]
        process.send_signal(TERM)
        process.communicate(timeout=20)
        assert process.returncode == 0


def test_children_inherit_nothing_but_what_is_meant_for_them(fresh_dsn: str) -> None:
    """Not the supervisor's connection, which is open from the first child's death on, nor the pipes of other children."""
    script = "tell(os.getpid())\nif sys.argv[sys.argv.index('--parent-pipe')]: time.sleep(0.3)\nos._exit(1)"
    with scripted(fresh_dsn, 3, script) as process:
        rescues, starts = heard(process, "child_rescued"), heard(process, "child_restarted")
        next(rescues)
        assert any("socket" in what for what in open_files(process.pid))
        pid = next(starts)["pid"]
        found = eventually(lambda: _files_after_exec(pid))
        assert not [what for what in found if "socket" in what]
        assert len([what for what in found if what.startswith("/memfd")]) == 1
        assert len([what for what in found if what.startswith("pipe")]) <= 2  # the parent's, and stdout
        process.send_signal(TERM)
        process.communicate(timeout=20)


def _files_after_exec(pid: int) -> list[str]:
    """Once it is the child's program, and no longer a copy of the supervisor on its way there."""
    command = Path(f"/proc/{pid}/cmdline").read_bytes()
    return open_files(pid) if b"--parent-pipe" in command else []


# --- exit codes -------------------------------------------------------------------------------------------------------


def _blocked_claim(dsn: str, stack: ExitStack) -> None:
    blocker = stack.enter_context(psycopg.connect(dsn))
    blocker.execute("LOCK TABLE skiplock.jobs_ready IN ACCESS EXCLUSIVE MODE")
    waits = (
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'skiplock claim'"
    )
    eventually(lambda: one(dsn, waits), seconds=40)


def _waiting(dsn: str, _: ExitStack) -> None:
    add(dsn, "wait", 3, '{"seconds": 2}')
    eventually(lambda: one(dsn, "SELECT count(*) FROM runs") == 3)


def _stubborn(dsn: str, _: ExitStack) -> None:
    add(dsn, "stubborn", 1, '{"seconds": 100}')
    eventually(lambda: one(dsn, "SELECT count(*) FROM runs") == 1)


BUSY: dict[str, Callable[[str, ExitStack], None]] = {
    "idle": lambda dsn, stack: None,
    "in a claim": _blocked_claim,
    "in jobs": _waiting,
    "with a handler that swallows cancellation": _stubborn,
}
Orders = list[tuple[float, signal.Signals]]  # (seconds after the one before, signal)
ORDERS: dict[str, Orders] = {
    "TERM": [(0, TERM)],
    "INT": [(0, INT)],
    "HUP": [(0, HUP)],
    "TERM twice within 50 ms": [(0, TERM), (0.05, TERM)],
    "INT thrice within 0.1 s": [(0, INT), (0.05, INT), (0.05, INT)],
    "TERM twice": [(0, TERM), (1.2, TERM)],
    "INT thrice": [(0, INT), (1.2, INT), (1.2, INT)],
}


def cases() -> Iterator[Any]:
    """Every third of them; SKIPLOCK_HAMMER=full: all."""
    whole = itertools.product(["supervised", "bare"], BUSY, ORDERS)
    for number, (kind, busy, orders) in enumerate(whole):
        if FULL or number % 3 == 0:
            yield pytest.param(kind, busy, orders, id=f"{kind}, {busy}, {orders}")


@pytest.mark.parametrize(("kind", "what", "order"), list(cases()))
def test_it_ends_in_time_with_the_right_code(fresh_dsn: str, tmp_path: Path, kind: str, what: str, order: str) -> None:
    """0 if it could end in good order, 128 + signal if it was told again before it had. Grace 3 s; what is left then is given
    back with its attempt. Remove `unless` around the claim loop in worker.py, DEBOUNCE in signals.py, SIGHUP there; close the Runner in process.py."""
    processes, busy, orders = 1 if kind == "supervised" else None, BUSY[what], ORDERS[order]
    make_runs(fresh_dsn)
    options = ("--grace", "3", "--poll-every", "0.2")
    with (
        fleet(fresh_dsn, tmp_path, target=JOBS, processes=processes, options=options) as told,
        ExitStack() as stack,
    ):
        told.ready()
        busy(fresh_dsn, stack)
        began = time.monotonic()
        sent, again = _send(told, orders)
        code = told.wait()
        assert time.monotonic() - began < 14
        assert code in ({0} if not again else {128 + sent, 137} if again > 1 else {128 + sent})
    assert not states(fresh_dsn).keys() - {"completed", "ready", "running"}
    if busy is not _blocked_claim and again < 2:
        assert "running" not in states(fresh_dsn)
        assert one(fresh_dsn, "SELECT count(*) FROM skiplock.jobs_ready WHERE attempt > 0") == 0
        assert one(fresh_dsn, "SELECT count(*) FROM skiplock.workers") == 0


def _send(told: Fleet, orders: Orders) -> tuple[int, int]:
    """Answers the signal, and how often it counts beyond the first time: echoes do not, nor what comes too late."""
    again, at = 0, time.monotonic()
    for after, number in orders:
        at += after
        eventually(lambda until=at: time.monotonic() >= until or told.process.poll() is not None, pause=0.005)
        if told.process.poll() is not None:
            break
        told.signal(number)
        again += after >= 1.0
    return orders[0][1], again


@pytest.fixture(scope="module")
def own_server() -> Iterator[EmbeddedServer]:
    with start_server(binaries=binaries_under_test(), settings=SETTINGS) as server:
        migrate(server.dsn())
        make_runs(server.dsn())
        yield server


@pytest.mark.parametrize("gone", ["stopped", "silent"])
@pytest.mark.parametrize("processes", [1, None], ids=["supervised", "bare"])
def test_told_to_stop_while_the_database_is_away(
    own_server: EmbeddedServer, tmp_path: Path, processes: int | None, gone: str
) -> None:
    """Refused, or taken and never answered (the server's processes are stopped): it ends in time all the same, with 0. What its
    job had achieved could not be said: the job is found lost. Remove the Budget in `Worker._shut_down`."""
    dsn = own_server.dsn()
    rows(dsn, "DELETE FROM skiplock.jobs RETURNING 1")
    rows(dsn, "DELETE FROM runs RETURNING 1")
    with fleet(dsn, tmp_path, target=JOBS, processes=processes, options=("--grace", "2")) as told:
        told.ready()
        add(dsn, "wait", 2, '{"seconds": 1}')
        eventually(lambda: one(dsn, "SELECT count(*) FROM runs") == 2)
        with _away(own_server, gone):
            began = time.monotonic()
            told.signal(TERM)
            assert told.wait() == 0
            assert time.monotonic() - began < 14


@contextmanager
def _away(server: EmbeddedServer, how: str) -> Iterator[None]:
    if how == "stopped":
        server.halt("fast")
        yield
        server.resume()
        return
    pids = _family(int((server.data / "postmaster.pid").read_text().split()[0]))
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)


def _family(parent: int) -> list[int]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [parent, *[int(child) for child in children]]


def test_a_child_that_dies_while_the_database_is_away_holds_nobody_up(
    own_server: EmbeddedServer, tmp_path: Path
) -> None:
    """Its report waits for the database, but not once the supervisor is told to stop. Remove FAREWELL in `Supervisor._over`."""
    dsn = own_server.dsn()
    rows(dsn, "DELETE FROM skiplock.jobs RETURNING 1")
    with fleet(dsn, tmp_path, target=JOBS) as told:
        [(_, pid)] = told.ready()
        with _away(own_server, "stopped"):
            os.kill(pid, signal.SIGKILL)
            eventually(lambda: told.events("child_died"))
            began = time.monotonic()
            told.signal(TERM)
            assert told.wait() == 0
            assert time.monotonic() - began < 8


def test_an_order_for_the_whole_group_lets_jobs_finish(fresh_dsn: str, tmp_path: Path) -> None:
    """As a service manager does it that signals all processes of a service: the supervisor, and its children directly."""
    make_runs(fresh_dsn)
    with fleet(fresh_dsn, tmp_path, target=JOBS, processes=2) as told:
        pids = [pid for _, pid in told.ready(2)]
        add(fresh_dsn, "wait", 20, '{"seconds": 2}')
        eventually(lambda: one(fresh_dsn, "SELECT count(*) FROM runs") == 20)
        for pid in (*pids, told.process.pid):
            os.kill(pid, TERM)
        assert told.wait() == 0
    assert states(fresh_dsn) == {"completed": 20}
    assert one(fresh_dsn, "SELECT count(*) FROM skiplock.attempts") == 0


def test_under_nohup_a_terminal_that_closes_is_ignored(fresh_dsn: str, tmp_path: Path) -> None:
    """Remove the look at SIG_IGN in signals.py."""
    signal.signal(HUP, signal.SIG_IGN)  # inherited by what is started now
    with fleet(fresh_dsn, tmp_path, target=JOBS) as told:
        [(_, pid)] = told.ready()
        told.signal(HUP)
        os.kill(pid, HUP)
        add(fresh_dsn, "quick")
        eventually(lambda: states(fresh_dsn) == {"completed": 1})
        assert not told.events("worker_stopping")


def test_a_child_killed_for_not_stopping_tells_where_it_was(fresh_dsn: str, tmp_path: Path) -> None:
    """A handler that blocks the loop: the supervisor's last words say in which line. Takes its 11 s: 0.5 of grace, ten beyond."""
    make_runs(fresh_dsn)
    with fleet(fresh_dsn, tmp_path, target=JOBS, options=("--grace", "0.5")) as blocked:
        blocked.ready()
        [job] = add(fresh_dsn, "block", 1, '{"seconds": 100}', max_attempts=1)
        eventually(lambda: one(fresh_dsn, "SELECT count(*) FROM runs") == 1)
        blocked.signal(TERM)
        assert blocked.wait() == 137
        [died] = blocked.events("child_died")
        assert "did not stop in time" in died["reason"] and "in block" in died["traceback"]
        [told] = blocked.events("loop_blocked")
        assert told["job"] == job and "in block" in told["traceback"]
    assert states(fresh_dsn) == {"ready": 1}
