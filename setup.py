"""The optional compiled modules (design/compiled.md); pyproject.toml has the rest.

Without a compiler nothing is built, and Python does the same. ``SHOAL_PURE_PYTHON=1`` leaves the module out on purpose:
the wheel is then for any machine.
"""

import os
import sys

from setuptools import Extension, setup


def compiled(name: str) -> Extension:
    """Return the extension with this name, whose source has the same name."""
    return Extension(
        name,
        [f"src/{name.replace('.', '/')}.c"],
        extra_compile_args=["-g0"],  # debug information names the folder of the build, and two builds would differ
        optional=True,
        py_limited_api=True,
    )


NAMES = ["shoal.formats._cutting"]
if sys.platform != "win32":  # sockets of Windows have other functions
    NAMES.append("shoal.storage.http._exchange")

setup(ext_modules=[] if os.environ.get("SHOAL_PURE_PYTHON", "0") not in ("", "0") else [*map(compiled, NAMES)])
