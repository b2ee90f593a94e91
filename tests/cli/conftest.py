"""The command line in tests: `invoke` runs it in this process, `spawn` in one of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from skiplock.cli.root import cli

ROOT = Path(__file__).resolve().parents[2]
SHOP = """
import asyncio
import enum
from datetime import datetime
from decimal import Decimal
from typing import Any, Literal

from skiplock import Backoff, JobContext, Resource, Skiplock

app = Skiplock()


class Size(enum.Enum):
    ONE = "1"


def nothing():
    yield None


@app.task(name="send", queue="mail", priority=3, tags=["post"])
async def send(to: str, name: str | None = None) -> None: ...


@app.task(name="typed")
async def typed(
    ctx: JobContext,
    n: int,
    when: datetime | None = None,
    price: Decimal = Decimal(0),
    size: Size | None = None,
    kind: Literal["1", "2"] = "1",
    flags: list[bool] = [],
    extra: dict[str, Any] = {},
    res: Any = Resource(nothing),
) -> None: ...


@app.task(name="boom", queue="mail", max_attempts=1)
def boom(secret: str) -> None:
    raise RuntimeError("no luck")


@app.task(name="flaky", max_attempts=2, backoff=Backoff(base=60))
def flaky() -> None:
    raise ValueError("not yet\\nreally")


@app.task(name="slow", queue="slow")
async def slow(seconds: float) -> None:
    await asyncio.sleep(seconds)
"""


@dataclass(frozen=True)
class Answer:
    """What a command said. `json` and `error` parse it."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.err)["error"]


Invoke = Callable[..., Answer]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of the command, with the module `shop` in it."""
    (tmp_path / "shop.py").write_text(SHOP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    for name in [name for name in os.environ if name.startswith("SKIPLOCK_") or name == "DATABASE_URL"]:
        monkeypatch.delenv(name)
    yield tmp_path
    sys.modules.pop("shop", None)


@pytest.fixture
def bare(folder: Path) -> Invoke:
    """Run a command that knows no database."""

    def run(*args: object, **env: str) -> Answer:
        result = CliRunner().invoke(cli, [str(arg) for arg in args], env=env)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return Answer(result.exit_code, result.stdout, result.stderr)

    return run


@pytest.fixture
def invoke(bare: Invoke, dsn: str) -> Invoke:
    """Run a command on the module's database."""
    return lambda *args, **env: bare(*args, **{"SKIPLOCK_DATABASE_URL": dsn, **env})


def environment(dsn: str) -> dict[str, str]:
    """For real processes: this checkout, and that database."""
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, "PYTHONPATH": path, "SKIPLOCK_DATABASE_URL": dsn}


def run_process(dsn: str, folder: Path, *args: str) -> Answer:
    """Run a command in a process of its own, to its end."""
    command = [sys.executable, "-m", "skiplock", *args]
    done = subprocess.run(command, cwd=folder, env=environment(dsn), capture_output=True, text=True, timeout=60)
    return Answer(done.returncode, done.stdout, done.stderr)


@contextmanager
def running(dsn: str, folder: Path, *args: str) -> Iterator[subprocess.Popen[str]]:
    """A command in a process group of its own, killed at the end if it still runs. Both outputs go to `folder/log`."""
    command = [sys.executable, "-u", "-m", "skiplock", *args]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=folder, env=environment(dsn), stdout=log, stderr=log, text=True, start_new_session=True
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture
def spawn(dsn: str, folder: Path) -> Invoke:
    return lambda *args: run_process(dsn, folder, *args)
