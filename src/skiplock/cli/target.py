"""`module:app`: import the application's module and find its Skiplock."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from importlib import import_module
from types import ModuleType, TracebackType
from typing import Any

from skiplock.app import Skiplock
from skiplock.core.errors import ConfigurationError

_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


class AppImportError(ConfigurationError):
    """The module raised while it was imported; `traceback` begins in it."""

    def __init__(self, message: str, trace: str) -> None:
        super().__init__(message)
        self.traceback = trace


def load_app(target: str) -> Skiplock:
    """The app that `module:attribute` names; `module` alone will do if it holds one. Raises ConfigurationError."""
    module_name, colon, attribute = target.partition(":")
    if (
        module_name.endswith(".py")
        or not _DOTTED.fullmatch(module_name)
        or (colon and not _DOTTED.fullmatch(attribute))
    ):
        raise ConfigurationError(f"{target!r} is not of the form module:app, as in myapp.jobs:app{_path_hint(target)}")
    module = _import(module_name, target)
    apps = _apps_in(module)
    if not colon:
        return _only(module_name, apps)
    found: Any = module
    for part in attribute.split("."):
        found = getattr(found, part, None)
    if isinstance(found, Skiplock):
        return found
    what = "has no attribute" if found is None else f"holds a {type(found).__name__}, no Skiplock, as"
    raise ConfigurationError(f"module {module_name!r} {what} {attribute!r}; {_listed(apps)}")


def _import(name: str, target: str) -> ModuleType:
    here = os.getcwd()  # noqa: PTH109 - sys.path holds text
    if sys.path[:1] != [here]:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name and not name.startswith(f"{error.name}."):
            raise _broken(name, error) from error
        raise ConfigurationError(f"module {name!r} not found{_dot_hint(target)}; looked in {_places()}") from None
    except SystemExit as error:
        raise ConfigurationError(
            f"module {name!r} calls sys.exit({error.code!r}) while it is imported; "
            'put what it runs under `if __name__ == "__main__":`'
        ) from None
    except Exception as error:
        raise _broken(name, error) from error


def _places() -> str:
    """Where an application's module may be; the standard library's folders are not worth a reader's time."""
    library = sysconfig.get_path("stdlib")
    own = {library, f"{library}/lib-dynload"}
    return ", ".join(path for path in dict.fromkeys(sys.path) if os.path.isdir(path) and path not in own)  # noqa: PTH112


def _broken(name: str, error: Exception) -> AppImportError:
    lines = traceback.format_exception(type(error), error, _from_the_module_on(error.__traceback__))
    summary = traceback.format_exception_only(error)[-1].strip()
    return AppImportError(f"module {name!r} cannot be imported: {summary}", "".join(lines).rstrip())


def _from_the_module_on(trace: TracebackType | None) -> TracebackType | None:
    """Without our frames and importlib's, which tell nobody anything."""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file != __file__ and "importlib" not in file:
            return trace
        trace = trace.tb_next
    return None


def _apps_in(module: ModuleType) -> dict[str, Skiplock]:
    found: dict[int, tuple[str, Skiplock]] = {}
    for name, value in vars(module).items():
        if isinstance(value, Skiplock):
            found.setdefault(id(value), (name, value))
    return dict(found.values())


def _only(module: str, apps: dict[str, Skiplock]) -> Skiplock:
    if len(apps) == 1:
        return next(iter(apps.values()))
    raise ConfigurationError(f"module {module!r}: say which app, as in {module}:app; {_listed(apps)}")


def _listed(apps: dict[str, Skiplock]) -> str:
    return f"it has {', '.join(apps)}" if apps else "it has no Skiplock"


def _path_hint(target: str) -> str:
    path = target.partition(":")[0]
    if not path.endswith(".py"):
        return ""
    dotted = path.removeprefix("./").removesuffix(".py").replace(os.sep, ".").strip(".")
    return f"; a module, not a file: {dotted}:app?"


def _dot_hint(target: str) -> str:
    head, dot, tail = target.rpartition(".")
    return f" (did you mean {head}:{tail}?)" if dot and ":" not in target else ""
