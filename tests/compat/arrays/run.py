"""Installs the packages of examples/ with pip, and compares what they read with h5py and zarr.

``python -m tests.compat.arrays.run [SEEDS]`` makes an environment with h5py and zarr below ``.compat/``, installs the
packages as a user does, runs the code of their pages, and compares random files (`compared.py`). Exit code 1 if
anything differs; skipped where the libraries cannot be had.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.documents import blocks_of, commands_of
from tests.environments import ROOT, CannotHaveError, environment, home_of, run

PACKAGES = [ROOT / "examples" / name for name in ("shoal-hdf5", "shoal-zarr")]
LIBRARIES = ("h5py==3.16.0", "zarr==3.1.6", "numpy>=2", "setuptools>=80")
_SEEDS = "40"


def run_page(package: Path, python: Path, directory: Path, settings: dict[str, str]) -> int:
    """Run the blocks of the page of a package, in order; return how many there are."""
    blocks = blocks_of((package / "README.md").read_text(encoding="utf-8"))
    code = "\n".join(block.code for block in blocks if block.language == "python")
    run(python, "-c", code, cwd=directory, env=settings)
    for block in blocks:
        for command in commands_of(block.code) if block.language == "console" else []:
            run("bash", "-euo", "pipefail", "-c", command, cwd=directory, env=settings)
    return len(blocks)


def main() -> int:
    """Install, run the pages, and compare."""
    try:
        python = environment(home_of(ROOT / ".compat", "arrays"), LIBRARIES)
        # Again for each run: the packages change with the checkout. Their shoal is the checkout itself.
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
        run(*pip, "--force-reinstall", "--no-build-isolation", *PACKAGES)
    except CannotHaveError as error:
        print(f"arrays: skipped: {error}")
        return 0
    with tempfile.TemporaryDirectory(prefix="shoal-arrays-") as home:
        directory = Path(home)
        binaries = directory / "bin"
        binaries.mkdir()
        shoal = binaries / "shoal"
        shoal.write_text(f'#!/bin/sh\nexec "{python}" -m shoal "$@"\n')
        shoal.chmod(0o755)
        settings = os.environ | {
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "PYTHONWARNINGS": "ignore",  # of types that Zarr has not yet specified
            "SHOAL_CACHE_DIR": str(directory / "cache"),
        }
        for package in PACKAGES:
            (directory / package.name).mkdir()
            num_blocks = run_page(package, python, directory / package.name, settings)
            print(f"{package.name}: {num_blocks} blocks of its page ran")
        seeds = sys.argv[1] if len(sys.argv) > 1 else _SEEDS
        for program, *more in (("elsewhere.py",), ("compared.py", seeds)):
            (place := directory / program).mkdir()
            try:
                print(run(python, Path(__file__).with_name(program), place, *more, env=settings), end="", flush=True)
            except CannotHaveError as error:
                print(error)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
