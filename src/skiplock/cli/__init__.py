"""The command line: `skiplock …` and `python -m skiplock …`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.util import find_spec

__all__ = ["main"]
_NEEDED = ("click", "rich")
_CONFIGURATION = 3  # as in `failures.CODES`, which cannot be imported without click


def main(args: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code. Says what to install if the extra `cli` is missing."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        needs = " and ".join(missing)
        print(f'error: the command line needs {needs}: pip install "skiplock[cli]"', file=sys.stderr)
        sys.exit(_CONFIGURATION)
    from skiplock.cli.root import cli

    cli.main(args=None if args is None else list(args))
