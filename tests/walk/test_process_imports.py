"""Children import the application as their worker did: from modules, from `__main__`; and what happens where they cannot.

Kinds: an application that cannot be imported is said so, in the job that wanted it, and holds nobody up (LIFE-16 for children).
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from skiplock import JobRecord, Skiplock
from skiplock.work import children
from tests.support import fleets
from tests.support.workers import running_worker, settled

BROKEN = "SKIPLOCK_TEST_BROKEN"
JOBS = f"""
import os, sys, time
from skiplock import Skiplock

app = Skiplock()

def declare():
    app.task(name="work", executor="process", max_attempts=1)(work)

def work() -> str:
    return "done"

match os.environ.get("{BROKEN}"):
    case "raises":
        raise RuntimeError("not in a child")
    case "exits":
        sys.exit("no more")
    case "dies":
        os._exit(9)
    case "hangs":
        time.sleep(600)
    case "declares nothing":
        pass
    case _:
        declare()
"""
SAID = {
    "raises": "the application cannot be imported in a child process: RuntimeError: not in a child",
    "exits": "the application cannot be imported in a child process: SystemExit: no more",
    "dies": "exited with code 9 before it could begin; it imports ",
    "hangs": "did not begin within 1 s and was killed by SIGKILL before it could begin; it imports ",
    "declares nothing": "task 'work' is unknown in the child process",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """First on the path, of this process and so of its children."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in str(getattr(module, "__file__", "")):
            del sys.modules[name]


def load(folder: Path, name: str, text: str) -> ModuleType:
    (folder / f"{name}.py").write_text(text)
    importlib.invalidate_caches()
    return importlib.import_module(name)


async def run_one(app: Skiplock, dsn: str, **settings: object) -> JobRecord:
    app.settings = Skiplock(dsn).settings
    async with running_worker(app, children=1, **settings):
        return await settled(await app.find_task("work").aenqueue())


@pytest.mark.parametrize("how", SAID)
async def test_an_application_that_a_child_cannot_import(
    dsn: str, folder: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It costs the job an attempt, with the reason; the worker is well."""
    app: Skiplock = load(folder, f"broken_{how.replace(' ', '_')}", JOBS).app
    monkeypatch.setenv(BROKEN, how)
    if how == "hangs":
        monkeypatch.setattr(children, "START_LIMIT", 1.0)
    record = await run_one(app, dsn)
    assert (record.state, record.attempt) == ("dead", 1)
    assert (record.error or "").startswith("skiplock.core.errors.ChildStartError: ") and SAID[how] in (
        record.error or ""
    )
    monkeypatch.delenv(BROKEN)
    assert (await run_one(app, dsn)).result == "done"


async def test_a_child_that_cannot_be_started(dsn: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    app: Skiplock = load(folder, "unstartable", JOBS).app
    monkeypatch.setattr(sys, "executable", str(folder / "no-python"))
    record = await run_one(app, dsn)
    assert "ChildStartError: no child process could be started: [Errno 2]" in (record.error or "")


async def test_a_function_of_a_module_that_knows_nothing_of_the_app(dsn: str, folder: Path) -> None:
    """Registered elsewhere: the child finds it by importing the module that holds the app, as its worker did."""
    load(folder, "plain_functions", "def work() -> str:\n    return __name__\n")
    app = load(
        folder,
        "declarations",
        "from skiplock import Skiplock\nimport plain_functions\n"
        "app = Skiplock()\napp.task(name='work', executor='process')(plain_functions.work)\n",
    ).app
    assert (await run_one(app, dsn)).result == "plain_functions"


async def test_an_app_that_is_an_attribute_of_nothing(dsn: str, folder: Path) -> None:
    """Found through the task, which is a name in its module."""
    text = "from skiplock import Skiplock\n\ndef make():\n    return Skiplock()\n\n"
    text += "@make().task(name='work', executor='process')\ndef work() -> str:\n    return 'found'\n"
    module = load(folder, "made", text)
    assert (await run_one(module.work.app, dsn)).result == "found"


MAIN = """
import asyncio, sys
from skiplock import Skiplock
from skiplock.core.settings import WorkerSettings
from skiplock.worker import Worker

app = Skiplock()

@app.task(name="work", executor="process", max_attempts=1)
def work() -> str:
    return __name__

if __name__ == "__main__":
    job = work.enqueue()
    asyncio.run(Worker(app, WorkerSettings(drain=True, children=1)).run())
    record = app.get(job.id)
    print(record.state, record.result, record.error)
    app.close()
"""


@pytest.mark.parametrize("how", ["a file", "a module", "a module under nohup"])
def test_tasks_of_the_main_module(fresh_dsn: str, tmp_path: Path, how: str) -> None:
    """Imported as multiprocessing does it: under another name, so that the main part is not run."""
    (tmp_path / "program.py").write_text(MAIN)
    command = [sys.executable, *(["program.py"] if how == "a file" else ["-m", "program"])]
    if how.endswith("nohup"):
        command = ["nohup", *command]
    environment = {**os.environ, "DATABASE_URL": fresh_dsn, "PYTHONPATH": str(fleets.ROOT / "src")}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "completed __mp_main__ None\n", done.stderr
