"""Hints of several errors: the closest name, and commands that install libraries or fetch files."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping

SKIP_HINT = 'reading(on_error="skip") leaves out such samples'
"""For errors of single samples."""

_LIKE_ENOUGH = 0.6

MOST_POINTER_BYTES = 1024
"""The size limit of a pointer (see `pointer_in`)."""
POINTER_BEGINNINGS = (b"version https:/", b"/annex/objects/")
"""The first 15 bytes of a pointer, for a check that costs less than `pointer_in`; a text may begin with them too."""
_POINTERS = (
    ("Git LFS", "git lfs pull", re.compile(rb"version https://(?:git-lfs|hawser)\.github\.com/spec/")),
    ("git-annex", "git annex get", re.compile(rb"/annex/objects/[^\n/]")),
)
_POINTED_BYTES = re.compile(rb"\nsize (\d+)|^[^\n]*?-s(\d+)-")

LIBRARIES_OF_EXTRA: Mapping[str, str] = {
    "images": "pillow simplejpeg",
    "audio": "soundfile",
    "video": "av",
    "remote": "obstore pycurl",
    "tables": "pyarrow",
    "delta": "deltalake pyarrow",
    "iceberg": "pyiceberg pyarrow",
    "hudi": "hudi pyarrow",
    "lance": "pylance",
    "hub": "huggingface_hub",
    "formats": "zstandard brotli cramjam google-crc32c msgpack cbor2 msgspec xxhash pyyaml",
    "tokens": "tokenizers jinja2",
    "report": "matplotlib",
    "spark": "pyspark",
    "ray": "ray",
}
"""The libraries of each extra of shoal, as arguments of pip."""


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


def no_attribute(owner: str, name: str, known: Iterable[str]) -> str:
    """Return the message of an `AttributeError`, with the closest public name.

    Raise the error without ``obj=``: with it, Python would print a suggestion of its own.

    >>> no_attribute("module 'shoal'", "opne", ["open", "mix"])
    "module 'shoal' has no attribute 'opne'; did you mean 'open'?"
    """
    closest = did_you_mean(name, (public for public in known if not public.startswith("_"))).rstrip()
    return f"{owner} has no attribute {name!r}" + (f"; {closest}" if closest and not name.startswith("_") else "")


def pip_install(*libraries: str, upgrade: bool = False) -> str:
    """Return the command that installs libraries of one extra by name, so that it works in a checkout.

    >>> pip_install("pyarrow")
    "pip install pyarrow (or 'shoal[tables]')"
    """
    extra = next(name for name, known in LIBRARIES_OF_EXTRA.items() if libraries[0] in known.split())
    return f"pip install {'--upgrade ' * upgrade}{' '.join(libraries)} (or 'shoal[{extra}]')"


def pointer_in(data: bytes) -> tuple[str, str] | None:
    r"""Return a message and a hint for a pointer of Git LFS or git-annex to content that it has to fetch; else None.

    ``data`` are all bytes of the file.

    >>> pointer_in(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n")[0]
    'this is a pointer of Git LFS, not the 12,345 bytes'
    """
    if len(data) > MOST_POINTER_BYTES:
        return None
    for tool, command, beginning in _POINTERS:
        if beginning.match(data):
            size = _POINTED_BYTES.search(data)
            content = "content" if size is None else f"{int(size[1] or size[2]):,} bytes"
            hint = f"`{command}` in its repository fetches the file; if this is a copy, then copy the fetched file"
            return f"this is a pointer of {tool}, not the {content}", hint
    return None
