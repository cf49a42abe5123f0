"""Servers that are no part of the development environment: fetched once, kept below ``.integration/``.

Nothing of the machine is changed: a virtual environment, a folder of node modules, an unpacked package. What cannot be
had (no network, no registry, no Node) is `CannotHaveError` with the reason, and its tests are skipped by that.
"""

from __future__ import annotations

import functools
import os
import shutil
from pathlib import Path

from tests.compat.peers.environments import NEEDED_BESIDE_TORCH, TORCHVISION
from tests.environments import (
    ROOT,
    TORCH,
    CannotHaveError,
    environment,
    home_of,
    made_once,
    run,
)

HOME = ROOT / ".integration"
SWIFT, AZURITE = "2.38.3", "3.34.0"  # the newest Azurite that takes Node 20
AXE_CORE = "4.14.1"
TESTING = ("pytest==9.2.0", "pytest-timeout==2.4.0", "hypothesis==6.170.15")
ENVIRONMENTS = {
    "frameworks": (
        "accelerate==1.15.0",
        "lightning==2.6.6",
        "torchdata==0.11.0",
        "transformers==5.24.0",
        "trl==1.16.0",
    ),
    "timm": ("timm==1.0.31", "torchvision==0.28.0"),  # the torchvision for the torch of all
    "torchtitan": ("torchtitan==0.3.0", "torchdata==0.11.0"),
    "deepspeed": ("deepspeed==0.19.8", "torchdata==0.11.0"),
    "trackers": ("tensorboard==2.21.0", "wandb==0.31.0", "lightning==2.6.6"),
    "jax": ("jax==0.10.2", *TESTING),
    "datasets": ("datasets==5.2.0", "torchdata==0.11.0", "pillow>=11", *TESTING),
    "ray": ("ray[data,train]==2.60.0", *TESTING),
    "engines": ("dask==2026.8.0", "distributed==2026.8.0", "daft==0.7.26", "apache-beam==2.77.0"),
    "spark": ("pyspark[sql]==4.0.1", "pyarrow==26.0.1", *TESTING),
    "peers": NEEDED_BESIDE_TORCH,
    "tables": ("polars==2.1.0", "duckdb==2.0.0", "pyarrow==26.0.1", "numpy>=2"),
    # Decoders for GPUs, which also work on processors.
    "nvimgcodec": ("nvidia-nvimgcodec-cu12==0.9.0.20", "numpy>=2"),
    "dali": ("nvidia-dali-cuda120==2.4.0", "numpy>=2", "pillow>=11", *TESTING),
    # The torch of CUDA, 5 GB: the torch of all, for processors, cannot load the decoder. "===" refuses "2.13.0+cpu".
    "torchvision": (f"torch==={TORCH}", "torchvision==0.28.0", "pillow>=11", *TESTING),
}
# Installed without what they ask for: a torchvision, and with it another torch, of 5 GB.
_ALONE = {"peers": ("webdataset==1.0.2", "mosaicml-streaming==0.13.0", "litdata==0.2.76", "torchdata==0.11.0")}
_STAND_INS = {
    "peers": TORCHVISION,
    # A torchvision for CUDA has no operators under a torch for CPUs, and its import would describe them.
    "timm": {"torchvision/_meta_registrations.py": ""},
}
_WITH_TORCH = {"frameworks", "trackers", "timm", "torchtitan", "deepspeed", "datasets", "ray", "peers"}
_IMPORTED = ("timm", "torchtitan", "deepspeed")  # what can be installed may yet need a device or a compiler


def python_with(name: str) -> Path:
    """Python in an environment of its own, with the packages of that name in `ENVIRONMENTS`; made once."""
    python = environment(
        home_of(HOME, name),
        ENVIRONMENTS[name],
        alone=_ALONE.get(name, ()),
        stand_ins=_STAND_INS.get(name),
        torch=name in _WITH_TORCH,
    )
    if name in _IMPORTED:
        _import(python, name)
    return python


@functools.cache
def _import(python: Path, name: str) -> None:
    run(python, "-c", f"import {name}")


def swift_programs() -> Path:
    """The folder of the programs of OpenStack Swift, from PyPI, in an environment of its own."""
    return environment(home_of(HOME, f"swift-{SWIFT}"), [f"swift=={SWIFT}"]).parent


def nginx_program() -> Path:
    """nginx of this machine, or the one of its distribution, unpacked beside us."""
    if found := shutil.which("nginx", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin"):
        return Path(found)
    home = HOME / "nginx"
    program = home / "usr" / "sbin" / "nginx"
    with made_once(home, "") as is_missing:
        if is_missing:
            home.mkdir(exist_ok=True)
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
    modules = node_modules(f"azurite@{AZURITE}")
    return shutil.which("node") or "", modules / "azurite" / "dist" / "src" / "blob" / "main.js"


def axe_script() -> Path:
    """The script of axe-core, which checks pages for what readers with disabilities miss, from npm."""
    return node_modules(f"axe-core@{AXE_CORE}") / "axe-core" / "axe.min.js"


def node_modules(package: str) -> Path:
    """The folder of modules with a package of npm, such as ``azurite@3.34.0``."""
    npm = shutil.which("npm")
    if not (shutil.which("node") and npm):
        msg = "there is no Node"
        raise CannotHaveError(msg)
    home = HOME / package.replace("@", "-")
    with made_once(home, "") as is_missing:
        if is_missing:
            home.mkdir(exist_ok=True)
            # In its folder and not by --prefix: an unfinished one is then taken up again.
            (home / "package.json").write_text("{}")
            run(npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", package, cwd=home)
    return home / "node_modules"
