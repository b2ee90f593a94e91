"""Every command explains itself, and names the environment variables."""

from __future__ import annotations

import sys

import click
import pytest

import skiplock.cli
from skiplock import __version__
from skiplock.cli.failures import CODES
from skiplock.cli.root import cli


def _commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found.append((*path, name))
        if isinstance(command, click.Group):
            found += _commands(command, (*path, name))
    return found


COMMANDS = _commands(cli)
GROUPS = {("jobs",), ("queues",), ("tasks",), ("limits",), ("workers",), ("schedules",), ("db",)}


def test_all_commands_are_there():
    names = {" ".join(path) for path in COMMANDS}
    assert names >= {
        *("demo", "dev", "worker", "enqueue", "jobs list", "jobs show", "jobs retry", "jobs cancel", "jobs delete"),
        *("queues list", "queues pause", "queues resume", "queues limit", "queues bound", "queues age", "workers list"),
        *("tasks list", "tasks pause", "tasks resume"),
        *("limits list", "limits show", "limits set", "limits unset"),
        *[
            f"schedules {act}"
            for act in ("list", "show", "add", "change", "pause", "resume", "reset", "run", "delete", "explain")
        ],
        *("db migrate", "db plan", "db sql", "db status", "db verify"),
    }


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help(bare, path):
    for flag in ("--help", "-h"):
        answer = bare(*path, flag)
        assert answer.code == 0 and answer.out.startswith(f"Usage: skiplock {' '.join(path)}")
    if path not in GROUPS:
        assert "env var:" in answer.out


@pytest.mark.parametrize("path", [p for p in COMMANDS if p not in GROUPS], ids=" ".join)
def test_every_option_has_a_variable_named_like_it(path):
    command: click.Command = cli
    context = click.Context(cli, info_name="skiplock", auto_envvar_prefix="SKIPLOCK")
    for name in path:
        assert isinstance(command, click.Group)
        command = command.get_command(context, name)
        context = click.Context(command, info_name=name, parent=context)
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            shown = option.get_help_extra(context)["envvars"]
            long = next(o for o in option.opts if o.startswith("--"))
            own = f"{context.auto_envvar_prefix}_{long[2:].replace('-', '_').upper()}"
            assert option.envvar or shown == (own,)


def test_without_arguments_help_is_printed(bare):
    answer = bare()
    assert answer.code == 0 and answer.out == bare("--help").out
    for code, text in CODES.items():
        assert f"{code:>3}  {text}" in answer.out


def test_version_and_a_real_process(spawn):
    assert spawn("--version").out == f"skiplock {__version__}\n"
    answer = spawn("jobs", "list", "--json")
    assert answer.code == 0 and answer.json == {"jobs": [], "before": None} and answer.err == ""


def test_options_from_the_environment(invoke, dsn):
    assert invoke("jobs", "list", SKIPLOCK_JOBS_LIST_JSON="1").json["jobs"] == []
    assert invoke("jobs", "list", SKIPLOCK_JOBS_LIST_STATE="dead foo").code == 2
    assert invoke("jobs", "list", SKIPLOCK_DATABASE_URL="", DATABASE_URL=dsn).code == 0
    assert invoke("jobs", "list", SKIPLOCK_SCHEMA="elsewhere").code == 5


@pytest.mark.parametrize("missing", [["click"], ["rich"], ["click", "rich"]])
def test_without_the_extra_it_says_what_to_install(monkeypatch, capsys, missing):
    monkeypatch.setattr(skiplock.cli, "find_spec", lambda name: None if name in missing else object())
    with pytest.raises(SystemExit) as ended:
        skiplock.cli.main([])
    assert ended.value.code == 3
    err = capsys.readouterr().err
    assert 'pip install "skiplock[cli]"' in err and " and ".join(missing) in err


def test_a_worker_does_not_load_what_draws_tables(folder, spawn):
    (folder / "probe.py").write_text("import sys\nfrom shop import app\nassert 'rich.table' not in sys.modules\n")
    answer = spawn("worker", "probe:app", "--drain", "--no-supervisor")
    assert answer.code == 0, answer.err
    assert sys.executable
