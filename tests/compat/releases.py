"""Earlier releases as these tests use them: unpacked from the wheels in `released`, run in processes of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import psycopg

from tests.support.fleets import ROOT, Fleet

FOLDER = Path(__file__).parent / "released"
WHEELS = sorted(
    FOLDER.glob("skiplock-*.whl"), key=lambda wheel: [int(n) for n in re.findall(r"\d+", wheel.name.split("-")[1])]
)
TARGET = "tests.compat.jobs:app"


@dataclass(frozen=True)
class Code:
    """One state of skiplock: a folder for PYTHONPATH. `name` is what its jobs write into `runs`."""

    name: str
    path: Path

    def environment(self, dsn: str) -> dict[str, str]:
        path = os.pathsep.join([str(self.path), str(ROOT)])
        return {**os.environ, "PYTHONPATH": path, "COMPAT_CODE": self.name, "SKIPLOCK_DATABASE_URL": dsn}

    def run(self, *command: str) -> str:
        """What a Python command prints."""
        done = subprocess.run(
            [sys.executable, *command], env=self.environment(""), cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    @contextmanager
    def worker(
        self, dsn: str, folder: Path, *, options: tuple[str, ...] = (), processes: int | None = None, **queues: int
    ) -> Iterator[Fleet]:
        """A `skiplock worker` of this code, killed at the end. Call `ready` to wait for it."""
        log = folder / f"{self.name}-{os.urandom(3).hex()}.log"
        environment = {"COMPAT_CODE": self.name}
        fleet = Fleet(
            dsn, log, queues=queues or {"default": 20}, processes=processes, options=options,
            target=TARGET, environment=environment, code=self.path,
        )  # fmt: skip
        try:
            yield fleet
        except BaseException:
            print(f"--- log of the {self.name} worker ---\n{log.read_text()[-4000:]}")
            raise
        finally:
            fleet.destroy()

    @contextmanager
    def client(self, dsn: str) -> Iterator[Client]:
        """A program of this code that does what it is told."""
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.compat.client"],
            env=self.environment(dsn), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            yield Client(process)
        finally:
            process.kill()
            process.communicate()


class Client:
    """The near end of `client.py`: each method is an order."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self._order(name, *args, **kwargs)

    def _order(self, do: str, *args: Any, **kwargs: Any) -> Any:
        assert self._process.stdin and self._process.stdout
        named = dict(zip(POSITIONS.get(do, ()), args, strict=False))
        self._process.stdin.write(json.dumps({"do": do, **named, **kwargs}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer["ok"]


POSITIONS = {
    **dict.fromkeys(("enqueue", "aenqueue", "in_transaction"), ("task", "options")),
    **dict.fromkeys(("get", "cancel", "retry", "delete"), ("job",)),
    "many": ("task", "count", "options"),
    "cli": ("argv",),
}


@dataclass(frozen=True)
class Release(Code):
    """An earlier release."""

    version: str = ""

    @classmethod
    def unpack(cls, wheel: Path, folder: Path) -> Release:
        with zipfile.ZipFile(wheel) as file:
            file.extractall(folder)
        return cls("old", folder, wheel.name.split("-")[1])

    @cached_property
    def schema(self) -> str:
        """What makes its schema, as SQL."""
        return self.run("-m", "skiplock", "db", "sql")

    def install(self, dsn: str) -> None:
        """Its schema, in an empty database."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(self.schema.encode())

    @property
    def statements_file(self) -> Path:
        """The statements that it sends, as they were collected when it was released."""
        return FOLDER / f"skiplock-{self.version}.statements.json"


NEW = Code("new", ROOT / "src")
