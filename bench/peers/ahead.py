"""Where peers are ahead of shoal: the best of them, the best that mixes as well, and every case that they win."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rows import Figures, Measured, of_workload, shown

MIXED_CLASSES = 40.0
"""Distinct classes in 64 samples from which on a loader counts as mixing; a perfect shuffle has 47.4."""


def best_of(rows: list[Measured], key: Callable[[Measured], float], *, mixes: bool = False) -> Measured | None:
    """Return the best peer by a key that is larger where a row is better; with ``mixes``, peers that mix."""
    peers = [each for each in rows if each.row.library not in ("shoal", "limit")]
    peers = [each for each in peers if not mixes or (each.classes or 0.0) >= MIXED_CLASSES]
    return max(peers, key=key, default=None)


def peer_wins(figures: Figures) -> list[str]:
    """Every case in which a peer is ahead of shoal: in speed, processor time, memory or mixing.

    What counts of shoal is the best row of those that mix well; a peer counts however it mixes, which is said.
    """
    told = []
    for workload, way in sorted({(each.row.workload, each.row.way) for each in figures.values()}):
        if way not in ("one", "batches"):
            continue  # the table of first batches and the goals say it
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
