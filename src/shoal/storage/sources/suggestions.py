"""Names near a path that does not exist: most wrong paths are nearly right."""

from __future__ import annotations

import difflib
import os
from itertools import islice

_MAX_LISTED = 10_000


def what_is_there(path: str) -> str:
    """Return a sentence about the nearest existing directory above ``path``, with names most like the missing one."""
    directory, name = os.path.split(path)
    while not os.path.isdir(directory) and os.path.dirname(directory) != directory:
        directory, name = os.path.split(directory)
    try:
        with os.scandir(directory) as entries:
            names = [entry.name + "/" * entry.is_dir() for entry in islice(entries, _MAX_LISTED)]
    except OSError as error:
        return f"{directory} cannot be listed: {error.strerror}"
    if not names:
        return f"{directory} is empty"
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5) or sorted(names)[:3]
    more = f", {len(names) - len(near)} more" if len(names) > len(near) else ""
    return f"{directory} has no {name}; it holds {', '.join(near)}{more}"
