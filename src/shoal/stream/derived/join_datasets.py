"""`Dataset.join`: samples get the fields of another dataset's samples with the same keys."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any
from zlib import crc32

import numpy as np

from shoal.arguments import as_choice, as_text
from shoal.errors import UsageError
from shoal.figures import counted
from shoal.indexing.alignment.kept_alignments import KeptAlignment, kept_alignment, scratch_directory
from shoal.indexing.alignment.matched_keys import MEMORY_BYTES, MatchCounts, MatchedKeys
from shoal.indexing.opened_dataset import Companion, Opened
from shoal.order.arrays.index_ranges import Runs
from shoal.order.protocol import chunk_starts
from shoal.pipeline.columns.column_sources import with_chosen
from shoal.pipeline.stages.join_fields import JoinFields
from shoal.pipeline.stages.map_and_filter import filters_in
from shoal.reading.checks.damaged_samples import read_sample
from shoal.reading.reading_options import ReadingOptions
from shoal.stream.choosing.sample_groups import KEY
from shoal.stream.dataset_spec import CHOSEN, GROUPED, DatasetSpec
from shoal.stream.derived.key_hashes import chosen_keys, comes_from_index, hashed_keys
from shoal.stream.generations.followed_source import refuse_followed
from shoal.stream.ranks import Ranks

_log = logging.getLogger("shoal")

_RULE = 1  # version of hashes and alignments, in the names of files
HOW, DOUBLES = ("inner", "left"), ("refuse", "first")
_AT_ONCE = 1 << 20


def joined_spec(left: DatasetSpec, right: DatasetSpec, *, on: Any, how: str, missing: Any, doubles: str) -> DatasetSpec:
    """Return the description of a dataset with the fields of another.

    Raises `UsageError`; see `shoal.Dataset.join`.
    """
    left_on, right_on = _keys_of(on)
    as_choice("join(how=)", how, HOW)
    as_choice("join(doubles=)", doubles, DOUBLES)
    _check_missing(missing, how)
    refuse_followed(left, "join()")
    refuse_followed(right, "join()")
    opened = _checked_left(left, how)
    other = _checked_right(right)
    aligned = _aligned(opened, other, right.stored, (left_on, right_on))
    if aligned.counts.num_doubles and doubles == "refuse":
        raise _doubled(aligned, other, right.stored, right_on)
    counts = aligned.counts
    _log.info("join(on=%r): %s", on, words_of(counts))
    words = f"join on {left_on}: {words_of(counts)}"
    companion = Companion(with_chosen(other, right.seeded_stages), aligned)
    source = replace(opened, companions=(*opened.companions, companion))
    shared = frozenset((KEY, *((left_on,) if left_on == right_on else ())))
    stage = JoinFields(right.seeded_stages, shared, dict(missing or {}), words)
    joined = replace(left, source=source, stages=(*left.stages, stage), grows=False)
    if how == "inner" and counts.num_matched < counts.num_samples:
        matched = _matched(aligned)
        joined = joined.only(matched if left.stored is None else _among(matched, left.stored), 'join(how="inner")')
    return joined


def words_of(counts: MatchCounts) -> str:
    """Return the counts of a match in words."""
    words = f"{counts.num_matched:,} of {counted(counts.num_samples, 'sample')} have a partner"
    words += f", {counts.num_unused:,} partners are unused" if counts.num_unused else ""
    return words + (f", {counts.num_doubles:,} have the key of another" if counts.num_doubles else "")


def _keys_of(on: Any) -> tuple[str, str]:
    if isinstance(on, tuple | list) and len(on) == 2:
        return as_text("join(on=)", on[0]), as_text("join(on=)", on[1])
    if isinstance(on, str):
        return on, on
    msg = f"join(on=) is the name of a key, or a pair of names for both sides; got {on!r:.80}"
    raise UsageError(msg, hint='on="__key__", on="uid" or on=("uid", "image_id")')


def _check_missing(missing: Any, how: str) -> None:
    if missing is None:
        return
    if not isinstance(missing, Mapping) or not all(isinstance(name, str) for name in missing):
        msg = f"join(missing=) has values by field for samples without a partner; got {missing!r:.80}"
        raise UsageError(msg, hint='missing={"caption": ""}')
    if how != "left":
        msg = f"join(missing=) is for samples without a partner, which how={how!r} leaves out"
        raise UsageError(msg, hint='how="left" keeps them')


def _checked_left(spec: DatasetSpec, how: str) -> Opened:
    opened = spec.opened.one("join()")
    spec.refuse("join()", GROUPED)
    if others := [stage for stage in spec.stages if not isinstance(stage, JoinFields)]:
        msg = f"join() reads the fields of both sides together, but was called after {others[0]!r}"
        raise UsageError(msg, hint="put join() before decode(), map() and other stages: they then see all fields")
    if how == "inner" and spec.request is not None:
        msg = 'join(how="inner") chooses stored samples; after shuffle() there are only positions'
        raise UsageError(msg, hint='put join() before shuffle(), or keep all samples with how="left"')
    if how == "inner":
        spec.refuse('join(how="inner")', CHOSEN)
    return opened


def _checked_right(spec: DatasetSpec) -> Opened:
    opened = spec.opened.one("join(other)")
    of_the_whole = {
        "shuffle()": spec.request is not None,
        "batch()": spec.batching is not None,
        "sample()": spec.sampling is not None,
        "pack_sequences()": bool(spec.rows.verb),
        "flat_map()": bool(spec.rows.divider),
        "filter()": any(filters_in(spec.stages)),
        "partition()": spec.ranks != Ranks(),
        "without()": bool(spec.gaps),
        "format()": spec.formatting.name is not None,
        "reading()": spec.reading != ReadingOptions(),
    }
    if wrong := [verb for verb, is_used in of_the_whole.items() if is_used]:
        msg = f"the joined dataset has {wrong[0]}, but its samples come in the order of the other dataset"
        raise UsageError(msg, hint=f"ds.join(other).{wrong[0][:-1]}...) applies to both sides")
    return opened


def _aligned(left: Opened, right: Opened, stored: Runs | None, on: tuple[str, str]) -> KeptAlignment:
    """Return the alignment of two datasets, from the cache or new; keys are read if it is new."""
    words: list[Any] = [_RULE, on, None if stored is None else stored.digest()]
    words += [_identity(opened, key) for opened, key in zip((left, right), on, strict=True)]
    name = hashlib.blake2b(json.dumps(words).encode(), digest_size=16).hexdigest()

    def matched(working: Callable[[], None]) -> MatchedKeys:
        return MatchedKeys(
            hashed_keys(left, on[0], side="left side", working=working),
            chosen_keys(hashed_keys(right, on[1], side="joined side", working=working), stored),
            num_left=left.index.num_samples,
            num_right=right.index.num_samples,
            directory=scratch_directory(),
            memory_bytes=MEMORY_BYTES,
        )

    return kept_alignment(name, matched)


def _identity(opened: Opened, on: str) -> list[Any]:
    """Return what the keys of a dataset depend on: its fingerprint, the versions of its shards, a column's bytes."""
    index = opened.index
    versions = hashlib.blake2b("\n".join(index.shard_versions).encode("utf-8", "surrogateescape"), digest_size=16)
    words = [index.fingerprint, versions.hexdigest(), int(index.shard_bytes.sum())]
    if comes_from_index(opened, on):
        column = np.ascontiguousarray(index.columns[on])
        words += [str(column.dtype), crc32(column.view(np.uint8).data)]
        words.append(index.metadata.get("texts", {}).get(on))
    return words


def _matched(aligned: KeptAlignment) -> Runs:
    """Return the ids of the samples with a partner."""
    alignment, num_samples = aligned.alignment, aligned.counts.num_samples
    if (runs := alignment.runs) is not None:
        has = runs.first_partners >= 0
        edges = np.append(runs.first_ids, num_samples)
        mask_edges = np.flatnonzero(np.diff(has, prepend=False, append=False))
        starts, stops = edges[mask_edges[::2]], edges[mask_edges[1::2]]
        return Runs(starts, stops, chunk_starts(stops - starts))
    mask = np.empty(num_samples, dtype=np.bool_)
    for first in range(0, num_samples, _AT_ONCE):
        ids = np.arange(first, min(first + _AT_ONCE, num_samples))
        mask[ids] = alignment.partners(ids) >= 0
    return Runs.of(mask, num_samples)


def _among(matched: Runs, stored: Runs) -> Runs:
    """Return the numbers, among stored samples, of the samples that are matched."""
    numbers = np.arange(len(stored))
    return Runs.of(matched.numbers(stored.members(numbers)) >= 0, len(stored))


def _doubled(aligned: KeptAlignment, right: Opened, stored: Runs | None, on: str) -> UsageError:
    """Return the error of keys that several samples of the joined dataset have, with examples."""
    num_doubles = aligned.counts.num_doubles
    num_samples = right.index.num_samples if stored is None else len(stored)
    msg = f"{num_doubles:,} of {num_samples:,} samples of the joined dataset have the key of an earlier sample"
    if examples := [_example(right, on, first, again) for first, again in aligned.doubles]:
        msg += f": {'; '.join(examples)}"
    return UsageError(msg, hint='doubles="first" takes the first of them; `select` chooses others')


def _example(right: Opened, on: str, first: int, again: int) -> str:
    key = read_sample(right, first).get(on)
    return f"samples {first} and {again}" + (f" are {key!r:.60}" if key is not None else "")
