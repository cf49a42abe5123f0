"""Memory is the window, what is read ahead, and little else: measured in processes of their own."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tarfile
import textwrap
from pathlib import Path
from typing import Any

import pytest

from shoal.indexing.index_files import save_index
from shoal.storage.files.local_store import LocalStore
from shoal.stream.open_dataset import open_dataset

MIB = 2**20
WINDOW_BYTES = 16 * MIB
SCRIPT = """
    import json, sys
    sys.path[:0] = {path!r}
    import shoal
    ds = shoal.open({data!r}, index={index!r}).shuffle(seed=1, window={window}).batch(64)
    ds.stream.opened.store.reads_ahead = {told}
    total = 0
    for batch in ds:
        total += sum(map(len, batch["bin"]))
    status = dict(line.split(":", 1) for line in open("/proc/self/status"))
    chunks = ds.resolved.chunks
    told = {{
        "peak_bytes": int(status["VmHWM"].split()[0]) * 1024,
        "total": total,
        "largest_chunk_bytes": int((chunks.end_byte - chunks.first_byte).max()),
        "num_canonical_nodes": ds.resolved.order.resolved_nodes,
        **ds.stats(),
    }}
    print(json.dumps(told))
"""


def write_large(directory: Path, *, member_bytes: int, num_bytes: int, num_shards: int = 4) -> Path:
    """Shards of members of one size; what they hold does not matter here."""
    directory.mkdir()
    payload = bytes(-(-member_bytes // 512) * 512)
    for shard in range(num_shards):
        with (directory / f"{shard}.tar").open("wb") as file:
            for number in range(num_bytes // num_shards // member_bytes):
                member = tarfile.TarInfo(f"{shard}-{number:06d}.bin")
                member.size = member_bytes
                file.write(member.tobuf(tarfile.USTAR_FORMAT))
                file.write(payload)
            file.write(bytes(1024))
    return directory


def streamed(data: Path, index: str, *, told: bool) -> dict[str, Any]:
    source = [str(Path(__file__).parents[2] / "src")]
    script = SCRIPT.format(path=source, data=str(data), index=index, window=WINDOW_BYTES, told=told)
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the peak from /proc")
@pytest.mark.parametrize("member_bytes", [4096, 100_000])
def test_the_peak_is_the_window_and_a_constant(member_bytes: int, tmp_path: Path) -> None:
    data = write_large(tmp_path / "data", member_bytes=member_bytes, num_bytes=200 * MIB)
    num_samples = 4 * (50 * MIB // member_bytes)
    index = save_index(open_dataset(data).stream.opened.index, tmp_path / "x.index", store=LocalStore())
    for told in (True, False):
        found = streamed(data, index, told=told)
        print(member_bytes, told, found)
        assert found["total"] == num_samples * member_bytes
        assert found["num_samples"] == num_samples
        # A chunk that is cut by the border of two canonical nodes is met in both, at times that may lie far apart.
        assert found["num_rereads"] < found["num_canonical_nodes"]
        # Each of many threads has a heap of its own.
        assert found["peak_bytes"] <= WINDOW_BYTES + (64 if told else 104) * MIB
        ahead = max(WINDOW_BYTES // 4, 8 * MIB, 2 * found["largest_chunk_bytes"])
        around_chunks = 2 * found["num_canonical_nodes"] * found["largest_chunk_bytes"]
        assert found["peak_held_bytes"] <= WINDOW_BYTES + ahead + around_chunks


def test_a_stream_does_not_keep_what_it_yields(tmp_path: Path) -> None:
    """Records are views of nothing: a sample alone keeps no chunk."""
    data = tmp_path / "a.tar"
    with tarfile.open(data, "w") as tar:
        for number in range(20):
            member = tarfile.TarInfo(f"{number}.bin")
            member.size = 1000
            tar.addfile(member, io.BytesIO(bytes(1000)))
    for sample in open_dataset(data).shuffle(seed=1):
        assert type(sample["bin"]) is bytes
        assert len(sample["bin"]) == 1000
