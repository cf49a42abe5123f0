"""What grows with samples and with ranks: time, memory and requests, from 10^6 to 10^10 samples and 1 to 4,096 ranks.

``python bench/scale.py DIRECTORY`` makes datasets of samples of 100 KB in DIRECTORY: links to one sparse shard of 1 GB,
and their index. Each size has a process of its own, which opens the dataset, binds the order of an epoch, makes the ids
at 99 % of the epoch, and reads the first batch of 8. Times are processor seconds; all data is in memory. Sizes above
``--largest`` are extrapolated by laws that are fitted to the measured sizes, printed below the table, and marked "~".

Anonymous memory belongs to one process. The index file is mapped: all processes of a machine share its pages, and the
system may drop them. ``--fine`` has a row in the index for each sample instead of extents that grow with the dataset.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import shoal
from shoal.index.assembly import MOST_SAMPLES_WITH_SIZES
from shoal.index.cutting import even_cuts, usual_extent_bytes
from shoal.index.index_file import shard_columns
from shoal.index.streamed_index import StreamedColumn, write_streamed
from shoal.index.table import EXTENT_COLUMNS
from shoal.order.partition import Partition
from shoal.orders import Window
from shoal.reading.schedule.lifetimes import span_positions

SAMPLE_BYTES, SHARD_SAMPLES = 100_000, 10_000
ROWS = 1 << 20  # of a column in memory at a time
SIZES = (10**6, 10**7, 10**8, 3 * 10**8, 10**9, 10**10)
RANKS = (1, 8, 64, 512, 4096)
PROCESSES_OF_NODE = 24  # 8 ranks with 2 workers each
BATCH, RANK_BATCH = 8, 64
RANK_RATE = 1000  # samples a second of a rank, for requests on a bucket


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--largest", type=float, default=1e9, help="samples of the largest dataset that is made")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--fine", action="store_true")
    parser.add_argument("--only", choices=["samples", "ranks"])
    parser.add_argument("--step", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step:
        print(json.dumps(measured_here(*arguments.step)))
        return
    if arguments.only != "ranks":
        print_samples(arguments.directory, arguments.largest, arguments.rounds, is_fine=arguments.fine)
    if arguments.only != "samples":
        print_ranks()


class IndexFile:
    """An unfinished index file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def write(self, buffers: Any) -> None:
        """Append bytes."""
        self._file.writelines(buffers)

    def patch(self, first_byte: int, data: bytes) -> None:
        """Replace bytes, and end the file."""
        self._file.seek(first_byte)
        self._file.write(data)
        self._file.close()


def make_dataset(directory: Path, num_samples: int, *, is_fine: bool) -> None:
    """Links to one sparse shard, and the index of all; every line of a shard is 99,999 zeros."""
    directory.mkdir(parents=True)
    shard = directory.parent / "shard"
    if not shard.exists():
        with shard.open("wb") as file:
            for sample in range(1, SHARD_SAMPLES + 1):
                file.seek(sample * SAMPLE_BYTES - 1)
                file.write(b"\n")
    num_shards = num_samples // SHARD_SAMPLES
    names = [f"part-{number:07d}.txt" for number in range(num_shards)]
    for name in names:
        (directory / name).symlink_to(shard)
    write_index(directory / "shoal.index", names, str(shard.stat().st_mtime_ns), is_fine=is_fine)


def cuts_of_shard(num_samples: int, *, is_fine: bool) -> NDArray[np.int64]:
    """The borders of the extents of a shard, in samples."""
    extent_bytes = usual_extent_bytes(num_samples * SAMPLE_BYTES)
    return even_cuts(SHARD_SAMPLES, size=1 if is_fine else max(1, round(extent_bytes / SAMPLE_BYTES)))


def write_index(path: Path, names: list[str], version: str, *, is_fine: bool) -> None:
    num_samples = len(names) * SHARD_SAMPLES
    cuts = cuts_of_shard(num_samples, is_fine=is_fine)
    of_shard = {
        "extent_first_byte": cuts[:-1] * SAMPLE_BYTES,
        "extent_end_byte": cuts[1:] * SAMPLE_BYTES,
        "extent_num_samples": np.diff(cuts),
        "extent_decoded_bytes": np.diff(cuts) * SAMPLE_BYTES,
        "extent_layout_crc": np.zeros(len(cuts) - 1, dtype=np.uint32),
    }
    num_extents, together = len(names) * (len(cuts) - 1), max(1, ROWS // len(cuts))

    def tiles() -> Iterator[tuple[int, int]]:
        return ((first, min(first + together, len(names))) for first in range(0, len(names), together))

    def chunks(name: str) -> Iterator[Any]:
        for first, end in tiles():
            shards = np.arange(first, end, dtype=np.int64)
            if name == "extent_shard":
                yield np.repeat(shards.astype(np.int32), len(cuts) - 1)
            elif name == "extent_first_sample":
                yield (shards[:, None] * SHARD_SAMPLES + cuts[:-1]).reshape(-1)
            elif name == "sample_bytes":
                yield np.full(len(shards) * SHARD_SAMPLES, SAMPLE_BYTES, dtype=np.uint32)
            else:
                yield np.tile(of_shard[name], len(shards))
        if name == "extent_first_sample":
            yield np.array([num_samples], dtype=np.int64)

    sizes = np.full(len(names), SHARD_SAMPLES * SAMPLE_BYTES, dtype=np.int64)
    columns = [
        StreamedColumn(name, column.dtype, len(column), lambda column=column: [column])  # type: ignore[misc]
        for name, column in shard_columns(sizes, names, [version] * len(names), {})
    ]
    kinds = {"extent_first_sample": "<i8", **EXTENT_COLUMNS}
    kinds |= {"sample_bytes": "<u4"} if num_samples <= MOST_SAMPLES_WITH_SIZES else {}
    lengths = {"extent_first_sample": num_extents + 1, "sample_bytes": num_samples}
    columns += [
        StreamedColumn(name, np.dtype(kind), lengths.get(name, num_extents), lambda name=name: chunks(name))  # type: ignore[misc]
        for name, kind in kinds.items()
    ]
    about = {
        "format": "text",
        "notes": {},
        "metadata": {"extent_bytes": usual_extent_bytes(num_samples * SAMPLE_BYTES)},
    }
    write_streamed(IndexFile(path), columns, shard_names=names, about=about)


# ---- samples


def print_samples(directory: Path, largest: float, rounds: int, *, is_fine: bool) -> None:
    """The table over samples, and the laws of the rows that were not measured."""
    rows = []
    for num_samples in SIZES:
        if num_samples <= largest:
            data = directory / f"{num_samples}{'-fine' if is_fine else ''}"
            if not data.exists():
                make_dataset(data, num_samples, is_fine=is_fine)
            command = [sys.executable, __file__, str(directory), "--step", str(data), str(num_samples)]
            runs = [json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(rounds)]
            rows.append({name: float(np.median([run[name] for run in runs])) for name in runs[0]})
    print("seconds of processor time, medians of", rounds)
    laws = {name: Law(name, terms, rows) for name, terms in LAWS.items()}
    heads = ("samples", "shards", "extents", "index MB", "open s", "bind s", "seek s", "first batch s", "process MiB")
    print("| " + " | ".join((*heads, f"node of {PROCESSES_OF_NODE} MiB")) + " |")
    print("| ---: " * (len(heads) + 1) + "|")
    for number, num_samples in enumerate(SIZES):
        is_measured = number < len(rows)
        row = rows[number] if is_measured else known(num_samples, is_fine=is_fine)
        values = {name: row[name] if is_measured else law(row) for name, law in laws.items()}
        node = values["process_mib"] * PROCESSES_OF_NODE + values["index_mb"] * 1e6 / 2**20
        mark = "" if is_measured else "~"
        cells = [f"{num_samples:.0e}".replace("e+0", "e").replace("e+", "e"), f"{row['shards']:,.0f}"]
        cells += [f"{row['extents']:,.0f}"]
        cells += [mark + readable(values[name]) for name in LAWS]
        print("| " + " | ".join([*cells, mark + readable(node)]) + " |")
    for law in laws.values():
        print(law)


def known(num_samples: int, *, is_fine: bool) -> dict[str, float]:
    """The numbers of a dataset that need no measurement."""
    num_shards = num_samples // SHARD_SAMPLES
    extents = num_shards * (len(cuts_of_shard(num_samples, is_fine=is_fine)) - 1)
    has_sizes = num_samples <= MOST_SAMPLES_WITH_SIZES
    facts = {"shards": num_shards, "extents": extents, "sizes": num_samples if has_sizes else 0}
    extent_bytes = num_samples * SAMPLE_BYTES / extents
    chunks = extents / max(1, round((512 << 20) / 512 / extent_bytes))
    return {**facts, "chunks": chunks, "batch_mb": BATCH * num_samples * SAMPLE_BYTES / chunks / 1e6, "one": 1.0}


LAWS: Mapping[str, Sequence[str]] = {
    "index_mb": ("shards", "extents", "sizes"),
    "open": ("shards", "extents", "sizes"),
    "bind": ("chunks", "one"),
    "seek": ("one",),
    "first_batch": ("batch_mb", "chunks", "one"),
    "process_mib": ("shards", "chunks", "one"),
}
"""The terms that a quantity is a sum of."""


class Law:
    """A quantity as a sum of terms, fitted to the measured rows by their relative errors."""

    def __init__(self, name: str, terms: Sequence[str], rows: Sequence[Mapping[str, float]]) -> None:
        self._name, self._terms = name, terms
        values = np.array([row[name] for row in rows])
        matrix = np.array([[row[term] for term in terms] for row in rows]) / values[:, None]
        self._factors = _non_negative(matrix, np.ones(len(rows)))
        self._errors = np.abs(matrix @ self._factors - 1)

    def __call__(self, row: Mapping[str, float]) -> float:
        """Return the quantity of a row."""
        return float(sum(factor * row[term] for factor, term in zip(self._factors, self._terms, strict=True)))

    def __str__(self) -> str:
        """Return the formula, and how far the measured rows are from it."""
        parts = [f"{factor:.2g} {term}" for factor, term in zip(self._factors, self._terms, strict=True) if factor]
        return f"{self._name} = {' + '.join(parts)} (within {100 * self._errors.max():.0f} % of the measured rows)"


def _non_negative(matrix: NDArray[np.float64], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Least squares without negative factors: terms with one are left out, the most negative first."""
    used = list(range(matrix.shape[1]))
    while True:
        factors = np.linalg.lstsq(matrix[:, used], values, rcond=None)[0]
        if (factors >= 0).all():
            found = np.zeros(matrix.shape[1])
            found[used] = factors
            return found
        del used[int(np.argmin(factors * np.abs(matrix[:, used]).mean(axis=0)))]


def measured_here(data: str, num_samples: str) -> dict[str, float]:
    """The times of each step in this process, and its memory at the end, without the samples of the batch."""
    shoal.open  # noqa: B018  # what is measured begins after the import
    before = anonymous_mib()
    peak = PeakMemory()
    dataset, opening = timed(lambda: shoal.open(data, format="text"))
    peak_of_opening = peak.mib - before
    shuffled = dataset.shuffle(seed=0).batch(BATCH)
    resolved = shuffled.stream.resolved
    bound, binding = timed(lambda: resolved.epoch(0))
    late = bound.num_samples * 99 // 100
    bound.ids(0, 1)
    _, seeking = timed(lambda: bound.ids(late, late + 1))
    process_mib = anonymous_mib() - before
    iterator, _ = timed(lambda: iter(shuffled))
    _, reading = timed(lambda: next(iterator))
    index_bytes = Path(data, "shoal.index").stat().st_size
    facts = known(int(num_samples), is_fine=data.endswith("-fine"))
    times = {"open": opening, "bind": binding, "seek": seeking, "first_batch": reading}
    facts["chunks"] = len(resolved.chunks)
    return {**facts, **times, "index_mb": index_bytes / 1e6, "process_mib": process_mib, "opening_mib": peak_of_opening}


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return a result, and the processor seconds of this process, which other work on the machine changes little."""
    began = time.process_time()
    result = work()
    return result, time.process_time() - began


def anonymous_mib() -> float:
    """Memory of this process that no file backs."""
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(int(row.split()[1]) / 1024 for row in rows if row.startswith("RssAnon"))


class PeakMemory:
    """The most anonymous memory of this process since it was made, looked at all 4 ms."""

    def __init__(self) -> None:
        self.mib = 0.0
        threading.Thread(target=self._look, daemon=True).start()

    def _look(self) -> None:
        while True:
            self.mib = max(self.mib, anonymous_mib())
            time.sleep(0.004)


def readable(value: float) -> str:
    """Three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


# ---- ranks


def print_ranks() -> None:
    """The table over ranks: what the order costs each of them, and the requests of all on one bucket."""
    chunk_samples = 42  # of 4 MiB, as at 3e8 samples
    order = Window(chunks=8192, num_canonical_nodes=64)
    print(f"\n{order}, chunks of {chunk_samples} samples, batches of {RANK_BATCH} for each rank")
    heads = (
        "ranks",
        "first share ms",
        "us a sample",
        "readers a chunk",
        f"requests/s at {RANK_RATE:,} samples/s a rank",
    )
    print("| " + " | ".join(heads) + " |")
    print("| ---: " * len(heads) + "|")
    many, few = np.full(7_000_000, chunk_samples), np.full(1 << 17, chunk_samples)
    for world_size in RANKS:
        partition = Partition(RANK_BATCH * world_size, world_size)
        bound = order.bind(many, seed=0)
        at_once = max(1, span_positions(bound.parameters, world_size) // partition.global_batch)
        began, first, spans = time.process_time(), 0.0, 0
        while not spans or (time.process_time() - began < 2 and spans < 200):
            partition.share(bound, world_size // 2, spans * at_once, (spans + 1) * at_once)
            spans += 1
            first = first or time.process_time() - began
        seconds = (time.process_time() - began - first) / max(1, (spans - 1) * at_once * RANK_BATCH)
        small = order.bind(few, seed=0)
        chunks, ranks = partition.dealt(small, 0, small.num_samples // partition.global_batch)
        readers = len(np.unique(chunks * world_size + ranks)) / len(np.unique(chunks))
        requests = readers * world_size * RANK_RATE / chunk_samples
        print(
            f"| {world_size:,} | {first * 1e3:.1f} | {seconds * 1e6:.2f} | {readers:.2f} | {requests:,.0f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
