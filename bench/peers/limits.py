"""What bounds every loader: bytes read in order, chunks permuted in plain Python, decoders and GETs by themselves."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, pairwise
from typing import Any

import numpy as np
from job import Job
from workloads import BATCH, NUM_CLASSES, SIDE, pixels

HAS_NO_CLASSES = True
CHUNK_BYTES = 4 << 20
GETS_AT_A_TIME = 64


def samples(job: Job) -> tuple[Iterable[Any], int]:
    return VARIANTS[job.variant](job), 0


batches = samples


def readv(job: Job) -> Iterator[tuple[int]]:
    """All bytes in order, into one buffer."""
    buffer = bytearray(CHUNK_BYTES)
    file = os.open(job.flat / "data.bin", os.O_RDONLY)
    while os.readv(file, [buffer]):
        yield (0,)
    os.close(file)


def plain(job: Job) -> Iterator[tuple[int, Any]]:
    """Chunks of 4 MiB at random, as many as the window has in memory, their samples permuted: views of numpy."""
    offsets = np.load(job.flat / "offsets.npy")
    count, draw = len(offsets) - 1, np.random.default_rng(job.seed)
    file = os.open(job.flat / "data.bin", os.O_RDONLY)
    cuts = np.unique(np.searchsorted(offsets, np.arange(0, offsets[-1] + CHUNK_BYTES, CHUNK_BYTES)).clip(0, count))
    chunks, held = draw.permutation(len(cuts) - 1), max(1, job.window_bytes // CHUNK_BYTES)
    for at in range(0, len(chunks), held):
        rows = []
        for chunk in chunks[at : at + held]:
            first, end = int(cuts[chunk]), int(cuts[chunk + 1])
            data = os.pread(file, int(offsets[end] - offsets[first]), int(offsets[first]))
            begins = (offsets[first : end + 1] - offsets[first]).tolist()
            rows += [(number, data, begins[number - first], begins[number - first + 1]) for number in range(first, end)]
        for place in draw.permutation(len(rows)).tolist():
            number, data, begin, end = rows[place]
            if job.kind == "text":
                yield number * NUM_CLASSES // count, data[begin:end].decode()
            else:
                yield number * NUM_CLASSES // count, np.frombuffer(data, np.uint8, end - begin, begin)
    os.close(file)


def pyarrow(job: Job) -> Iterator[tuple[int]]:
    """Row groups at random, as tables of pyarrow."""
    import pyarrow.parquet as pq  # noqa: PLC0415  # for this one alone

    files = [pq.ParquetFile(path) for path in sorted(job.folder("parquet").glob("*.parquet"))]
    groups = [(file, group) for file in files for group in range(file.num_row_groups)]
    for at in np.random.default_rng(job.seed).permutation(len(groups)).tolist():
        file, group = groups[at]
        file.read_row_group(group, use_threads=False)
        yield (0,)


def decoded(job: Job, decode_into: Callable[[bytes, Any], Any]) -> Iterator[tuple[int]]:
    """The work of a loader without its reads and its order: each thread decodes into a new batch of its own."""
    data = (job.flat / "data.bin").read_bytes()
    images = [data[begin:end] for begin, end in pairwise(np.load(job.flat / "offsets.npy").tolist())]

    def batch(number: int) -> Any:
        part = images[number : number + BATCH]
        made = np.empty((len(part), SIDE, SIDE, 3), np.uint8)
        for image, row in zip(part, made, strict=True):
            decode_into(image, row)
        return made

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        for _ in threads.map(batch, range(0, len(images), BATCH)):
            yield (0,)


def turbo(job: Job) -> Iterator[tuple[int]]:
    """libjpeg-turbo, which leaves the interpreter to others, in as many threads as there are processors."""
    import simplejpeg  # noqa: PLC0415  # for this one alone

    return decoded(job, lambda image, row: simplejpeg.decode_jpeg(image, buffer=row))


def pillow(job: Job) -> Iterator[tuple[int]]:
    """Pillow in as many threads as there are processors."""
    return decoded(job, lambda image, row: np.copyto(row, pixels(image)))


def first(job: Job) -> Iterable[Any]:
    """What a first batch takes in any case: workers that read nothing, or its samples far away, and nothing else."""
    if job.way == "far":
        return iter([list(islice(gets(job), BATCH))])
    from torch.utils.data import DataLoader  # noqa: PLC0415  # for this one alone

    way = "fork" if "forked" in job.variant else "forkserver"
    return DataLoader(Numbers(), batch_size=None, num_workers=job.workers, multiprocessing_context=way)  # type: ignore[arg-type]


class Numbers:
    """What takes no time to read."""

    def __len__(self) -> int:
        return BATCH

    def __getitem__(self, number: int) -> int:
        return number


def gets(job: Job) -> Iterator[tuple[int]]:
    """GETs of a sample each by libcurl, 64 at a time from one thread, which only hears how long each piece is."""
    import pycurl  # noqa: PLC0415  # for this one alone

    offsets = np.load(job.flat / "offsets.npy").tolist()
    left = np.random.default_rng(job.seed).permutation(len(offsets) - 1).tolist()
    multi, idle = pycurl.CurlMulti(), [pycurl.Curl() for _ in range(GETS_AT_A_TIME)]
    for curl in idle:
        curl.setopt(pycurl.URL, f"{job.far}/{job.workload}/flat/data.bin")
        curl.setopt(pycurl.WRITEFUNCTION, len)
        curl.setopt(pycurl.BUFFERSIZE, 1 << 18)
    while left or len(idle) < GETS_AT_A_TIME:
        while idle and left:
            number, curl = left.pop(), idle.pop()
            curl.setopt(pycurl.RANGE, f"{offsets[number]}-{offsets[number + 1] - 1}")
            multi.add_handle(curl)
        multi.perform()
        _, answered, failed = multi.info_read(GETS_AT_A_TIME)
        for curl in answered:
            multi.remove_handle(curl)
            if curl.getinfo(pycurl.RESPONSE_CODE) != 206:
                msg = f"the server answered {curl.getinfo(pycurl.RESPONSE_CODE)}"
                raise OSError(msg)
            yield (0,)
        if failed:
            raise OSError(*failed[0][1:])
        idle += answered
        if not answered:
            multi.select(1.0)


VARIANTS: dict[str, Callable[[Job], Iterator[Any]]] = {
    "readv": readv,
    "plain Python": plain,
    "pyarrow": pyarrow,
    "libjpeg-turbo in threads": turbo,
    "Pillow in threads": pillow,
    "raw GETs": gets,
}
