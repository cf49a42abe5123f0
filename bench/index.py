"""How fast tars are indexed, headers fully checked, warm, on one core.

``python bench/index.py`` writes tars of small members in the forms that people have, scans each several times in this
process, and prints the best CPU time, next to Python's own `tarfile` over the same archive.
"""

from __future__ import annotations

import os
import tarfile
import tempfile
import time
from collections.abc import Callable
from io import BytesIO
from pathlib import Path

from shoal.formats.rows.tar.reader import Tar

NUM_MEMBERS, MEMBER_BYTES, ROUNDS = 40_000, 4096, 7
WANTED_PER_SECOND = 200_000


def main() -> None:
    print(
        f"{NUM_MEMBERS:,} members of {MEMBER_BYTES:,} bytes, best of {ROUNDS}, wanted {WANTED_PER_SECOND:,}/s and core"
    )
    print(f"{'':34} {'shoal':>12} {'tarfile':>12}   members/s of CPU")
    forms = {
        "ustar, one member a sample": (tarfile.USTAR_FORMAT, 0.0, "{:08d}.bin", 1),
        "ustar, two members a sample": (tarfile.USTAR_FORMAT, 0.0, "{:08d}.{}", 2),
        "pax, with times (webdataset's)": (tarfile.PAX_FORMAT, 1.5, "{:08d}.bin", 1),
    }
    with tempfile.TemporaryDirectory() as directory:
        for name, (kind, mtime, pattern, fields) in forms.items():
            path = Path(directory, "one.tar")
            write(path, kind, mtime, pattern, fields)
            descriptor = os.open(path, os.O_RDONLY)

            def read(first: int, end: int, descriptor: int = descriptor) -> bytes:
                return os.pread(descriptor, end - first, first)

            size = path.stat().st_size
            ours = best(lambda: Tar().scan(read, size, shard="one.tar"), ROUNDS)  # noqa: B023
            theirs = best(lambda: tarfile.open(path).getmembers(), 2)  # noqa: B023, SIM115
            os.close(descriptor)
            print(f"{name:34} {NUM_MEMBERS / ours:12,.0f} {NUM_MEMBERS / theirs:12,.0f}")


def write(path: Path, kind: int, mtime: float, pattern: str, fields: int) -> None:
    with tarfile.open(path, "w", format=kind) as tar:
        for number in range(NUM_MEMBERS):
            info = tarfile.TarInfo(pattern.format(number // fields, f"f{number % fields}"))
            info.size, info.mtime = MEMBER_BYTES, mtime
            tar.addfile(info, BytesIO(bytes(MEMBER_BYTES)))


def best(work: Callable[[], object], rounds: int) -> float:
    times = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


if __name__ == "__main__":
    main()
