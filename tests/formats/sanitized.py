"""Runs the tests of the compiled module, and damaged shards, under the sanitizers of the C compiler.

``python -m tests.formats.sanitized`` builds the module with ``-fsanitize=address,undefined`` in a temporary folder,
beside a copy of the package, and runs `tests/formats/test_compiled_*.py` and the targets "tar", "mds" and "gathering"
of `tests.formats.fuzz` with it. A read or write outside of a buffer, or undefined behaviour, ends the run. Nothing is
run where the compiler has no sanitizers.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_COMPILER = os.environ.get("CC", "cc")
_FLAGS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-g", "-O1"]
_TARGETS = ("tar", "mds", "gathering", "tf_example")


def build(package: Path) -> str | None:
    """Build the module into a copy of the package; return the library to load first, None without sanitizers."""
    formats = package / "formats"
    sources = sorted(formats.glob("_*.c"))
    for old in formats.glob("_cutting*.so"):
        old.unlink()
    include = sysconfig.get_paths()["include"]
    command = [_COMPILER, "-shared", "-fPIC", *_FLAGS, f"-I{include}", *map(str, sources)]
    try:
        subprocess.run([*command, "-o", str(formats / "_cutting.abi3.so")], check=True)
        found = subprocess.run([_COMPILER, "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    library = found.stdout.strip()
    return library if Path(library).is_absolute() else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--each", type=int, default=2000, help="damaged shards of each target")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sanitized-") as folder:
        copied = shutil.copytree(_ROOT / "src" / "shoal", Path(folder, "shoal"))
        library = build(copied)
        if library is None:
            print(f"skipped: {_COMPILER} has no sanitizers")
            return 0
        environment = os.environ | {
            "LD_PRELOAD": library,
            "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1",  # Python keeps memory until its end, on purpose
            "PYTHONMALLOC": "malloc",  # so that each object has borders of its own
            "PYTHONPATH": os.pathsep.join([folder, str(_ROOT)]),
        }
        tests = sorted(map(str, Path(__file__).parent.glob("test_compiled_*.py")))
        kept = "not kept and not python_alone"  # sanitizers keep memory, and the second starts processes of its own
        fuzz = ["tests.formats.fuzz", *_TARGETS, f"--each={arguments.each}", f"--seed={arguments.seed}"]
        commands = [
            ["-c", "import shoal.formats._cutting as module; print(module.__file__)"],
            ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", kept, *tests],
            ["-m", *fuzz],
        ]
        for command in commands:
            ended = subprocess.run([sys.executable, *command], env=environment, cwd=_ROOT, check=False)
            if ended.returncode:
                return ended.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
