"""What tests share: one server per run, cloned databases, coroutine tests. Import from here."""

from tests.support.databases import clone, connect, create_empty, drop, in_database
from tests.support.waiting import eventually

__all__ = ["clone", "connect", "create_empty", "drop", "eventually", "in_database"]
