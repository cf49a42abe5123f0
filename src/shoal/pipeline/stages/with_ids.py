"""The stage that adds ids and epochs to samples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from shoal.errors import UsageError
from shoal.pipeline.stages.chosen_fields import fields_of
from shoal.pipeline.stages.stage import Stage


@dataclass(frozen=True, slots=True)
class WithIds(Stage):
    """A stage that adds the sample id as the field ``__id__``, counted from ``first_id``, and the epoch."""

    takes_columns = True

    epoch: int = 0
    first_id: int = 0

    def __repr__(self) -> str:
        return "with_ids()"

    def in_epoch(self, epoch: int) -> WithIds:
        """Return this stage for one epoch."""
        return replace(self, epoch=epoch)

    def moved(self, first_id: int) -> WithIds:
        """Return this stage with ids that are larger by ``first_id``."""
        return replace(self, first_id=self.first_id + first_id)

    def on_part(self, part: Any, sample_id: int, number: int) -> Any:
        """Add the id of the sample, the epoch, and the number of the part as ``__part__``."""
        return {**self(part, sample_id), "__part__": number}

    def __call__(self, sample: Any, sample_id: Any) -> Any:
        """Add both to a sample, or to columns with an id for each row; `UsageError` if a field has such a name."""
        fields = fields_of(sample, "with_ids()")
        if self.first_id:
            sample_id = sample_id - self.first_id  # an array of ids must not change
        epoch = np.full(len(sample_id), self.epoch) if isinstance(sample_id, np.ndarray) else self.epoch
        added: dict[str, Any] = {"__id__": sample_id, "__epoch__": epoch}
        has_id = "__id__" in fields
        for name, value in added.items():
            # A stored __epoch__ that equals epoch 0 is refused in epoch 0 already, not only in epoch 1.
            if name in fields and not (has_id and np.array_equal(fields[name], value)):
                msg = f"with_ids() adds {name!r}, but the samples have a field of that name"
                hint = f'.rename(own_{name.strip("_")}="{name}") before with_ids() keeps it under another name'
                raise UsageError(msg, hint=hint)
        return {**fields, **added}
