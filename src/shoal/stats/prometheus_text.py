"""`Dataset.stats` in the text format of Prometheus, without any library.

References
----------
Prometheus documentation, "Exposition formats", text format version 0.0.4.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Any

from shoal.errors import UsageError
from shoal.storage.files.atomic_writes import write_atomically
from shoal.storage.storage_errors import os_failure

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of an HTTP response with `text`."""

_PREFIX = "shoal_"
_LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_SAMPLE = re.compile(r"(?P<metric>\w+)(?:\{.*\})? (?P<value>[-+.\w]+)")
_HELP = {
    "num_samples": "Samples delivered, repeats included.",
    "num_batches": "Batches delivered.",
    "num_repeats": "Samples delivered a second time, marked in __pad__.",
    "num_filtered": "Samples that a filter dropped.",
    "num_refilled": "Samples that took the place of filtered or skipped samples in a batch.",
    "num_tokens": "Tokens of documents in sequences, separators included, or of texts passed to tokenize().",
    "num_padding_tokens": "Tokens of sequences that no document filled.",
    "num_cut_documents": "Documents that begin in a sequence and do not end there.",
    "num_dropped_documents": "Documents left out because they are longer than a sequence.",
    "num_ungrouped_samples": "Samples of finished epochs in no batch by column, over all ranks.",
    "num_skipped": "Damaged samples that were left out.",
    "num_reads": "Reads that the order needed.",
    "num_unmatched": "Samples read without a partner in a joined dataset.",
    "num_rereads": "Reads of chunks that had been evicted.",
    "read_bytes": "Bytes that the order needed.",
    "num_requests": "Requests to the store, retries included.",
    "requested_bytes": "Bytes requested from the store, retries included.",
    "in_flight_bytes": "Bytes being requested at this moment.",
    "peak_in_flight_bytes": "The most bytes being requested at a time.",
    "peak_held_bytes": "The most bytes of shards held in memory at a time.",
    "peak_claimed_bytes": "The most bytes of shards in use or requested ahead at a time.",
    "pinned_bytes": "Bytes of evicted chunks that views of the consumer keep alive.",
    "peak_pinned_bytes": "The most bytes that such views kept alive at a time.",
    "num_retries": "Requests that failed and were retried.",
    "num_throttled": "Requests that the store throttled.",
    "num_corrupt": "Responses with other bytes than were indexed.",
    "num_hedges": "Duplicate requests made because the first was late.",
    "num_hedges_won": "Duplicate requests that were answered first.",
    "num_unshared_batches": "Batches that workers sent through a pipe, since shared memory was full.",
    "concurrency": "Requests that may be in flight at a time.",
    "wait_seconds": "Time spent waiting for bytes while making batches.",
    "make_seconds": "Time spent making batches, waiting for bytes included.",
    "num_frames": "Frames of videos that were delivered.",
    "num_decoded_frames": "Frames of videos that were decoded.",
    "num_video_reads": "Reads of videos.",
    "video_bytes": "Bytes of videos that were read.",
    "served_video_bytes": "Bytes of videos that were needed and still in memory.",
    "peak_video_bytes": "The most bytes of videos kept in memory at a time.",
    "num_pieces": "Pieces of a growing epoch that were read.",
    "num_indexed_segments": "Segments of a growing epoch that were indexed.",
    "index_wait_seconds": "Time spent waiting for the index of a growing epoch.",
    "from_scans_bytes": "Bytes read from files that scans of remote shards left on this machine.",
    "not_kept_bytes": "Bytes of scans that found no room on this machine.",
    "num_scan_requests": "Requests of scans to the store.",
    "num_scan_retries": "Requests of scans that failed and were retried.",
    "scanned_bytes": "Bytes of requests of scans.",
    "num_cache_hits": "Reads served by the chunk cache.",
    "num_cache_fills": "Reads whose bytes were added to the chunk cache.",
    "num_cache_bypasses": "Reads that bypassed the chunk cache.",
    "num_cache_failures": "Chunks that could not be kept because the disk of the cache was full or failed.",
    "num_cache_damaged": "Damaged entries of the chunk cache.",
    "num_spills": "Chunks too large for the window that were decoded into the chunk cache.",
    "spilled_bytes": "Bytes of the files with these decoded chunks.",
    "num_spill_reads": "Samples read from decoded chunks in the chunk cache.",
    "num_spill_bypasses": "Samples whose decoded chunk did not fit into the chunk cache.",
    "inside_seconds": "Time of the newest iterator's consumer inside next().",
    "elapsed_seconds": "Time of the newest iterator, from its first request for a batch to its latest batch.",
}
# Values that go up and down; all other counts only go up. Prometheus itself derives rates and shares from counters.
_GAUGES = ("peak_", "in_flight_", "pinned_", "concurrency", "elapsed_", "inside_")
_DERIVED = ("_per_second", "_share")


def text(stats: Mapping[str, Any], *, labels: Mapping[str, object] | None = None) -> str:
    r"""Format the numbers of ``stats`` as metrics, each with its HELP and TYPE line; about 0.1 ms.

    Every metric has the ``labels``: ``{"rank": 0, "job": "run-7"}``. A count ``num_x`` becomes the counter
    ``shoal_x_total``, ``x_bytes`` and ``x_seconds`` keep their units, and values that can decrease are gauges. Lists,
    words and rates are omitted.

    Raises
    ------
    UsageError
        If Prometheus does not allow the name of a label.

    Examples
    --------
    >>> print(shoal.prometheus.text({"num_samples": 7, "wait_seconds": 0.5}, labels={"rank": 0}), end="")
    # HELP shoal_samples_total Samples delivered, repeats included.
    # TYPE shoal_samples_total counter
    shoal_samples_total{rank="0"} 7
    # HELP shoal_wait_seconds_total Time spent waiting for bytes while making batches.
    # TYPE shoal_wait_seconds_total counter
    shoal_wait_seconds_total{rank="0"} 0.5
    """
    marks = _labels(labels or {})
    lines = []
    for name, value in stats.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or name.endswith(_DERIVED):
            continue
        is_gauge, metric = name.startswith(_GAUGES), metric_of(name)
        lines.append(f"# HELP {metric} {_HELP.get(name, f'{name} of Dataset.stats.')}")
        lines.append(f"# TYPE {metric} {'gauge' if is_gauge else 'counter'}")
        lines.append(f"{metric}{marks} {_number(value)}")
    return "".join(f"{line}\n" for line in lines)


def metric_of(name: str) -> str:
    """Return the name of the metric of a count.

    >>> metric_of("num_samples"), metric_of("peak_held_bytes")
    ('shoal_samples_total', 'shoal_peak_held_bytes')
    """
    return _PREFIX + name.removeprefix("num_") + ("" if name.startswith(_GAUGES) else "_total")


def stats_of(metrics: str) -> dict[str, float]:
    """Return the counts in the text of `text`, by their names in `Dataset.stats`; lines of other metrics are ignored.

    >>> stats_of(text({"num_samples": 7, "wait_seconds": 0.5}, labels={"rank": 0}))
    {'num_samples': 7, 'wait_seconds': 0.5}
    """
    names = {metric_of(name): name for name in _HELP}
    stats: dict[str, float] = {}
    for line in metrics.splitlines():
        if (match := _SAMPLE.fullmatch(line)) is None or match["metric"] not in names:
            continue
        number = match["value"]
        stats[names[match["metric"]]] = int(number) if number.isdecimal() else float(number)
    return stats


def write(
    path: str | os.PathLike[str], stats: Mapping[str, Any], *, labels: Mapping[str, object] | None = None
) -> None:
    """Write `text` to a file atomically, for the textfile collector of the node exporter.

    The collector reads files with the suffix ``.prom``. Give every process its own file.

    Raises
    ------
    UsageError
        As for `text`.
    StorageError
        If the file cannot be written.

    Examples
    --------
    >>> import pathlib
    >>> shoal.prometheus.write("rank-0.prom", ds.stats(), labels={"rank": 0})
    >>> pathlib.Path("rank-0.prom").read_text().splitlines()[2]
    'shoal_samples_total{rank="0"} 0'
    """
    data = text(stats, labels=labels).encode("utf-8", "replace")
    try:
        write_atomically(os.fspath(path), [data], durable=False)
    except OSError as error:
        raise os_failure(error, os.fspath(path), verb="write") from error


def _labels(labels: Mapping[str, object]) -> str:
    for name in labels:
        if not _LABEL_NAME.fullmatch(name) or name.startswith("__"):
            msg = f"{name!r} is not a valid name of a label"
            raise UsageError(msg, hint="use letters, digits and underscores, and begin with a letter or one underscore")
    escapes = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
    marks = ",".join(f'{name}="{str(value).translate(escapes)}"' for name, value in labels.items())
    return f"{{{marks}}}" if labels else ""


def _number(value: float) -> str:
    if isinstance(value, int):
        return repr(int(value))
    if math.isfinite(value):
        return repr(float(value))  # numpy's own repr would include the type
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
