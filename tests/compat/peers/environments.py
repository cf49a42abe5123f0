"""The environments of other packages, each made once below ``.compat/``, with the versions pinned here.

What cannot be had is `CannotHaveError` with the reason.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tests.environments import ROOT, CannotHaveError, environment, home_of, run

HOME = ROOT / ".compat" / "peers"


class Peer(NamedTuple):
    """What a peer needs: packages, torch before them, a program of this machine.

    ``alone`` are packages that are installed without what they ask for: a torchvision, and with it another torch, of
    5 GB.
    """

    packages: tuple[str, ...] = ()
    torch: bool = False
    program: str = ""
    alone: tuple[str, ...] = ()


# What Streaming and LitData need of all that they ask for.
NEEDED_BESIDE_TORCH = (
    *("numpy<2.2", "boto3", "braceexpand", "brotli", "filelock", "fsspec", "lightning-utilities", "obstore"),
    *("pillow>=11", "python-snappy", "pyyaml", "requests", "tifffile", "tqdm", "transformers<5", "catalogue<3"),
    *("xxhash<4", "zstd"),
)


PEERS = {
    "polars": Peer(("polars==2.1.0",)),
    "duckdb": Peer(("duckdb==2.0.0", "pyarrow==26.0.1")),
    "pyarrow": Peer(("pyarrow==18.1.0",)),
    "delimited": Peer(("pandas==3.1.1", "polars==2.1.0", "duckdb==2.0.0")),
    "spark": Peer(("pyspark==4.0.1",), program="java"),
    "datasets": Peer(("datasets==5.2.0", "pillow>=11")),
    "tfrecord": Peer(("tfrecord==1.14.6",)),
    "webdataset": Peer(("webdataset==1.0.2", "pillow>=11", "msgpack==1.2.4")),
    "streaming": Peer(NEEDED_BESIDE_TORCH, torch=True, alone=("mosaicml-streaming==0.13.0",)),
    "litdata": Peer((*NEEDED_BESIDE_TORCH, "pyarrow==26.0.1"), torch=True, alone=("litdata==0.2.76",)),
    "gnutar": Peer(program="tar"),
    "bsdtar": Peer(program="bsdtar"),
}
# Peers whose orders are compared, and other versions of them.
OF_ORDERS = {
    "datasets40": Peer(("datasets==4.0.0",), torch=True),
    "datasets44": Peer(("datasets==4.4.2",), torch=True),
    "datasets48": Peer(("datasets==4.8.5",), torch=True),
    "datasets50": Peer(("datasets==5.0.0",), torch=True),
    "datasets52": Peer(("datasets==5.2.0",), torch=True, alone=("torchdata==0.11.0",)),
    "grain": Peer(("grain==0.2.18",)),
    "webdataset-torch": Peer(("webdataset==1.0.2",), torch=True),
}
# Peers whose tokens are compared.
TRANSFORMERS = ("transformers==5.24.0", "accelerate==1.15.0")
OF_TOKENS = {
    "transformers": Peer(("transformers==5.24.0", "jinja2==3.1.6")),
    "trl": Peer(("trl==1.16.0", "datasets==5.2.0", *TRANSFORMERS), torch=True),
    # Its sampler needs these alone; all that axolotl asks for would take several GB.
    "axolotl": Peer(("numba==0.68.1", "colorama==0.4.6", *TRANSFORMERS), torch=True, alone=("axolotl==0.19.0",)),
}
# mosaicml-streaming imports torchvision for one function, litdata decodes JPEG by it, and PyPI's torchvision does not
# load next to every torch.
TORCHVISION = {
    "torchvision/__init__.py": "",
    "torchvision/transforms/__init__.py": "",
    "torchvision/transforms/functional.py": "def to_tensor(image):\n    raise NotImplementedError\n",
    "torchvision/datasets/__init__.py": "class VisionDataset:\n    pass\n",
    "torchvision/io/__init__.py": """import io
import numpy as np
import torch
from PIL import Image


class ImageReadMode:
    RGB = "RGB"


def decode_jpeg(data, mode):
    image = Image.open(io.BytesIO(data.numpy().tobytes())).convert(mode)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


decode_image = decode_jpeg
""",
}


def title_of(name: str) -> str:
    """A peer with its version, as far as that is pinned.

    >>> title_of("polars"), title_of("gnutar")
    ('polars 2.1.0', 'gnutar (as installed)')
    """
    peer = (PEERS | OF_ORDERS | OF_TOKENS)[name]
    pinned = dict(wanted.split("==") for wanted in (*peer.alone, *peer.packages) if "==" in wanted)
    version = next((number for package, number in pinned.items() if name in package), None)
    if version is None and pinned:
        return f"{name}: {', '.join(f'{package} {number}' for package, number in pinned.items())}"
    return f"{name} (as installed)" if version is None else f"{name} {version}"


def python_of(name: str) -> Path:
    """The Python that has a peer; the one running where the peer is a program alone."""
    peer = (PEERS | OF_ORDERS | OF_TOKENS)[name]
    if peer.program and shutil.which(peer.program) is None:
        msg = f"{peer.program} is not installed"
        raise CannotHaveError(msg)
    if not peer.packages:
        return Path(sys.executable)
    stand_ins = TORCHVISION if peer.torch else None
    return environment(home_of(HOME, name), peer.packages, alone=peer.alone, stand_ins=stand_ins, torch=peer.torch)


def run_in(python: Path, script: Path, *arguments: str | Path) -> None:
    """Run a script with a peer's Python, without our own package in sight."""
    offline = {"TZ": "UTC", "HF_HUB_OFFLINE": "1", "HF_HOME": str(HOME / "hf"), "LITDATA_DISABLE_VERSION_CHECK": "1"}
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        run(python, script, *arguments, env=inherited | offline)
    except CannotHaveError as error:  # here the peer is, and its script fails
        raise RuntimeError(*error.args) from error


def in_own_cache(main: Callable[[], int]) -> int:
    """Run a comparison with a cache of its own, so that nothing of it stays in that of who runs it."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["SHOAL_CACHE_DIR"] = cache
        return main()
