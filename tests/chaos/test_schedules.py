"""Schedules over several hosts whose clocks disagree, one of which dies at a tick: one job for each fire, none lost.

Kinds: a tick on every scheduler (CRON-46, 52), clocks apart (CRON-50), a leader that is killed at the tick (CRON-34, 39, 53).

To see it fail: let skiplock/upkeep/schedules.py judge by `datetime.now(UTC)` rather than by `look.now`, and take the comparison with
`seen` out of fire_schedules.
"""

from __future__ import annotations

from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

from tests.chaos.test_clock import Clock
from tests.support.databases import connect
from tests.support.fleets import Fleet, fleet, one, rows
from tests.support.schedule_jobs import TICKS
from tests.support.waiting import eventually

APART = 300.0  # seconds
OPTIONS = ("--beat-every", "0.3", "--lost-after", "1.5", "--log-level", "info")


def test_three_hosts_and_one_is_killed_at_the_tick(fresh_dsn: str, tmp_path: Path) -> None:
    with connect(fresh_dsn) as connection:
        connection.execute(TICKS)
    leader = "SELECT w.pid FROM skiplock.duties d JOIN skiplock.workers w ON w.id = d.worker"
    with ExitStack() as stack:
        hosts: list[Fleet] = []
        for off in (-APART, 0.0, APART):
            clock = Clock(tmp_path / f"clock{off}")
            clock.step(off)
            started = fleet(fresh_dsn, tmp_path, processes=None, options=OPTIONS, target="tests.support.schedule_jobs:app", environment=clock.environment)  # fmt: skip
            hosts.append(stack.enter_context(started))
        eventually(lambda: one(fresh_dsn, "SELECT count(*) FROM skiplock.workers") == 3, seconds=30)
        for _ in range(2):
            ticks = one(fresh_dsn, "SELECT count(*) FROM ticks")
            eventually(lambda ticks=ticks: one(fresh_dsn, "SELECT count(*) FROM ticks") >= ticks + 2, seconds=30)
            # Whoever leads is in the midst of a tick, or has just done one.
            pid = eventually(lambda: rows(fresh_dsn, leader), seconds=30)[0][0]
            [leading] = [host for host in hosts if host.process.pid == pid]
            leading.process.kill()
            leading.wait()
        ticks = one(fresh_dsn, "SELECT count(*) FROM ticks")
        eventually(lambda: one(fresh_dsn, "SELECT count(*) FROM ticks") >= ticks + 3, seconds=30)
        offs = {
            round(row[0] / APART) for row in rows(fresh_dsn, "SELECT host - extract(epoch FROM at)::float8 FROM ticks")
        }
        assert len(offs) >= 2, "else the hosts' clocks were right"
    jobs = rows(fresh_dsn, "SELECT (meta->>'scheduled_for')::timestamptz AS fire FROM skiplock.jobs ORDER BY 1")
    fires = [row[0] for row in jobs]
    assert len(set(fires)) == len(fires), "a fire was made twice"
    gaps = {(later - fire).total_seconds() for fire, later in pairwise(fires)}
    assert gaps == {1.0}, "a fire was lost"
    assert one(fresh_dsn, "SELECT count(*) FROM ticks WHERE at < fire") == 0
