"""Real documents to index: what the modules of the installed Python's standard library say about themselves.

The sources are parsed, never imported.
"""

from __future__ import annotations

import ast
import sysconfig
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_SKIPPED = {
    "distutils",
    "encodings",
    "test",
    "tests",
    "idlelib",
    "lib2to3",
    "turtledemo",
    "ensurepip",
    "site-packages",
    "dist-packages",
    "__pycache__",
}
_PARSING = threading.Lock()  # Python 3.11's ast.parse fails at times when two threads are in it (gh-106905)
MAX_BODY = 200_000  # characters; a tsvector may hold a megabyte
Documented = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True, slots=True)
class Document:
    """One module: its name, the first line of its docstring, and everything public it documents."""

    module: str
    title: str
    body: str


@cache
def _sources() -> dict[str, Path]:
    root = Path(sysconfig.get_path("stdlib"))
    return {_module_name(path.relative_to(root)): path for path in _walk(root)}


def _walk(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith("_") and path.name != "__init__.py":
            continue
        if path.is_dir():
            if path.name not in _SKIPPED and (path / "__init__.py").exists():
                yield from _walk(path)
        elif path.suffix == ".py":
            yield path


def _module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def module_names(limit: int = 300) -> tuple[str, ...]:
    """Modules whose source has something to say, the shallow (better known) ones first, then by name."""
    worth = [name for name, path in _sources().items() if '"""' in path.read_text("utf-8", "replace")]
    return tuple(sorted(sorted(worth, key=lambda name: (name.count("."), name))[:limit]))


def read_document(module: str) -> Document:
    """Parse a module's source and collect its public docstrings."""
    source = _sources()[module].read_text("utf-8", "replace")
    with _PARSING:
        tree = ast.parse(source)
    about = _clean(ast.get_docstring(tree) or "")
    lines = (line.strip() for line in about.splitlines())
    title = next((line for line in lines if line and line != module), "")
    body = "\n\n".join([about, *_entries(tree, "")])
    return Document(module, title[:200], body[:MAX_BODY])


def _entries(node: ast.Module | ast.ClassDef, prefix: str) -> Iterator[str]:
    for child in node.body:
        if not isinstance(child, Documented) or child.name.startswith("_"):
            continue
        text = ast.get_docstring(child)
        if text:
            yield f"{prefix}{child.name}: {_clean(text)}"
        if isinstance(child, ast.ClassDef):
            yield from _entries(child, f"{prefix}{child.name}.")


def _clean(text: str) -> str:
    """PostgreSQL's text has no NUL and no lone surrogates."""
    return text.replace("\0", "").encode("utf-8", "replace").decode("utf-8").strip()
