"""One database verb as a value: text, parameters, and how to read the answer.

A verb is written once and run by anyone: the async pool, the sync pool, or the caller's own connection of whatever
kind (`guests`). All parameters are text (or None) and cast inside the statement, because that is what every driver
sends alike; arrays go as array literals (`literal.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")
Row = Sequence[Any]


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """`sql` uses ``$1``-style placeholders and is one statement. `read` turns the rows into the result."""

    sql: str
    params: tuple[str | None, ...]
    read: Callable[[Sequence[Row]], T]

    def then(self, change: Callable[[T], U]) -> Call[U]:
        """The same statement, whose result is changed once it has come."""
        read = self.read
        return Call(self.sql, self.params, lambda rows: change(read(rows)))


def nothing(rows: Sequence[Row]) -> None:
    """`read` of a call whose answer does not matter."""
