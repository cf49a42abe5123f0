"""What it costs to look at all borders of a tar's foreign index: against a scan, and when samples are parsed.

    python bench/tar_borders.py

Tars of three members a sample with Energon's index, on a file of this machine: CPU time of a scan, of the index with
the headers at all borders (near), and with 8 places alone (far). Then of parsing 1 MiB at a time where nobody has
looked at the borders before, and where somebody has.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from shoal.formats.format_registry import format_named
from shoal.formats.metadata.third_party_index import scan_by_index
from shoal.formats.shard_format import Span
from shoal.storage.files.local_store import LocalStore

TAR = format_named("tar")
ROUNDS = 7


def make(path: str, num_samples: int, num_bytes: int, *, pax: bool) -> None:
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT if pax else tarfile.USTAR_FORMAT) as tar:
        for number in range(num_samples):
            for suffix, size in (("jpg", num_bytes), ("json", 200), ("cls", 2)):
                info = tarfile.TarInfo(f"d/{number:07d}.{suffix}")
                info.size, info.mtime = size, 1.5 if pax else 1
                tar.addfile(info, io.BytesIO(b"x" * size))


def parsed(data: bytes, starts: np.ndarray, told: object) -> None:
    each = max(1, (1 << 20) * len(starts) // len(data))
    for at in range(0, len(starts) - 1, each):
        part = starts[at : at + each + 1]
        within = Span("s", int(part[0]), len(part) - 1, (part - part[0]).tolist(), {"by_borders": told})
        records = TAR.parse(data[part[0] : part[-1]], within)
        for number in range(len(records)):
            records.sample(number)


def best(works: dict[str, Callable[[], object]], num_samples: int) -> str:
    found = dict.fromkeys(works, float("inf"))
    for _ in range(ROUNDS):
        for name, work in works.items():
            before = time.process_time()
            work()
            found[name] = min(found[name], time.process_time() - before)
    return "  ".join(f"{name} {1e6 * seconds / num_samples:7.2f} us" for name, seconds in found.items())


def main() -> None:
    for num_samples, num_bytes, pax in ((10_000, 4000, False), (10_000, 4000, True), (3000, 60_000, False)):
        with tempfile.TemporaryDirectory() as directory:
            path = f"{directory}/a.tar"
            make(path, num_samples, num_bytes, pax=pax)
            data = Path(path).read_bytes()
            starts = TAR.scan(lambda a, b, d=data: d[a:b], len(data), shard="s").sample_starts
            index, read = starts.astype("<u8").tobytes(), partial(LocalStore().read_range, path)
            by_index = partial(scan_by_index, TAR, index, read, len(data), shard="s")
            print(f"{num_samples} samples of {num_bytes} bytes{', PAX headers' * pax}, a sample")
            works = {"scan": partial(TAR.scan, read, len(data), shard="s"), "near": by_index}
            print("   ", best({**works, "far": partial(by_index, is_local=False)}, num_samples))
            works = {
                "parsed, not seen": partial(parsed, data, starts, True),
                "seen": partial(parsed, data, starts, "all seen"),
            }
            print("   ", best(works, num_samples))


if __name__ == "__main__":
    main()
