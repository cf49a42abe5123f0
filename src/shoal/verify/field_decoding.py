"""Does every field decode? The decoders of `decode()` on each sample that the shards hold, and no batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from shoal.formats.decoding.images import IMAGE_SPECS
from shoal.indexing.opened_dataset import Opened
from shoal.pipeline.stages.decode import Decode
from shoal.pipeline.stages.running import FieldError
from shoal.pipeline.stored_types import declared_features
from shoal.reading.checks.salvage import Damaged
from shoal.reading.schedule.units import UnitRead, starts_in
from shoal.verify.verify_report import Damage, VerifyReport

_IMAGES = "rgb8"


def field_decoder(opened: Opened, names: Sequence[str] = ()) -> Decode:
    """Return what decodes the fields of this dataset: as `decode()` with these names, images in any case.

    Columns that Hugging Face `datasets` describes are decoded as it does. Raises `UsageError` if there is no decoder of
    a name, or a library that it needs is not installed.
    """
    features = declared_features(opened)
    images = () if any(name in IMAGE_SPECS for name in names) else (_IMAGES,)
    described = ("hf",) if features and not any(name in ("hf", "hf-names") for name in names) else ()
    return Decode((*images, *described, *names), features=features)


def decoded(opened: Opened, read: UnitRead, samples: Iterable[Any], decode: Decode) -> VerifyReport:
    """Decode each field of these samples of an extent, and report each sample with a field that does not decode.

    Samples that are damaged themselves are left to whatever found that. Raises what `decode` raises for a reason
    outside of the data (a missing library).
    """
    found = VerifyReport()
    starts = starts_in(opened.index, read)
    for number, sample in enumerate(samples):
        if isinstance(sample, Damaged) or not isinstance(sample, dict):
            continue
        found.num_decoded += 1
        if words := [text for name, value in sample.items() if (text := _failure(decode, name, value))]:
            span = (read.first_byte, read.end_byte)
            if starts is not None:
                span = (read.first_byte + starts[number], read.first_byte + starts[number + 1])
            key = sample.get("__key__")
            ids, keys = (read.first_sample + number,), (key if isinstance(key, str) else None,)
            shard = opened.index.shard_names[read.shard]
            found.damages.append(Damage("undecodable", shard, *span, "; ".join(words), ids, keys))
    return found


def _failure(decode: Decode, name: str, value: Any) -> str:
    """Return why a field does not decode; "" if it does."""
    try:
        decode({name: value}, 0)
    except FieldError as bad:
        cause = bad.__cause__
        return f"{bad} cannot be decoded: {type(cause).__name__}: {cause}"
    return ""
