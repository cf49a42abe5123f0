"""The optional compiled modules (design/compiled.md); pyproject.toml has the rest.

Without a compiler nothing is built, and Python does the same. ``SHOAL_PURE_PYTHON=1`` leaves the module out on purpose:
the wheel is then for any machine.
"""

import os
from pathlib import Path

from setuptools import Extension, setup


def compiled(name: str, *sources: str) -> Extension:
    """Return the extension with this name, from C sources in its folder; the headers there belong to it."""
    folder = Path("src", *name.split(".")[:-1])
    return Extension(
        name,
        [str(folder / source) for source in sources],
        depends=sorted(map(str, folder.glob("*.h"))),
        extra_compile_args=["-g0"],  # debug information names the folder of the build, and two builds would differ
        optional=True,
        py_limited_api=True,
    )


EXTENSIONS = [
    compiled("shoal.formats._cutting", "_cutting.c", "_gathering.c", "_tar_scanning.c"),
    compiled("shoal.storage.http._exchange", "_exchange.c"),
]

setup(ext_modules=[] if os.environ.get("SHOAL_PURE_PYTHON", "0") not in ("", "0") else EXTENSIONS)
