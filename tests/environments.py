"""Virtual environments for packages that the development environment lacks: made once, kept below the project.

What cannot be had (no network, no such wheel, no such program) is `CannotHaveError` with the reason. Several processes
may ask for the same environment at once: one makes it, the others wait.
"""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
TORCH = "2.13.0"
_VERSION = f"python{sys.version_info[0]}.{sys.version_info[1]}"
_TORCH_HOME = ROOT / ".compat" / f"torch-{TORCH}-{_VERSION}"
_SECONDS = 900


class CannotHaveError(Exception):
    """A package, program or server that this machine cannot have, and why."""


def run(*command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """Return what a command prints; raise `CannotHaveError` with the end of its errors if it fails."""
    shown = " ".join(str(word) for word in command[:5])
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS, cwd=cwd, env=env)
    except (OSError, subprocess.TimeoutExpired) as error:
        msg = f"{shown}: {error}"
        raise CannotHaveError(msg) from error
    if done.returncode:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-6:])
        msg = f"{shown} ended with {done.returncode}:\n{said}"
        raise CannotHaveError(msg)
    return done.stdout


@contextlib.contextmanager
def made_once(home: Path, wanted: str) -> Iterator[bool]:
    """Yield whether ``home`` has yet to be made as ``wanted``; afterwards it counts as made."""
    home.parent.mkdir(parents=True, exist_ok=True)
    with (home.parent / f"{home.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = home / "done"
        is_made = done.exists() and done.read_text(encoding="utf-8") == wanted
        yield not is_made
        done.write_text(wanted, encoding="utf-8")


def environment(
    home: Path,
    packages: Sequence[str],
    *,
    alone: Sequence[str] = (),
    stand_ins: Mapping[str, str] | None = None,
    torch: bool = False,
    options: Sequence[str] = (),
    interpreter: str | Path = sys.executable,
) -> Path:
    """Return the Python of an environment with these packages, made if it is missing or has others.

    ``alone`` are packages installed without their requirements, and ``stand_ins`` modules written in place of such a
    requirement: their texts by path, as in "torchvision/__init__.py". ``options`` are pip's. ``torch`` is unpacked once
    for all environments, since it takes longer than all else together.
    """
    python = home / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    with made_once(home, "\n".join([*packages, *alone])) as is_missing:
        if is_missing:
            run(interpreter, "-m", "venv", "--clear", home)
            if torch:
                (_site_packages(python) / "torch-of-all.pth").write_text(f"{_site_packages(_torch())}\n")
            run(*pip, *options, *packages)
            if alone:
                run(*pip, "--no-deps", *alone)
            for name, text in (stand_ins or {}).items():
                path = _site_packages(python) / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
    return python


def _torch() -> Path:
    # On a line of its own and first, as in the Makefile: a requirement of others would bring a build of several GB.
    return environment(_TORCH_HOME, [f"torch=={TORCH}"])


def _site_packages(python: Path) -> Path:
    return Path(run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip())


def home_of(directory: Path, name: str) -> Path:
    """Return where the environment of a name stands for the running version of Python."""
    return directory / f"{name}-{_VERSION}"
