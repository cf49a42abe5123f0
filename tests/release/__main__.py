"""Makes a release and checks it: ``python -m tests.release DIRECTORY`` (``make release``).

The source archive and the wheels of the last commit, built twice and compared byte by byte; the checks of twine,
check-wheel-contents and abi3audit; a bill of materials for each extra; and the files installed into empty environments
(``--quick``: two for each Python). Ends with 1 at the first check that fails.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.release.changelog import ROOT, version_of
from tests.release.distributions import commit_seconds, tools


def commands(directory: Path, *, quick: bool) -> Iterator[tuple[str | Path, ...]]:
    """Yield the checks of a release in order."""
    yield sys.executable, "-m", "tests.release.changelog", "--check"
    yield sys.executable, "-m", "tests.release.distributions", directory
    files = [*sorted(directory.glob("*.whl")), *directory.glob("*.tar.gz")]
    yield tools(), "-m", "twine", "check", "--strict", *files
    yield tools().with_name("check-wheel-contents"), *(file for file in files if file.suffix == ".whl")
    yield tools(), "-m", "abi3audit", "--strict", *(file for file in files if "abi3" in file.name)
    yield sys.executable, ROOT / "tests" / "compat" / "installs.py", directory, *(("--quick",) if quick else ())


def write_bills(directory: Path) -> None:
    """Write the bills of materials."""
    listed = subprocess.run(
        [sys.executable, "-m", "tests.release.licences", "--json"], cwd=ROOT, capture_output=True, check=True
    )
    settings = os.environ | {"SHOAL_VERSION": version_of(ROOT), "SOURCE_DATE_EPOCH": str(commit_seconds())}
    command: list[str | Path] = [tools(), "-m", "tests.release.sbom", directory]
    subprocess.run(command, cwd=ROOT, input=listed.stdout, env=settings, check=True)


def main() -> int:
    """Run the checks."""
    directory = Path(next(word for word in sys.argv[1:] if not word.startswith("-"))).resolve()
    for command in commands(directory, quick="--quick" in sys.argv):
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            print(f"failed: {' '.join(map(str, command))}", file=sys.stderr)
            return 1
    write_bills(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
