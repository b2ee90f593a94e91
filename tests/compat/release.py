"""`make release-compat`: keep the checkout as a released version, for the compatibility tests of those to come."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from tests.compat.releases import FOLDER, Release
from tests.support.fleets import ROOT


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
        subprocess.run([*pip, "wheel", "--no-deps", "-w", scratch, str(ROOT)], check=True)
        [built] = Path(scratch).glob("*.whl")
        kept = FOLDER / built.name
        if kept.exists():
            print(
                f"{kept} is there already: a released version never changes; raise __version__ first", file=sys.stderr
            )
            return 1
        release = Release.unpack(built, Path(scratch) / "unpacked")
        release.statements_file.write_text(release.run("-m", "tests.compat.statements"))
        kept.write_bytes(built.read_bytes())
    print(f"kept {kept.name}: name it in {FOLDER / 'README.md'} and commit the folder")
    return 0


if __name__ == "__main__":
    sys.exit(main())
