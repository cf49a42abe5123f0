"""What choices while packing read and take: `repack --mix` by the units of a job, and `--dedup content`.

python bench/packing_choices.py mix [FOLDER]
python bench/packing_choices.py dedup [FOLDER]
"""

from __future__ import annotations

import pickle
import resource
import sys
import tempfile
from pathlib import Path

import numpy as np

from shoal.pack import Writer, plan, plan_repack, repack

MIB = 1 << 20


def bytes_read() -> int:
    """Return the bytes that this process has read by system calls (Linux)."""
    return int(Path("/proc/self/io").read_text().split()[1])


def processor_seconds() -> float:
    """Return the seconds of processors that this process and the ones that it has waited for have used."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def mix(folder: Path) -> None:
    """Compare what one mixing pass reads with what the units of the same job read, each on its own."""
    payload = np.random.default_rng(0).bytes(8192)
    with Writer(folder / "in", format="tar", shard_bytes="16MiB") as writer:
        for number in range(16384):
            writer.write({"__key__": f"{number:06d}", "bin": payload, "cls": number // 1024})
    total = sum(path.stat().st_size for path in (folder / "in").glob("*.tar"))
    print(f"source: {total / MIB:.0f} MiB")
    for number, (memory, shard) in enumerate(((2, 16), (8, 32), (8, 8), (32, 8))):
        arguments = {"mix": True, "memory": f"{memory}MiB", "shard_bytes": f"{shard}MiB", "seed": 1}
        began = bytes_read()
        alone = repack(folder / "in", folder / f"one-{number}", num_workers=1, **arguments)
        one_pass = bytes_read() - began
        job = plan_repack(folder / "in", folder / f"units-{number}", **arguments)
        tasks = [pickle.dumps(job.task(unit)) for unit in job.missing()]
        began = bytes_read()
        for task in tasks:
            pickle.loads(task)()
        by_units = bytes_read() - began
        assert job.finish().digest == alone.summary.digest
        said = f"{one_pass / total:.2f} of the source in one pass, {by_units / total:.2f} by {len(tasks)} units"
        print(f"window {memory:2d} MiB, shards of {shard:2d} MiB: {said}")


def dedup(folder: Path) -> None:
    """Measure what finding duplicates by content takes, before files are packed."""
    rng = np.random.default_rng(0)
    for name, num_files, num_bytes in (("small", 50_000, 400), ("large", 200, 2_000_000)):
        root = folder / name
        for number in range(num_files):
            if number % 1000 == 0:
                (root / f"{number // 1000:04d}").mkdir(parents=True)
            path = root / f"{number // 1000:04d}" / f"{number:07d}.bin"
            path.write_bytes(rng.bytes(num_bytes) if number % 2 else b"\0" * num_bytes)
        for turn in range(3):
            for by in (None, "key", "content"):
                began = processor_seconds()
                plan(root, folder / f"{name}-{by}-{turn}", dedup=by, labelled=False, num_workers=1)
                seconds = processor_seconds() - began
                print(f"{name}: {num_files} files of {num_bytes} bytes, dedup={by}: planned in {seconds:.2f} s of CPU")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {peak:.0f} MiB")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[2] if len(sys.argv) > 2 else None) as directory:
        {"mix": mix, "dedup": dedup}[sys.argv[1]](Path(directory))
