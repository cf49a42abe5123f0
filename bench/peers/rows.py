"""What is measured beside what, and what is wanted of shoal: a line for each cell of the goals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    """A library on a workload: "one" by one, or in "batches"; the first batch "near" or "far"."""

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

_PEERS = (("streaming", ""), ("litdata", ""), ("litdata", "all keys"), ("datasets", ""), ("webdataset", ""))
ROWS = (
    *_near("W1", ("mds", "parquet", "tar"), (*_PEERS, ("torch", ""))),
    *_near("W2", ("mds", "parquet", "tar"), (*_PEERS, ("torch", ""))),
    *_near("W3", ("mds", "parquet", "tar"), _PEERS),
    Row("W4", "batches", "shoal", "tar"),
    Row("W4", "batches", "shoal", "tar", 2),
    *(Row("W4", "batches", library, variant, 2) for library, variant in (*_PEERS, ("torch", ""))),
    Row("W4", "batches", "spdl"),
    Row("W4", "one", "limit", "libjpeg-turbo in threads"),
    Row("W4", "one", "limit", "Pillow in threads"),
    Row("far", "one", "shoal", "mds"),
    Row("far", "one", "shoal", "mds 1MiB"),
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


Figures = dict[str, Measured]


class Wanted(NamedTuple):
    """A cell of the goals: what is measured of it, and what it must be."""

    title: str
    wanted: float
    unit: str
    measured: float
    beside: str
    less: bool = False

    @property
    def is_met(self) -> bool:
        """Whether it is as wanted."""
        return self.measured <= self.wanted if self.less else self.measured >= self.wanted

    def line(self) -> str:
        """As it is printed."""
        bound = "at most" if self.less else "at least"
        told = f"{bound} {shown(self.wanted)} {self.unit}, measured {shown(self.measured)} ({self.beside})"
        return f"{self.title}: wanted {told}: {'met' if self.is_met else 'short'}"


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


def best_peer(figures: Figures, workload: str, way: str) -> Measured | None:
    """The fastest that is not shoal's."""
    peers = [each for each in of_workload(figures, workload, way) if each.row.library != "shoal"]
    return max(peers, key=lambda each: each.samples_per_second, default=None)


def wanted(figures: Figures) -> list[Wanted]:
    """The goals of which all figures are there."""
    found: list[Wanted] = []

    def rate(workload: str, way: str, library: str, variant: str = "", workers: int = 0) -> float | None:
        each = figures.get(Row(workload, way, library, variant, workers).name)
        return each and each.samples_per_second

    def times_peer(workload: str, way: str, variant: str, factor: float) -> None:
        ours, peer = rate(workload, way, "shoal", variant), best_peer(figures, workload, way)
        if ours and peer:
            beside = f"{shown(ours)} samples/s, {peer.row.title} {shown(peer.samples_per_second)}"
            title = f"{workload} {variant}, {'one by one' if way == 'one' else 'batches of 64'}"
            found.append(Wanted(title, factor, "x the best peer", ours / peer.samples_per_second, beside))

    def against(title: str, factor: float, ours: float | None, limit: float | None, name: str) -> None:
        if ours and limit:
            beside = f"{shown(ours)} samples/s, {name} {shown(limit)}"
            found.append(Wanted(title, factor, f"x {name}", ours / limit, beside))

    for way in ("one", "batches"):
        times_peer("W1", way, "mds", 5)
    for way, title in (("one", "W1 tar, one by one"), ("batches", "W1 tar, batches of 64")):
        ours = rate("W1", way, "shoal", "tar")
        if ours:
            found.append(Wanted(title, 150_000, "samples/s", ours, _limit(figures, "W1", "plain Python")))
    for variant in ("mds", "tar"):
        times_peer("W2", "one", variant, 1.5)
    against("W2 parquet", 0.8, rate("W2", "one", "shoal", "parquet"), rate("W2", "one", "limit", "pyarrow"), "pyarrow")
    for variant in ("mds", "parquet"):
        times_peer("W3", "one", variant, 2)
    ours = max((rate("W4", "batches", "shoal", "tar", workers) or 0 for workers in (0, 2)), default=0)
    limit = rate("W4", "one", "limit", "libjpeg-turbo in threads")
    against("W4, the better of threads and workers", 0.95, ours, limit, "libjpeg-turbo")
    _far(figures, found, against)
    return found


def _limit(figures: Figures, workload: str, variant: str) -> str:
    each = figures.get(Row(workload, "one", "limit", variant).name)
    return f"{variant} {shown(each.samples_per_second)}" if each else f"{variant} not measured"


def _far(figures: Figures, found: list[Wanted], against: Callable[..., None]) -> None:
    ours, theirs = (
        figures.get(Row("far", "one", library, variant).name)
        for library, variant in (("shoal", "mds"), ("litdata", "all keys"))
    )
    if ours and theirs:
        against("20 ms away", 1.2, ours.samples_per_second, theirs.samples_per_second, "LitData")
        beside = f"{shown(ours.peak_mib)} MiB, LitData {shown(theirs.peak_mib)}"
        ratio = ours.peak_mib / theirs.peak_mib
        found.append(Wanted("20 ms away, memory", 0.2, "x LitData's", ratio, beside, less=True))


def peer_wins(figures: Figures) -> list[str]:
    """Every case in which a peer is ahead of shoal: in speed, processor time, memory or mixing.

    What counts of shoal is the best row of those that mix well; a peer counts however it mixes, which is said.
    """
    told = []
    for workload, way in sorted({(each.row.workload, each.row.way) for each in figures.values()}):
        if workload == "first":
            continue  # its table says it
        rows = of_workload(figures, workload, way)
        ours = [each for each in rows if each.row.library == "shoal"]
        ours = [each for each in ours if (each.classes or 0.0) >= 0.9 * max(e.classes or 0.0 for e in ours)]
        for each in rows:
            if each.row.library == "shoal" or not ours:
                continue
            title = f"{workload}, {'one by one' if way == 'one' else 'batches'}: {each.row.title}"
            for what, ahead, own, unit in _compared(each, ours):
                mixed = "" if each.classes is None else f"; it has {each.classes:.1f} classes in 64"
                told.append(f"{title} {what}: {shown(ahead)} {unit}, shoal {shown(own)}{mixed}")
    return told


def _compared(peer: Measured, ours: list[Measured]) -> Iterator[tuple[str, float, float, str]]:
    fastest = max(each.samples_per_second for each in ours)
    if peer.samples_per_second > fastest:
        yield "is faster", peer.samples_per_second, fastest, "samples/s"
    least = min(each.cpu_seconds_per_gb for each in ours)
    if peer.cpu_seconds_per_gb < least:
        yield "takes less of the processor", peer.cpu_seconds_per_gb, least, "s/GB"
    smallest = min(each.peak_mib for each in ours)
    if peer.peak_mib < smallest:
        yield "takes less memory", peer.peak_mib, smallest, "MiB"
    mixed = max(each.classes or 0.0 for each in ours)
    # Of one perfect shuffle a batch has 47.4 with a standard deviation of 2.5: three of those of a difference of means.
    if (peer.classes or 0.0) > mixed + 3 * 2.5 * (2 * 64 / peer.num_samples) ** 0.5:
        yield "mixes better", peer.classes or 0.0, mixed, "classes of 64"


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
