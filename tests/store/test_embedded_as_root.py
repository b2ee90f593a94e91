"""The server we start ourselves, as root: it runs as somebody else, and nothing of others is opened for it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from skiplock.core.errors import ConfigurationError
from skiplock.store import embedded_binaries
from skiplock.store.embedded import start_server
from skiplock.store.embedded_binaries import find_binaries, permitted
from tests.support import eventually
from tests.support.embedded import (
    BINARIES,
    ask,
    is_alive,
    modes_up,
    parent_command,
    postmaster,
    server_user,
    start,
)

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="about what root must not do")


@pytest.mark.parametrize("name", ["root", "no-such-user"])
def test_the_servers_user_must_exist_and_not_be_root(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKIPLOCK_EMBEDDED_USER", name)
    with pytest.raises(ConfigurationError, match="SKIPLOCK_EMBEDDED_USER"):
        start()


def closed_installation(place: Path) -> Path:
    """The server's programs, as deep and as closed as in a virtual environment below root's home."""
    home = place / "home"
    home.mkdir()
    source = find_binaries(BINARIES)
    target = home / "site" / source.parts[-3] / source.parts[-2]
    shutil.copytree(source.parent, target, symlinks=True, ignore=shutil.ignore_patterns("include", "*.a", "pgxs"))
    libraries = source.parents[2] / f"{source.parts[-3]}.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, home / "site" / libraries.name)
    home.chmod(0o700)
    return target / "bin"


def test_programs_out_of_reach_are_copied_and_nothing_is_opened(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_binaries, "CACHE", place / "cache")
    binaries = closed_installation(place)
    assert not permitted(server_user(), "-x", binaries)
    before = modes_up(binaries)
    for _ in range(2):
        old = os.umask(0o077)  # root's may be that strict; the copy must be readable all the same
        try:
            with start_server(binaries=binaries) as server:
                assert server.bin.is_relative_to(place / "cache")
                assert ask(server, "SELECT 1") == 1
        finally:
            os.umask(old)
        (copied,) = (place / "cache").iterdir()
        made = copied.stat().st_ino
    assert modes_up(binaries) == before
    assert made == copied.stat().st_ino
    assert (place / "cache").stat().st_uid == 0


def test_a_damaged_copy_is_made_anew(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded_binaries, "CACHE", place / "cache")
    binaries = closed_installation(place)
    first = embedded_binaries.provide_binaries(binaries, server_user())
    (first.bin / "initdb").unlink()
    second = embedded_binaries.provide_binaries(binaries, server_user())
    assert second.bin == first.bin
    assert (second.bin / "initdb").is_file()


@pytest.mark.parametrize("trouble", ["nowhere", "others"])
def test_without_a_trustworthy_cache_a_temporary_copy_is_used(
    place: Path, trouble: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = place / "missing" / "cache" if trouble == "nowhere" else place / "open"
    if trouble == "others":
        cache.mkdir()
        cache.chmod(0o777)
    monkeypatch.setattr(embedded_binaries, "CACHE", cache)
    with start_server(binaries=closed_installation(place)) as server:
        copy = server.bin
        assert not copy.is_relative_to(place)
        assert ask(server, "SELECT 1") == 1
        assert permitted(server_user(), "-x", copy)
    assert not copy.exists()


def test_data_out_of_reach_is_refused_and_nothing_is_opened(place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(0o700)
    before = modes_up(closed)
    with pytest.raises(ConfigurationError, match="cannot reach"):
        start(closed / "more" / "data")
    assert modes_up(closed) == before
    assert list(closed.iterdir()) == []


def test_a_folder_of_root_is_not_given_away(place: Path) -> None:
    data = place / "data"
    data.mkdir(0o755)
    before = modes_up(data)
    with pytest.raises(ConfigurationError, match="does not belong to the user who runs PostgreSQL"):
        start(data)
    assert modes_up(data) == before


def test_the_server_is_not_root_and_sees_none_of_roots_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_SECRET", "hunter2")
    with start() as server:
        assert server.data.stat().st_uid == server_user().uid
        environment = Path(f"/proc/{postmaster(server)}/environ")
        if environment.exists():
            assert "hunter2" not in environment.read_text()


def test_an_ordinary_user_starts_and_root_attaches(place: Path) -> None:
    user = server_user()
    with start() as mine:
        programs = mine.bin  # where the user can reach them
    data = place / "mine" / "data"
    data.parent.mkdir()
    os.chown(data.parent, user.uid, user.gid)
    command = parent_command(data, binaries=programs, user=user)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        with start(data) as server:
            assert server.attached
            assert ask(server, "SELECT 1") == 1
        process.kill()
    with start(data) as server:  # a kept server outlives its starter, and is found again
        assert server.attached
    pid = postmaster(server)
    os.kill(pid, signal.SIGQUIT)
    eventually(lambda: not is_alive(pid))
