"""Servers that are no part of the development environment: fetched once, kept below ``.integration/``.

Nothing of the machine is changed: a virtual environment, a folder of node modules, an unpacked package. What cannot be
had (no network, no registry, no Node) is `CannotHaveError` with the reason, and its tests are skipped by that.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.compat.peers.environments import NEEDED_BESIDE_TORCH, without_torchvision

HOME = Path(__file__).parent.parent.parent / ".integration"
SWIFT, AZURITE = "2.38.3", "3.34.0"  # the newest Azurite that takes Node 20
TORCH = "2.13.0"
TESTING = ("pytest==9.2.0", "pytest-timeout==2.4.0", "hypothesis==6.170.15")
ENVIRONMENTS = {
    "frameworks": ("accelerate==1.15.0", "lightning==2.6.6", "transformers==5.23.0"),
    "jax": ("jax==0.10.2", *TESTING),
    "datasets": ("datasets==5.2.0", "torchdata==0.11.0", "pillow>=11", *TESTING),
    "ray": ("ray[train]==2.60.0",),
    "peers": NEEDED_BESIDE_TORCH,
}
# Installed without what they ask for: a torchvision, and with it another torch, of 5 GB.
_ALONE = {"peers": ("webdataset==1.0.2", "mosaicml-streaming==0.13.0", "litdata==0.2.76", "torchdata==0.11.0")}
_WITH_TORCH = {"frameworks", "datasets", "ray", "peers"}
_SECONDS = 400


class CannotHaveError(Exception):
    """A server that this machine cannot run, and why."""


def run(*command: str | Path, **options: str | Path) -> str:
    """What a command prints; `CannotHaveError` with the end of what it said, where it fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SECONDS, **options)  # type: ignore[call-overload]
    except (OSError, subprocess.TimeoutExpired) as error:
        msg = f"{Path(command[0]).name}: {error}"
        raise CannotHaveError(msg) from error
    if done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["it said nothing"]
        msg = f"{' '.join(str(word) for word in command[:4])} ... ended with {done.returncode}: {said[0][:200]}"
        raise CannotHaveError(msg)
    return str(done.stdout)


def python_with(name: str) -> Path:
    """Python in an environment of its own, with the packages of that name in `ENVIRONMENTS`; made once."""
    packages, alone = ENVIRONMENTS[name], _ALONE.get(name, ())
    home = HOME / f"{name}-python{sys.version_info[0]}.{sys.version_info[1]}"
    done, wanted = home / "done", " ".join([*packages, *alone])
    if not done.exists() or done.read_text() != wanted:
        run(sys.executable, "-m", "venv", "--clear", home)
        pip = (home / "bin" / "python", "-m", "pip", "install", "--quiet")
        if name in _WITH_TORCH:
            run(*pip, f"torch=={TORCH}")  # on its own and first, as in the Makefile
        run(*pip, *packages)
        if alone:
            run(*pip, "--no-deps", *alone)
            without_torchvision(home / "bin" / "python")
        done.write_text(wanted)
    return home / "bin" / "python"


def swift_programs() -> Path:
    """The folder of the programs of OpenStack Swift, from PyPI, in an environment of its own."""
    home = HOME / f"swift-{SWIFT}-python{sys.version_info[0]}.{sys.version_info[1]}"
    if not (home / "done").exists():
        run(sys.executable, "-m", "venv", "--clear", home)
        run(home / "bin" / "python", "-m", "pip", "install", "--quiet", f"swift=={SWIFT}")
        (home / "done").touch()
    return home / "bin"


def nginx_program() -> Path:
    """nginx of this machine, or the one of its distribution, unpacked beside us."""
    if found := shutil.which("nginx", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin"):
        return Path(found)
    home = HOME / "nginx"
    program = home / "usr" / "sbin" / "nginx"
    if not program.exists():
        home.mkdir(parents=True, exist_ok=True)
        _fetch_nginx(home, program)
    run(program, "-V")
    return program


def _fetch_nginx(home: Path, program: Path) -> None:
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        msg = "there is no nginx, and no apt-get to fetch it with"
        raise CannotHaveError(msg)
    failures = []
    for package in ("nginx", "nginx-core", "nginx-light"):  # which of them holds the program changed over the years
        try:
            run("apt-get", "download", "--quiet", package, cwd=home)
        except CannotHaveError as error:
            failures.append(str(error))
            continue
        for archive in home.glob("*.deb"):
            run("dpkg", "-x", archive, home)
            archive.unlink()
        if program.exists():
            return
    msg = "; ".join(failures) or "no package of nginx holds the program"
    raise CannotHaveError(msg)


def azurite_program() -> tuple[str, Path]:
    """Node, and the script of Azurite's blob server, from npm."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if not (node and npm):
        msg = "there is no Node"
        raise CannotHaveError(msg)
    home = HOME / f"azurite-{AZURITE}"
    if not (home / "done").exists():
        home.mkdir(parents=True, exist_ok=True)
        # In its folder and not by --prefix: an unfinished one is then taken up again.
        (home / "package.json").write_text("{}")
        run(npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", f"azurite@{AZURITE}", cwd=home)
        (home / "done").touch()
    return node, home / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
