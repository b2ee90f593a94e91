"""Print, as JSON, every statement that the skiplock on the path sends to its schema: what a release needs of the next ones.

Taken from the modules themselves: the texts they hold, and those that stand in their functions.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Iterator
from types import ModuleType

import skiplock

# They make the schema, or work on one of their own.
APART = (
    "skiplock.store.migrate",
    "skiplock.store.replace",
    "skiplock.store.lockwait",
    "skiplock.cli.demo",
    "skiplock.__main__",
)
_ACT = "SELECT done, was FROM skiplock.{}($1::text::bigint)"
PUT_TOGETHER = {_ACT.format(""): [_ACT.format(verb) for verb in ("retry", "cancel", "delete")]}
STATEMENT = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH|CALL)\b")


def is_statement(text: object) -> bool:
    return isinstance(text, str) and STATEMENT.match(text) is not None and "skiplock." in text


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(skiplock.__path__, "skiplock."):
        if not found.name.startswith(APART):
            yield importlib.import_module(found.name)


def of(module: ModuleType) -> set[str]:
    """What it holds and what stands in its functions. A text that is put together there must be known here."""
    found: set[str] = set()
    tree = ast.parse(inspect.getsource(module))
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    pieces = {id(piece) for node in joined for piece in ast.walk(node)}
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in pieces}
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]:
        for node in [node for node in ast.walk(function) if isinstance(node, ast.JoinedStr)]:
            text = "".join([str(piece.value) for piece in node.values if isinstance(piece, ast.Constant)])
            if is_statement(text):
                assert text in PUT_TOGETHER, f"{module.__name__}, line {node.lineno}: make this statement a constant"
                found.update(PUT_TOGETHER[text])
    return found | {text for text in [*texts, *vars(module).values()] if is_statement(text)}


def collect() -> list[str]:
    return sorted(set().union(*[of(module) for module in modules()]))


if __name__ == "__main__":
    print(json.dumps({"version": skiplock.__version__, "statements": collect()}, indent=1))
