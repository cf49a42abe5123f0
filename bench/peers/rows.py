"""What is measured beside what, and the figures of a row."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any, NamedTuple


class Library(NamedTuple):
    """A module of this folder, the environment that it runs in, the packages whose versions count, its writer."""

    title: str
    module: str
    environment: str
    packages: tuple[str, ...]
    format: str = ""


class Row(NamedTuple):
    """A library on a workload: "one" by one, or in "batches"; the first batch "near" or "far".

    Shards without an index: an "epoch" of one process, or the first batch of a "job". An index: its "memory".
    """

    workload: str
    way: str
    library: str
    variant: str = ""
    workers: int = 0

    @property
    def title(self) -> str:
        """As the page calls it."""
        workers = f"{self.workers} workers" if self.workers else ""
        return ", ".join(filter(None, (LIBRARIES[self.library].title, self.variant, workers)))

    @property
    def name(self) -> str:
        """A key for results."""
        return "/".join((self.workload, self.way, self.library, self.variant, str(self.workers)))


LIBRARIES = {
    "shoal": Library("shoal", "of_shoal", "", ("numpy",)),
    "streaming": Library("MosaicML Streaming", "of_streaming", "streaming", ("mosaicml-streaming",), "mds"),
    "litdata": Library("LitData", "of_litdata", "litdata", ("litdata",), "litdata"),
    "datasets": Library("HF datasets", "of_datasets", "datasets-torch", ("datasets", "pyarrow"), "parquet"),
    "webdataset": Library("WebDataset", "of_webdataset", "webdataset-pillow", ("webdataset",), "tar"),
    "torch": Library("plain torch", "of_torch", "torch-pillow", ("torch", "pillow"), "files"),
    "spdl": Library("SPDL", "of_spdl", "spdl", ("spdl-core",)),
    "limit": Library("limit", "limits", "", ("numpy", "pyarrow", "simplejpeg", "pillow")),
}


def _near(workload: str, formats: tuple[str, ...], peers: tuple[tuple[str, str], ...]) -> Iterator[Row]:
    for way in ("one", "batches"):
        for variant in formats:
            yield Row(workload, way, "shoal", variant)
        for library, variant in peers:
            yield Row(workload, way, library, variant)
    for variant in ("readv", "plain Python", "pyarrow"):
        yield Row(workload, "one", "limit", variant)


def _first(library: str, variant: str = "") -> Iterator[Row]:
    for way in ("near", "far"):
        for workers in (0, 2):
            yield Row("first", way, library, variant, workers)


FROM_99 = "from 99 %"
"""The variant of a row that resumes there."""

NARROW, WIDE = "mds", "mds 1MiB 64MiB"
"""The variants of the two rows 20 ms away: chunks of a sample with a window of 16 MiB, and larger ones."""

_PEERS = (("streaming", ""), ("litdata", ""), ("litdata", "all keys"), ("datasets", ""), ("webdataset", ""))
ROWS = (
    *_near("W1", ("mds", "parquet", "tar"), (*_PEERS, ("torch", ""))),
    *_near("W2", ("mds", "parquet", "tar"), (*_PEERS, ("torch", ""))),
    *_near("W3", ("mds", "parquet", "tar"), (*_PEERS, ("torch", ""))),
    Row("W4", "batches", "shoal", "tar"),
    Row("W4", "batches", "shoal", "tar", 2),
    *(Row("W4", "batches", library, variant, 2) for library, variant in (*_PEERS, ("torch", ""))),
    Row("W4", "batches", "spdl"),
    Row("W4", "one", "limit", "libjpeg-turbo in threads"),
    Row("W4", "one", "limit", "Pillow in threads"),
    Row("far", "one", "shoal", NARROW),
    Row("far", "one", "shoal", "mds 1MiB"),
    Row("far", "one", "shoal", WIDE),
    *(Row("far", "one", library, variant) for library, variant in _PEERS if (library, variant) != ("litdata", "")),
    Row("far", "one", "limit", "raw GETs"),
    *_first("shoal", "mds"),
    *_first("shoal", FROM_99),
    *_first("streaming"),
    *_first("streaming", FROM_99),
    *(row for library in ("litdata", "datasets", "webdataset") for row in _first(library)),
    Row("first", "near", "limit", "two empty workers, forked", 2),
    Row("first", "near", "limit", "two empty workers, by a fork server", 2),
    Row("first", "far", "limit", "64 raw GETs at a time"),
    Row("growing", "epoch", "shoal", "indexed"),
    Row("growing", "epoch", "shoal", "grow"),
    Row("growing", "job", "shoal", "grow", 2),
    Row("growing", "job", "webdataset", "", 2),
    Row("index", "memory", "shoal"),
)


class Measured(NamedTuple):
    """The medians of the rounds of a row, and how far the fastest and the slowest lie apart, by the median."""

    row: Row
    samples_per_second: float
    megabytes_per_second: float
    cpu_seconds_per_gb: float
    peak_mib: float
    classes: float | None
    spread: float
    num_samples: int

    @property
    def seconds(self) -> float:
        """Of the whole row: of an epoch, or until a first batch."""
        return self.num_samples / self.samples_per_second


Figures = dict[str, Measured]


def shown(value: float) -> str:
    """A figure with three digits.

    >>> shown(123456.0), shown(12.345), shown(0.1234)
    ('123,000', '12.3', '0.12')
    """
    if value >= 1000:
        digits = 3 - len(str(int(value)))
        return f"{round(value, digits):,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def of_workload(figures: Figures, workload: str, way: str) -> list[Measured]:
    """The libraries of one comparison, limits apart."""
    return [
        each
        for each in figures.values()
        if (each.row.workload, each.row.way) == (workload, way) and each.row.library != "limit"
    ]


def measured_of(row: Row, results: list[dict[str, Any]], num_samples: int, num_bytes: int) -> Measured:
    """Medians of the rounds of a row."""
    seconds = [each["seconds"] for each in results]
    middle = median(seconds)
    return Measured(
        row,
        num_samples / middle,
        num_bytes / middle / 1e6,
        median(each["cpu_seconds"] for each in results) / num_bytes * 1e9,
        median(each["peak_bytes"] for each in results) / 2**20,
        median(each["classes"] for each in results) if "classes" in results[0] else None,
        (max(seconds) - min(seconds)) / middle,
        num_samples,
    )
