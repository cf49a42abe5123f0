"""Loading of a state into a dataset that has other shards now: it goes on with the dataset that the state knew."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from shoal.errors import StateError, UsageError
from shoal.indexing.opened_dataset import Known, Opened, OpenedDataset
from shoal.order.state_dict import Identity, State
from shoal.stream.dataset_spec import Coming, DatasetSpec
from shoal.stream.generations.recovered_datasets import recovered_part

_log = logging.getLogger("shoal")


def spec_as_saved(spec: DatasetSpec, saved: State) -> DatasetSpec:
    """Return the description of the dataset that a state was saved with, and of the dataset that followed it.

    ``spec`` itself if the state belongs to it. A dataset that was extended before the state is loaded stays extended:
    from the epoch after the state's, or from the state's epoch at its beginning.

    Raises `StateError`: the dataset of the state cannot be recovered from the shards of this dataset.
    """
    if spec.grows or saved.order.get("name") == "growing":
        return spec  # these orders identify a listing, and compare it themselves
    newest = spec.opened if spec.coming is None else spec.coming.opened
    names = _fingerprints(saved)
    running, words = _as_known(spec.opened, newest, names, saved.identity)
    result = spec if running is spec.opened else _moved(spec, running, words)
    if saved.following is not None:
        following = saved.following
        opened, _ = _as_known(newest, newest, following.index, following.identity)
        is_new = opened.index.fingerprint != running.index.fingerprint
        return replace(result, coming=Coming(following.epoch, opened) if is_new else None)
    if spec.coming is None or newest.index.fingerprint == running.index.fingerprint:
        return result if result.coming is None else replace(result, coming=None)
    return replace(result, coming=Coming(saved.epoch + (saved.position > 0), newest))


def opened_as_saved(opened: Opened, saved: State) -> Opened:
    """Return the dataset that a state knew, for reports about its run; `StateError` if it cannot be recovered."""
    if "sources" in saved.order:
        return opened  # the state of a mixture, which the caller refuses
    identity = saved.identity
    known = Known(saved.index, identity.shards.get("", ()), identity.snapshots.get("", ""))
    return recovered_part(opened, known).opened


def _moved(spec: DatasetSpec, opened: OpenedDataset, words: str) -> DatasetSpec:
    try:
        moved = spec.moved(opened)
    except UsageError as error:
        msg = f"the state belongs to an earlier dataset ({words}), where the samples cannot be chosen as now: {error}"
        raise StateError(msg, hint="open the shards of the saved run") from error
    if words:
        _log.warning("the state was saved with an earlier dataset, which goes on: %s", words)
    return replace(moved, recovered=f"as of the loaded state: {words}" if words else "", coming=None)


def _fingerprints(saved: State) -> dict[str, str]:
    """Return the fingerprint of each dataset of a state by name; a single dataset has the name ""."""
    sources = saved.order.get("sources")
    return {"": saved.index} if not isinstance(sources, Mapping) else dict(_of_sources(sources, ""))


def _of_sources(sources: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for name, source in sources.items():
        if "sources" in source:
            yield from _of_sources(source["sources"], f"{prefix}{name}/")
        else:
            yield f"{prefix}{name}", source["index"]


def _as_known(
    opened: OpenedDataset, newest: OpenedDataset, fingerprints: Mapping[str, str], identity: Identity
) -> tuple[OpenedDataset, str]:
    """Return the dataset with these fingerprints by source, and how it was recovered; sources may have been added."""
    parts: list[Opened] = []
    words: list[str] = []
    for (name, index), own, latest in zip(opened.indexes.items(), opened.parts, newest.parts, strict=True):
        fingerprint = fingerprints.get(name, index.fingerprint)
        if fingerprint == index.fingerprint:
            parts.append(own)
            continue
        known = Known(fingerprint, identity.shards.get(name, ()), identity.snapshots.get(name, ""))
        part, text = recovered_part(latest, known, name=name)
        parts.append(part)
        if text:
            words.append(f"{name}: {text}" if name else text)
    if all(new is old for new, old in zip(parts, opened.parts, strict=True)):
        return opened, ""
    return opened.with_parts(tuple(parts)), "; ".join(words)
