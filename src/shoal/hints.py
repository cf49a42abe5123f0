"""Hints shared by several errors: the name that was probably meant, and the command that installs a library."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

_LIKE_ENOUGH = 0.6

LIBRARIES_OF_EXTRA: Mapping[str, str] = {
    "images": "pillow simplejpeg",
    "audio": "soundfile",
    "video": "av",
    "remote": "obstore pycurl",
    "report": "matplotlib",
    "parquet": "pyarrow",
    "tfrecord": "google-crc32c",
    "zstd": "zstandard",
    "brotli": "brotli",
    "snappy": "cramjam",
    "msgpack": "msgpack",
    "cbor": "cbor2",
    "xxhash": "xxhash",
    "energon": "pyyaml",
    "spark": "pyspark",
    "ray": "ray",
    "tokens": "tokenizers",
    "json": "msgspec",
}
"""What each extra of shoal installs, as pip takes it."""


def did_you_mean(given: object, known: Iterable[object]) -> str:
    """Return the known name closest to ``given`` as a question with a trailing space, or "" if none is close.

    >>> did_you_mean("windw", ["window", "block"]) + "or an object of shoal.orders"
    "did you mean 'window'? or an object of shoal.orders"
    >>> did_you_mean("windw", ["tar", 5])
    ''
    """
    if not isinstance(given, str):
        return ""
    names = {name.lower(): name for name in known if isinstance(name, str)}
    closest = difflib.get_close_matches(given.lower(), names, n=1, cutoff=_LIKE_ENOUGH)
    return f"did you mean {names[closest[0]]!r}? " if closest else ""


def pip_install(extra: str, *, upgrade: bool = False) -> str:
    """Return the command that installs the libraries of an extra, by their own names, which works in a checkout.

    >>> pip_install("parquet")
    "pip install pyarrow (or 'shoal[parquet]')"
    """
    return f"pip install {'--upgrade ' * upgrade}{LIBRARIES_OF_EXTRA[extra]} (or 'shoal[{extra}]')"
