"""Requests of a packing: the arguments of `pack` and `repack`, checked, as one object that all their steps take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Literal, Self

from shoal.figures import parse_bytes
from shoal.formats.column_paths import Column
from shoal.formats.folder.class_directories import CLASS_FIELD
from shoal.index.cutting import EXTENT_BYTES, usual_extent_bytes
from shoal.pack.inputs.duplicates import Dedup
from shoal.pack.output.output_names import shard_settings
from shoal.pack.shards.shard_sizes import ShardSizing, shard_sizing


@dataclass(frozen=True, slots=True)
class ShardRequest:
    """Arguments that `pack` and `repack` share; all but ``num_workers`` affect the written bytes.

    ``shard_bytes`` of None means the rule of `shard_sizing` for ``num_readers``, and ``extent_bytes`` of None the rule
    of `usual_extent_bytes`, as for an index of existing shards: both depend on the bytes of all samples.
    """

    format: str | None = None
    shard_bytes: int | None = None
    num_readers: int = 1
    extent_bytes: int | None = None
    columns: Sequence[str | Column] = ()
    prefix: str = "shard"
    seed: int = 0
    oversample: Mapping[str, Fraction | int] = field(default_factory=dict)
    oversample_key: str = CLASS_FIELD
    balance: str | None = None
    dedup: Dedup | None = None
    on_error: Literal["raise", "skip"] = "raise"
    num_workers: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, **arguments: Any) -> Self:
        """Return the request for arguments of the public functions: sizes may be texts, and mappings None."""
        for name in ("shard_bytes", "extent_bytes", "memory_bytes"):
            if arguments.get(name) is not None:
                arguments[name] = parse_bytes(arguments[name], name.replace("memory_bytes", "memory"))
        return cls(**{**arguments, **{name: arguments[name] or {} for name in ("oversample", "options")}})

    @property
    def skips(self) -> bool:
        """True if inputs that cannot be read or written are left out."""
        return self.on_error == "skip"

    def sizing(self, num_bytes: int) -> ShardSizing:
        """Return the requested bytes of a shard, or the recommended bytes for ``num_bytes`` in all."""
        if self.shard_bytes is None:
            return shard_sizing(num_bytes, num_readers=self.num_readers)
        return ShardSizing(self.shard_bytes, None, 0.0, "as requested")

    def with_extents(self, num_bytes: int) -> Self:
        """Return the request with the bytes of an extent: as requested, or the usual bytes for ``num_bytes`` in all."""
        return self if self.extent_bytes is not None else replace(self, extent_bytes=usual_extent_bytes(num_bytes))

    @property
    def index_extent_bytes(self) -> int:
        """Bytes of an extent of the index; 64 KiB as long as nothing chose another size."""
        return EXTENT_BYTES if self.extent_bytes is None else self.extent_bytes

    def settings(self, format_name: str, columns: Sequence[Column], sizing: ShardSizing) -> dict[str, Any]:
        """Return the settings of the shards, as a plan records them, with all columns of the index."""
        return shard_settings(
            format_name, shard_bytes=sizing.shard_bytes, columns=columns, prefix=self.prefix,
            extent_bytes=self.index_extent_bytes, options=self.options,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class PackRequest(ShardRequest):
    """Arguments of `pack`: how its inputs become samples, and samples become shards."""

    format: str = "tar"
    shuffle: bool = False
    grouped: bool = False
    labelled: bool | None = None
    path_column: str | None = None
    require: Sequence[str] = ()
