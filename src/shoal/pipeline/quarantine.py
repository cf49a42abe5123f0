"""Samples that are left out: damaged samples that a run meets, and the entries of a quarantine file.

A run counts and lists them, and records them for a later run. A quarantine file has one JSON object per line: the
fingerprint of the dataset, the sample id, shard and byte, and the error. Several datasets may share a file.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError, UsageError
from shoal.index.table import SampleIndex
from shoal.pipeline.stages.running import run_stages
from shoal.pipeline.stages.stage import Stage
from shoal.reading.checks.damaged_samples import Damaged
from shoal.reading.reading_options import ReadingOptions
from shoal.stats.counters import Counters
from shoal.storage.files.atomic_writes import append_line, make_line_file, read_lines

MOST_LISTED = 1000
QUARANTINED = object()
"""Placeholder for a sample that must not be read."""
SKIPPED = object()
"""Result for a sample that is left out."""
_MOST_ERROR_CHARACTERS = 500


class Quarantine:
    """The samples left out of one run, and their record.

    ``known`` are the ids in the quarantine file, sorted. ``finds`` is true if the run also leaves out damaged samples
    that it meets. ``dataset`` is the name of the dataset in the file.
    """

    def __init__(
        self, options: ReadingOptions, index: SampleIndex, counters: Counters, known: NDArray[np.int64], dataset: str
    ) -> None:
        self.known = known
        self.dataset = dataset
        self.finds = options.skips
        self._path = options.quarantine
        self._index, self._counters = index, counters
        self._written = set(known.tolist())

    def among(self, ids: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return a mask of these samples that are known to be damaged; O(log known) each."""
        positions = np.searchsorted(self.known, ids)
        return self.known[np.minimum(positions, len(self.known) - 1)] == ids if len(self.known) else positions < 0

    def run(self, stages: Sequence[Stage], sample: Any, sample_id: int) -> Any:
        """Run a sample through all stages; return the result, `DROPPED`, or `SKIPPED`."""
        if sample is QUARANTINED:
            self.left_out(sample_id, None)
            return SKIPPED
        result = run_stages(stages, sample, sample_id, index=self._index, forgiving=self.finds)
        if type(result) is Damaged:
            self.left_out(sample_id, result.error)
            return SKIPPED
        return result

    def left_out(self, sample_id: int, error: Exception | None) -> None:
        """Record that a sample was due and is left out; ``error`` is None for a sample in ``known``.

        Raises `StorageError` if the quarantine file cannot be written.
        """
        counters = self._counters
        counters.num_skipped += 1
        if len(counters.skipped_ids) < MOST_LISTED and sample_id not in counters.skipped_ids:
            counters.skipped_ids.append(sample_id)
        if error is None or self._path is None or sample_id in self._written:
            return
        shard, first_byte, end_byte = self._index.place(sample_id)
        byte, text = None, f"{type(error).__name__}: {error}"
        if isinstance(error, ShardError):
            byte, text = error.byte, error.message
        entry = {
            "dataset": self.dataset,
            "id": sample_id,
            "shard": shard,
            "first_byte": first_byte,
            "end_byte": end_byte,
            "byte": byte,
            "error": " ".join(text.split())[:_MOST_ERROR_CHARACTERS],
        }
        append_line(self._path, json.dumps(entry))
        self._written.add(sample_id)


def quarantine_of(
    options: ReadingOptions, index: SampleIndex, counters: Counters, *, numbering: str
) -> Quarantine | None:
    """Return the `Quarantine` of a run with these options; None if it leaves nothing out.

    ``numbering`` is the identity of the dataset that numbers the samples. If it differs from the fingerprint of
    ``index``, the index may have only the first samples. Raises `UsageError` if the quarantine file has an invalid
    line, or does not exist and ``on_error="raise"`` would never write it; `StorageError` if it cannot be read or
    written.
    """
    known = np.zeros(0, dtype=np.int64)
    if options.quarantine is not None:
        if options.skips:
            make_line_file(options.quarantine)  # a file that cannot be written raises now, not after a night
        known = _known(options.quarantine, index, numbering)
    if not options.skips and not len(known):
        return None
    return Quarantine(options, index, counters, known, numbering)


def _known(path: str, index: SampleIndex, numbering: str) -> NDArray[np.int64]:
    """Return the distinct ids that a quarantine file lists for a dataset, sorted."""
    lines = read_lines(path)
    if lines is None:
        msg = f"reading(quarantine={path!r}): there is no such file"
        raise UsageError(msg, hint='reading(on_error="skip", quarantine=...) makes it')
    ids = set()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        entry = _object_of(line)
        sample_id = entry.get("id")
        if not isinstance(entry.get("dataset"), str) or type(sample_id) is not int:
            msg = f"line {number} of the quarantine file {path} names no sample of a dataset: {line[:80]!r}"
            raise UsageError(msg, hint="take the line out, or name the right file")
        if entry["dataset"] != numbering:
            continue
        if numbering != index.fingerprint and sample_id >= index.num_samples:
            continue  # its shard is not indexed yet
        if not 0 <= sample_id < index.num_samples:
            msg = f"line {number} of the quarantine file {path} names sample {sample_id}; there are {index.num_samples}"
            raise UsageError(msg, hint="the line was changed after it was written")
        ids.add(sample_id)
    return np.array(sorted(ids), dtype=np.int64)


def _object_of(line: str) -> dict[str, Any]:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return entry if isinstance(entry, dict) else {}
