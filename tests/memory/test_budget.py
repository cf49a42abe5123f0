"""A stream keeps to its budget: memory is the window plus a constant, whatever the samples and wherever they lie."""

from __future__ import annotations

import json
import sys
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from tests.memory.pss import MIB, peak_of

import shoal
from shoal.testing import RangeServer

CONSTANT_BYTES = 120 * MIB  # the interpreter, numpy, connections, threads, what the allocator keeps

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")

STREAM = """
import json, sys
source, window, batch, where = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
if where == "plain":
    sys.modules["pycurl"] = None
import shoal
ds = shoal.open(source).shuffle(seed=1, window=window)
seen = 0
for item in ds.batch(batch) if batch else ds:
    data = item["bin"]
    seen += sum(map(len, data)) if batch else len(data)
print(json.dumps([seen, ds.stats()["peak_held_bytes"]]))
"""


def write_tars(directory: Path, member_bytes: int, total_bytes: int, num_shards: int = 4) -> int:
    """Tars of members of one length, quickly; the bytes of all members."""
    directory.mkdir()
    payload = np.random.default_rng(0).bytes(member_bytes)
    padding = bytes(-member_bytes % 512)
    num_members = total_bytes // member_bytes // num_shards
    for shard in range(num_shards):
        with (directory / f"train-{shard:06d}.tar").open("wb") as file:
            for number in range(num_members):
                info = tarfile.TarInfo(f"{shard}-{number:07d}.bin")
                info.size = member_bytes
                file.write(info.tobuf(tarfile.USTAR_FORMAT) + payload + padding)
            file.write(bytes(10240))
    return num_members * num_shards * member_bytes


class Shards:
    """Datasets by the length of their samples, each behind a server too; made when first asked for."""

    def __init__(self, directory: Path, total_bytes: int, stack: ExitStack) -> None:
        self._directory, self._total_bytes, self._stack = directory, total_bytes, stack
        self._known: dict[int, tuple[int, str, str]] = {}

    def of(self, member_bytes: int) -> tuple[int, str, str]:
        """Bytes of all members, the glob, the URL."""
        if member_bytes not in self._known:
            directory = self._directory / str(member_bytes)
            num_bytes = write_tars(directory, member_bytes, self._total_bytes)
            server = self._stack.enter_context(RangeServer(directory, latency_seconds=0.002))
            url = f"{server.url}/train-{{000000..000003}}.tar"
            self._known[member_bytes] = num_bytes, f"{directory}/*.tar", url
            # Once, and not in what is measured.
            shoal.open(url)
            shoal.open(f"{directory}/*.tar")
        return self._known[member_bytes]


def shards_in(factory: pytest.TempPathFactory, total_bytes: int) -> Iterator[Shards]:
    directory = factory.mktemp("budget")
    with pytest.MonkeyPatch.context() as patch, ExitStack() as stack:
        patch.setenv("SHOAL_CACHE_DIR", str(directory / "cache"))
        yield Shards(directory, total_bytes, stack)


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shards]:
    yield from shards_in(tmp_path_factory, 96 * MIB)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shards]:
    yield from shards_in(tmp_path_factory, 1024 * MIB)


def check(shards: Shards, window_mib: int, member_bytes: int, where: str, batch: int) -> None:
    num_bytes, glob, url = shards.of(member_bytes)
    peak = peak_of(STREAM, glob if where == "near" else url, f"{window_mib}MiB", str(batch), where)
    seen, held_bytes = json.loads(peak.printed)
    assert seen == num_bytes
    assert peak.num_samples > 5
    print(
        f"{window_mib} MiB, {member_bytes}, {where}, batch {batch}: {peak.peak_bytes / MIB:.0f}, {held_bytes / MIB:.0f}"
    )
    assert peak.peak_bytes < window_mib * MIB + CONSTANT_BYTES


WHERE = ["near", "far", "plain"]  # far by libcurl, and by the standard library's client


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize(("window_mib", "member_bytes"), [(16, 4096), (16, 1_000_000), (64, 4096)])
def test_memory_is_the_window_and_a_constant(some: Shards, window_mib: int, member_bytes: int, where: str) -> None:
    check(some, window_mib, member_bytes, where, 0)


@pytest.mark.soak
@pytest.mark.parametrize("batch", [0, 16])
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("member_bytes", [4096, 100_000, 1_000_000])
@pytest.mark.parametrize("window_mib", [16, 64, 256])
def test_memory_of_long_runs(many: Shards, window_mib: int, member_bytes: int, where: str, batch: int) -> None:
    check(many, window_mib, member_bytes, where, batch)
