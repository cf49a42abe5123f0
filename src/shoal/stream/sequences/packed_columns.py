"""The argument ``fields`` of `pack_sequences`: names of fields, and their padding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

from shoal.arguments import as_sequence, as_text, with_type
from shoal.errors import UsageError
from shoal.pipeline.packed_fields import IGNORED_LABEL, LABELS, LOSS_MASK, PackedField
from shoal.pipeline.sequence_arrays import EXTRAS

_TAKEN = ("segment_ids", "position_ids", *EXTRAS)


def packed_fields(fields: Sequence[str] | Mapping[str, float], key: str) -> tuple[PackedField, ...]:
    """Return the fields to pack with the field ``key`` of tokens; `UsageError` for names that sequences use.

    >>> [(field.name, field.padding) for field in packed_fields(["labels", "weights"], "tokens")]
    [('labels', -100), ('weights', 0)]
    """
    if key in _TAKEN:
        _refuse_name(f"key={key!r}", _TAKEN)
    paddings: Any = fields
    if not isinstance(fields, Mapping):
        names = (fields,) if isinstance(fields, str) else as_sequence("pack_sequences(fields=)", fields)
        texts = [as_text("each of pack_sequences(fields=)", name) for name in names]
        paddings = {name: IGNORED_LABEL if name == LABELS else 0 for name in texts}
    for name, padding in paddings.items():
        as_text("each of pack_sequences(fields=)", name)
        if name in (taken := tuple(other for other in (key, *_TAKEN) if other != LOSS_MASK)):
            _refuse_name(f"fields=[{name!r}]", taken)
        if not isinstance(padding, Real):
            msg = f"pack_sequences(fields=): the padding of {name!r} must be a number; got {with_type(padding)}"
            raise UsageError(msg, hint=f'fields={{"{name}": 0}}, or names alone: fields=["{name}"]')
        if name == LOSS_MASK and padding:
            msg = f"pack_sequences(fields=): the padding of {name!r} must be 0, which means no loss; got {padding}"
            raise UsageError(msg, hint=f'fields=["{name}"]')
    return tuple(PackedField(name, padding) for name, padding in paddings.items())


def _refuse_name(argument: str, taken: Sequence[str]) -> None:
    msg = f"pack_sequences({argument}): sequences have a field of this name beside their tokens"
    raise UsageError(msg, hint=f"rename the field before; reserved names: {', '.join(taken)}")
