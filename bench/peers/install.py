"""Puts each peer into a folder of its own under `.venv-peers`. A file says that it is complete: an interrupted one, or
one whose wishes have changed, is made anew."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

FOLDER = Path(__file__).parent.parent.parent / ".venv-peers"
INSTALL_TIME = 900.0  # seconds
_MARKER = "installed.json"

Say = Callable[[str], None]
Version = tuple[int, int]


class Unavailable(Exception):
    """This peer cannot be had here; the text says why, in a line."""


def with_pip(name: str, packages: Sequence[str], oldest: Version, say: Say) -> None:
    """A virtual environment with these packages."""

    def make(folder: Path) -> None:
        _do([find_python(oldest), "-m", "venv", str(folder)])
        pip = [str(python_of(name)), "-m", "pip", "--disable-pip-version-check", "-q", "install"]
        _do([*pip, *packages])

    _once(FOLDER / name, packages, make, say)


def with_npm(name: str, package: str, oldest: int, say: Say) -> None:
    """A folder with this package for Node."""
    found = _output(["node", "--version"]).lstrip("v") or "none"
    if found == "none" or int(found.split(".")[0]) < oldest:
        raise Unavailable(f"needs Node {oldest}, found {found}")
    if not shutil.which("npm"):
        raise Unavailable("npm not found")

    def make(folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "package.json").write_text("{}\n")
        _do(["npm", "install", "--no-audit", "--no-fund", "--loglevel=error", "--prefix", str(folder), package])

    _once(node_folder(name), [package], make, say)


def python_of(name: str) -> Path:
    """The Python of this peer's virtual environment."""
    return FOLDER / name / "bin" / "python"


def node_folder(name: str) -> Path:
    """Where npm put this peer."""
    return FOLDER / "node" / name


def find_python(oldest: Version) -> str:
    """This Python if it is new enough, so that all run on the same one; else the oldest that is."""
    if sys.version_info[:2] >= oldest:
        return sys.executable
    wanted = ".".join(map(str, oldest))
    names = [f"python3.{minor}" for minor in range(oldest[1], oldest[1] + 4)]
    kept = sorted(map(str, (Path.home() / ".pyenv" / "versions").glob("3.*/bin/python")))
    for python in [*names, _output(["uv", "python", "find", f">={wanted}"]), *kept]:
        # Ask it to do what is needed of it: a name on the PATH may be a launcher with nothing behind it.
        works = f"import sys, venv, ensurepip; print(sys.version_info >= {oldest})"
        if python and _output([python, "-c", works]) == "True":
            return python
    raise Unavailable(f"needs Python {wanted}, none found")


def _once(folder: Path, packages: Sequence[str], make: Callable[[Path], None], say: Say) -> None:
    marker, wishes = folder / _MARKER, json.dumps(list(packages))
    if marker.exists() and marker.read_text() == wishes:
        return
    say(f"installing {folder.name}")
    shutil.rmtree(folder, ignore_errors=True)
    make(folder)
    marker.write_text(wishes)


def _do(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIME)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unavailable(f"not installed: {error}") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        # The first error names the cause; what follows are its consequences.
        line = next((line for line in lines if "error" in line.lower()), lines[-1] if lines else "no message")
        raise Unavailable(f"not installed: {line.strip()}")


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
