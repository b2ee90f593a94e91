"""Programs that the tests need and Python's packages do not have: taken from Debian or Ubuntu, without installing anything.

The package, and those libraries it wants that the system lacks, are unpacked into the virtual environment's folder, once.
Root is not needed. Where this is not possible the test that wants it fails and says what to do.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

CACHE = Path(sys.prefix) / "cache" / "debian"
_COMPLETE = "complete"


def unpacked(package: str) -> Path:
    """The folder that holds the package's files, as in `folder/usr/sbin/…`."""
    with _alone():
        target = CACHE / package
        if (target / _COMPLETE).is_file():
            return target
        with tempfile.TemporaryDirectory(dir=CACHE) as draft:
            try:
                _make(package, Path(draft))
            except (OSError, subprocess.CalledProcessError) as error:
                told = getattr(error, "stderr", "") or error
                pytest.fail(f"{package} is needed here: install it and put it on the PATH. ({told})", pytrace=False)
            shutil.rmtree(target, ignore_errors=True)
            Path(draft, "root").rename(target)
        (target / _COMPLETE).touch()
        return target


def libraries(folder: Path) -> list[Path]:
    """Where the loader should look for the libraries that came along."""
    return [path for top in ("usr/lib", "lib") for path in (folder / top).glob("*-linux-gnu*") if path.is_dir()]


@contextmanager
def _alone() -> Iterator[None]:
    """Several test processes want it at once."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(package: str, draft: Path) -> None:
    if shutil.which("apt-get") is None:
        raise OSError(f"there is no apt-get to fetch it with on this {platform.system()}")
    apt: list[str] = []
    if not _is_known(package, apt):
        # A small image knows of no packages at all: learn of them in a place of our own.
        apt = _own_lists(draft)
        _run(["apt-get", *apt, "update"])
    wanted = [package, *_missing(package, apt)]
    files = draft / "files"
    files.mkdir()
    _run(["apt-get", *apt, "download", *wanted], cwd=files)
    for file in files.glob("*.deb"):
        _run(["dpkg-deb", "-x", str(file), str(draft / "root")])


def _own_lists(draft: Path) -> list[str]:
    for folder in ("lists/partial", "cache/archives/partial"):
        (draft / folder).mkdir(parents=True)
    options = [f"Dir::State::lists={draft}/lists", f"Dir::Cache={draft}/cache", "Debug::NoLocking=1"]
    if os.geteuid() == 0:
        options.append("APT::Sandbox::User=root")
    return [word for option in options for word in ("-o", option)]


def _is_known(package: str, apt: Sequence[str]) -> bool:
    done = subprocess.run(["apt-cache", *apt, "show", package], capture_output=True, check=False)
    return done.returncode == 0 and bool(done.stdout.strip())


def _missing(package: str, apt: Sequence[str]) -> list[str]:
    told = _run(["apt-cache", *apt, "depends", "--important", package])
    names = [line.split()[-1] for line in told.splitlines() if line.strip().startswith("Depends: lib")]
    return [name for name in names if not _is_installed(name)]


def _is_installed(package: str) -> bool:
    query = ["dpkg-query", "-W", "-f", "${db:Status-Status}", package]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout == "installed"


def _run(command: Sequence[str], cwd: Path | None = None) -> str:
    environment = {**os.environ, "LC_ALL": "C"}
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd, env=environment).stdout
