"""What one invocation of the command line knows from its first word to its exit code."""

from __future__ import annotations

from dataclasses import dataclass

import click


@dataclass(slots=True)
class Session:
    """`argv` as it was typed, and whether answers and errors are for a program."""

    argv: tuple[str, ...] = ()
    json: bool = False


def session() -> Session:
    """The running invocation's."""
    context = click.get_current_context(silent=True)
    return (context and context.find_object(Session)) or Session()
