"""What each packer is asked to do: pack the files of a directory, or list the keys of what was packed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

PROCESSES = 2


class PackingJob(NamedTuple):
    """Files to pack into ``out``; ``is_retry`` after an earlier run was killed."""

    files: list[str]
    out: str
    shard_bytes: int
    is_retry: bool

    def parts(self, count: int) -> list[list[str]]:
        """The files in so many runs of about the same length."""
        borders = [len(self.files) * part // count for part in range(count + 1)]
        return [self.files[begin:end] for begin, end in pairwise(borders)]


def sample_of(path: str) -> dict[str, str | bytes]:
    return {"key": Path(path).stem, "data": Path(path).read_bytes()}


def begun() -> None:
    """Tell who measures that engines and modules are there, and packing begins."""
    Path(os.environ["PACKING_BEGUN"]).touch()


def main(write: Callable[[PackingJob], None], read: Callable[[str], Iterable[str]]) -> None:
    """``SCRIPT write FILES OUT SHARD_BYTES [retry]``, or ``SCRIPT read OUT KEYS``."""
    arguments: Sequence[str] = sys.argv[1:]
    if arguments[0] == "write":
        files = sorted(str(path) for path in Path(arguments[1]).rglob("*.bin"))
        write(PackingJob(files, arguments[2], int(arguments[3]), "retry" in arguments))
    else:
        Path(arguments[2]).write_text("\n".join(read(arguments[1])))
