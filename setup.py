"""The optional compiled module (design/compiled.md); pyproject.toml has the rest.

Without a compiler nothing is built, and Python does the same. ``SHOAL_PURE_PYTHON=1`` leaves the module out on purpose:
the wheel is then for any machine.
"""

import os

from setuptools import Extension, setup

CUTTING = Extension(
    "shoal.formats._cutting",
    ["src/shoal/formats/_cutting.c", "src/shoal/formats/_gathering.c", "src/shoal/formats/_tar_scanning.c"],
    depends=["src/shoal/formats/_cutting.h", "src/shoal/formats/_tar_headers.h"],
    extra_compile_args=["-g0"],  # debug information names the folder of the build, and two builds would differ
    optional=True,
    py_limited_api=True,
)

setup(ext_modules=[] if os.environ.get("SHOAL_PURE_PYTHON", "0") not in ("", "0") else [CUTTING])
