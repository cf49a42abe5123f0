"""Streams of MosaicML Streaming: ``remote``, ``local``, ``split`` and ``proportion``, ``repeat`` or ``choose``."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from shoal.formats.metadata.marked_yaml import Marked
from shoal.stream.mixing.mixture_entries import MixtureEntry, SourceEntry, beside, named_after

_SHARES = {"proportion": "weight", "repeat": "repeat", "choose": "choose"}
_OF_DOWNLOADS = ("download_retry", "download_timeout", "validate_hash", "keep_zip")
_STREAM_KEYS = ("remote", "local", "split", *_SHARES, *_OF_DOWNLOADS)
_DATASET_KEYS = ("streams", "epoch_size", "shuffle", "shuffle_seed", *_OF_DOWNLOADS)


def streams_mixture(node: Marked) -> MixtureEntry:
    """Return the mixture of a list or mapping of streams, also under a key ``streams``.

    As in Streaming: without shares, every sample appears once; with proportions, an epoch has ``epoch_size`` samples,
    by default as many as all streams together.
    """
    keys = {} if isinstance(node.value, list) else node.mapping("a file of streams", _DATASET_KEYS)
    listed = keys.get("streams", node)
    streams = listed.value if isinstance(listed.value, dict) else None
    nodes = list(streams.values()) if streams is not None else listed.items("streams")
    if not nodes:
        raise listed.error("streams names no dataset")
    paths = [_path(stream) for stream in nodes]
    names = list(streams) if streams is not None else named_after(paths)
    kinds = [_kind(stream) for stream in nodes]
    by_weight = "proportion" in kinds
    for each, kind in zip(nodes, kinds, strict=True):
        if by_weight and kind != "proportion":
            msg = "a stream has no proportion, but other streams have one"
            raise each.error(msg, "all streams have a proportion, or none has")
    seed = keys["shuffle_seed"].whole("shuffle_seed") if "shuffle_seed" in keys else 0
    epoch_size = keys["epoch_size"].whole("epoch_size") if "epoch_size" in keys else None
    by_size = epoch_size is not None and not any(kinds)
    if epoch_size is not None and any(kinds) and not by_weight:
        msg = "repeat, choose and epoch_size all set the length of an epoch"
        raise keys["epoch_size"].error(msg, "leave out epoch_size")
    sources = {
        name: SourceEntry(each, path=path, share=None if by_size else _share(each, kind))
        for name, each, path, kind in zip(names, nodes, paths, kinds, strict=True)
    }
    arguments: dict[str, Any] = {"seed": seed} | ({} if epoch_size is None else {"epoch_size": epoch_size})
    is_shuffled = "shuffle" in keys and keys["shuffle"].plain() is True
    shuffle = {"seed": seed} if is_shuffled else None
    return MixtureEntry(node, sources, arguments, shuffle=shuffle, is_sized=by_weight and epoch_size is None)


def _path(node: Marked) -> str:
    keys = node.mapping("a stream", _STREAM_KEYS)
    place = next((keys[name] for name in ("remote", "local") if name in keys and not keys[name].is_null), None)
    if place is None:
        raise node.error("a stream has neither remote nor local")
    path = beside(node.path, place.text("the place of a stream"))
    has_split = "split" in keys and not keys["split"].is_null
    return f"{path.rstrip('/')}/{keys['split'].text('split')}" if has_split else path


def _kind(node: Marked) -> str | None:
    kinds = [name for name in _SHARES if isinstance(node.value, dict) and name in node.value]
    kinds = [name for name in kinds if not node.mapping("a stream")[name].is_null]
    if len(kinds) > 1:
        raise node.keys[kinds[1]].error(f"a stream has {' and '.join(kinds)}; it has one of {', '.join(_SHARES)}")
    return kinds[0] if kinds else None


def _share(node: Marked, kind: str | None) -> tuple[str, Fraction]:
    if kind is None:
        return "repeat", Fraction(1)
    value = node.mapping("a stream")[kind]
    return _SHARES[kind], Fraction(value.whole(kind)) if kind == "choose" else value.number(kind)
