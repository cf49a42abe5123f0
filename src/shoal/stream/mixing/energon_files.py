"""Megatron Energon's metadatasets: ``splits`` of ``blend``, ``blend_epochized`` or a single ``path``."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from shoal.formats.metadata.marked_yaml import Marked
from shoal.hints import did_you_mean
from shoal.stream.mixing.mixture_entries import MixtureEntry, SourceEntry, beside, named_after

# The key of a share, and its key in shoal; "datasets" is the blend of the first version.
_BLENDS = {
    "blend": ("weight", "weight"),
    "datasets": ("weight", "weight"),
    "blend_epochized": ("repetitions", "repeat"),
}
_DATASET_KEYS = ("path", "split_part", "subflavors", "shuffle_over_epochs_multiplier")
_NOT_HERE = ("join", "joiner", "aux", "subset", "dataset_config", "split_config", "subflavor")
_WITHOUT_SPLITS = ".jsonl"


def energon_mixture(node: Marked, split: str | None) -> MixtureEntry:
    """Return the mixture of a split of a metadataset; ``split`` may be None for a single split.

    Training blends repeat forever, by weights or (epochized) in epochs; in other splits, every sample appears once.
    """
    keys = node.mapping("a metadataset", ("__module__", "__class__", "splits"))
    splits = keys["splits"].mapping("splits")
    if split is None and len(splits) != 1:
        msg = f"the metadataset has the splits {', '.join(splits)}, and no split was chosen"
        raise keys["splits"].error(msg, f'split="{next(iter(splits), "train")}"')
    name = split or next(iter(splits))
    if name not in splits:
        msg = f"there is no split {name!r}; the splits are {', '.join(splits)}"
        raise keys["splits"].error(msg, did_you_mean(name, splits).rstrip())
    return _mixture(splits[name], name, is_training=name == "train")


def _mixture(node: Marked, split: str, *, is_training: bool) -> MixtureEntry:
    blends = [key for key in _BLENDS if key in node.mapping("a split")]
    if not blends:
        return MixtureEntry(node, _sources([node], split, ("", "repeat"), is_training=False))
    key = blends[0]
    parts = node.mapping("a blend", (key,))[key].items(key)
    if not parts:
        raise node.error(f"{key} names no dataset")
    ends = "forever" if is_training and _BLENDS[key][1] == "weight" else "first"
    return MixtureEntry(node, _sources(parts, split, _BLENDS[key], is_training=is_training), ends=ends)


def _sources(nodes: list[Marked], split: str, share: tuple[str, str], *, is_training: bool) -> dict[str, SourceEntry]:
    key, kind = share
    entries = [_source(node, split, key, is_training=is_training) for node in nodes]
    paths = [entry.path if isinstance(entry.path, str) and entry.path else "blend" for entry in entries]
    shares = [node.value[key].number(key) if isinstance(node.value, dict) and key in node.value else Fraction(1)
              for node in nodes]  # fmt: skip
    return {
        name: replace(entry, share=(kind, number) if is_training else ("repeat", Fraction(1)))
        for name, entry, number in zip(named_after(paths), entries, shares, strict=True)
    }


def _source(node: Marked, split: str, key: str, *, is_training: bool) -> SourceEntry:
    keys = node.mapping("a dataset of a blend")
    if unknown := [name for name in keys if name in _NOT_HERE]:
        msg = f"shoal does not support {unknown[0]!r} of Energon"
        raise node.keys[unknown[0]].error(msg, "prepare the dataset separately, and mix in Python with shoal.mix()")
    if any(name in keys for name in _BLENDS):
        inner = {name: value for name, value in keys.items() if name != key}
        names = {name: place for name, place in node.keys.items() if name != key}
        within = Marked(node.path, node.line, node.column, inner, keys=names)
        return SourceEntry(node, inner=_mixture(within, split, is_training=is_training))
    keys = node.mapping("a dataset of a blend", (*_DATASET_KEYS, *([key] if key else [])))
    if "path" not in keys:
        raise node.error("a dataset of a blend has no path", "path: ./coco")
    path = beside(node.path, keys["path"].text("path"))
    part = keys["split_part"].text("split_part") if "split_part" in keys else split
    opening: dict[str, Any] = {"split": None if path.endswith(_WITHOUT_SPLITS) else part}
    fields = {"__subflavors__": keys["subflavors"].plain()} if "subflavors" in keys else {}
    return SourceEntry(node, path=path, opening=opening, fields=fields)
