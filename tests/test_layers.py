"""The laws of the house hold, and a broken one is found."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.core_doors import DOORS_OF_THE_CORE
from tests.layers import (
    AROUND_THE_CORE,
    MAX_FILE_LINES,
    MAX_FUNCTION_LINES,
    imports_of,
    read_sources,
    room_of,
    violations,
)

PACKAGE = Path(__file__).parent.parent / "src" / "shoal"

# A small house that keeps every law; each case below breaks one.
GOOD = {
    "shoal": "from shoal import errors\nfrom shoal.stream.dataset import open\n",
    "shoal.errors": "class ShoalError(Exception):\n    pass\n",
    "shoal.order": "",
    "shoal.order.seeds": "import numpy as np\nrng = np.random.default_rng\n",
    "shoal.order.window": "import numpy as np\nfrom shoal.errors import ShoalError\nfrom shoal.order import seeds\n",
    "shoal.formats": "",
    "shoal.formats.tar": "import zlib\nfrom shoal import errors\n",
    "shoal.storage": "",
    "shoal.storage.local": "import os\nf = open('x')\nos.pread(3, 1, 1)\n",
    "shoal.reading": "",
    "shoal.reading.units": "from shoal.order.window import seeds\nfrom shoal.formats import tar\n",
    "shoal.stream": "",
    "shoal.stream.dataset": (
        "import threading\nfrom shoal.reading import units\ndef open(x):\n    return x\nopen('x')\n"
        "class Dataset:\n    def _then(self):\n        self._x = self._then()\n"
    ),
    "shoal.tools.reports": "",
    "shoal.tools.reports.rendering": "import matplotlib\n",
    "shoal.integrations": "",
    "shoal.integrations.torch": "import torch\nfrom shoal.stream.dataset import open\n",
    "shoal.torch": "from shoal.integrations.torch import open\n",
    "shoal.cli": "",
    "shoal.cli.output": "print('said')\n",
    "shoal.cli.main": "import shoal\nfrom shoal.cli import output\nopen('picture.svg', 'w')\n",
}

LONG_FUNCTION = "def long():\n" + "    x = 1\n" * MAX_FUNCTION_LINES
WELL_DOCUMENTED = 'def f():\n    """One.\n' + "    line\n" * 100 + '    """\n    return 1\n'

BROKEN = [
    ("shoal.order.window", "from shoal.formats import tar", "order must not import formats"),
    ("shoal.formats.tar", "import shoal.storage.local", "formats must not import storage"),
    ("shoal.storage.local", "from shoal.reading.units import tar", "storage must not import reading"),
    ("shoal.reading.units", "from shoal.stream import dataset", "reading must not import stream"),
    ("shoal.reading", "from shoal.stream import dataset", "reading must not import stream"),
    ("shoal.stream.dataset", "import shoal", "face"),
    ("shoal.stream.dataset", "from shoal import open", "face"),
    ("shoal.integrations.torch", "from shoal import open", "face"),
    ("shoal.reading.units", "from shoal.cli import output", "reading is of the core, and cli builds on it"),
    ("shoal.integrations.torch", "from shoal.reading import units", "is no door of the core to integrations"),
    ("shoal.order.window", "from ..formats import tar", "order must not import formats"),
    ("shoal.order", "from ..formats import tar", "order must not import formats"),
    ("shoal.errors", "from shoal.order import seeds", "errors must not import order"),
    ("shoal.stream.dataset", "def f():\n    from shoal.reading import units", "elsewhere than at the top"),
    ("shoal.stream.dataset", "if True:\n    from shoal.reading import units", "elsewhere than at the top"),
    ("shoal.reading.units", "from shoal.formats import _cutting", "only shoal.formats.compiled_cutting imports"),
    ("shoal.order.seeds", "from shoal.order import window", "import circle"),
    ("shoal.stream.dataset", "def f(x):\n    return isinstance(x, ResolvedMixture)", "asks for ResolvedMixture"),
    ("shoal.integrations.torch", "def f(ds):\n    return ds._then()", "reaches ds._then, which is private"),
    ("shoal.integrations.torch", "def f(loader):\n    loader.ds._x = 3", "reaches loader.ds._x, which is private"),
    ("shoal.gadgets.x", "x = 1", "'gadgets' is no room"),
    ("shoal.order.utils", "x = 1", "'utils' says nothing"),
    ("shoal.stream.dataset", "def f():\n    import torch", "torch belongs to"),
    ("shoal.tools.reports", "import jax.numpy as jnp", "jax belongs to"),
    ("shoal.tools.reports", "from matplotlib import pyplot", "matplotlib belongs to"),
    ("shoal.order.window", "import scipy", "scipy is not among the libraries"),
    ("shoal.order.window", "from concurrent.futures import Future", "concurrent belongs to"),
    ("shoal.storage.local", "import threading", "threading belongs to"),
    ("shoal.cli.main", "import subprocess", "subprocess belongs to"),
    ("shoal.stream.dataset", "import socket", "socket belongs to"),
    ("shoal.stream.dataset", "import urllib.request", "urllib.request belongs to"),
    ("shoal.stream.dataset", "from urllib import request", "urllib.request belongs to"),
    ("shoal.order.window", "import random", "random belongs to"),
    ("shoal.order.window", "from numpy.random import default_rng", "numpy.random belongs to"),
    ("shoal.order.window", "from numpy import random", "numpy.random belongs to"),
    ("shoal.order.window", "import numpy as xx\nxx.random.seed(1)", "numpy.random belongs to"),
    ("shoal.reading.units", "import importlib\nimportlib.import_module('x')", "importlib.import_module belongs to"),
    ("shoal.reading.units", "from importlib import import_module", "importlib.import_module belongs to"),
    ("shoal.stream.dataset", "__import__('torch')", "cannot be read"),
    ("shoal.formats.tar", "f = open('x')", "open() reads or writes a file"),
    ("shoal.formats.tar", "import io\nf = io.open('x')", "io.open() reads or writes a file"),
    ("shoal.formats.tar", "from os import pread as p\np(1, 2, 3)", "os.pread() reads or writes a file"),
    ("shoal.formats.tar", "import numpy as np\nnp.memmap('x')", "numpy.memmap() reads or writes a file"),
    ("shoal.formats.tar", "from pathlib import Path\nPath('x').read_bytes()", "reads or writes a file"),
    ("shoal.formats.tar", "def f():\n    print('x')", "prints"),
    ("shoal.cli.main", "print('x')", "prints"),
    ("shoal.stream.dataset", "import sys\nsys.stderr.write('x')", "sys.stderr belongs to"),
    ("shoal.stream.dataset", "from sys import stdout as out\nout.write('x')", "sys.stdout belongs to"),
    ("shoal.formats.tar", "x = 1\n" * (MAX_FILE_LINES + 1), "are the ceiling"),
    ("shoal.formats.tar", LONG_FUNCTION, "long has 61 lines"),
    ("shoal.formats.tar", 'def f():\n    """Whether it is."""', "a docstring opens with 'Whether'"),
    ("shoal.formats.tar", 'class A:\n    """The same for tars."""', "a docstring opens with 'The same'"),
    ("shoal.stream.tar", "x = 1", "'tar' is the name of shoal.formats.tar, too"),
    *((f"shoal.order.order{number}", "", "has 17 modules; 14 are the ceiling") for number in (14,)),
]


def test_the_package_keeps_every_law() -> None:
    assert violations(read_sources(PACKAGE)) == []


def test_every_door_of_the_core_is_used() -> None:
    sources = read_sources(PACKAGE)
    uses = {
        (item.target, room)
        for name, source in sources.items()
        if (room := room_of(name, sources)) in AROUND_THE_CORE
        for item in imports_of(ast.parse(source), name, is_package=False)
    }
    unused = [
        (door, room)
        for door, rooms in DOORS_OF_THE_CORE.items()
        for room in rooms.split()
        if not any(target.startswith(f"shoal.{door}") for target, user in uses if user == room)
    ]
    assert unused == []


def test_a_good_house_is_found_good() -> None:
    assert violations(GOOD) == []


@pytest.mark.parametrize(("module", "source", "complaint"), BROKEN)
def test_a_broken_law_is_found(module: str, source: str, complaint: str) -> None:
    house = GOOD | {module: f"{GOOD.get(module, '')}{source}\n"}
    if module.startswith("shoal.order.order"):
        house |= {f"shoal.order.order{number}": "" for number in range(15)}
    found = violations(house)
    assert any(complaint in text for text in found), found


def test_docstrings_do_not_count_against_a_function() -> None:
    assert violations(GOOD | {"shoal.order.window.order": WELL_DOCUMENTED}) == []


def test_importing_shoal_loads_numpy_and_the_standard_library_only() -> None:
    # numpy first: what numpy brings along is numpy's business.
    script = (
        "import sys, numpy; before = set(sys.modules); import shoal\n"
        "roots = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(roots - set(sys.stdlib_module_names) - {'shoal', 'numpy'}))"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
