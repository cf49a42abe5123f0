"""Methods of a dataset that grows during a run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Self, cast

from shoal.errors import StateError, UsageError
from shoal.order.states.deals import Start
from shoal.stream.dataset_spec import DatasetSpec
from shoal.stream.dataset_stream import Stream
from shoal.stream.generations.extended_source import dataset_to_follow
from shoal.stream.generations.followed_source import extended_spec


class GrowthVerbs:
    """Methods of `Dataset` for new shards."""

    stream: Stream

    def __init__(self, spec: DatasetSpec) -> None:
        self.stream = Stream(spec)  # private, for the modules of shoal

    def extended(
        self,
        source: str | os.PathLike[str] | Sequence[str] | GrowthVerbs | Mapping[str, Any] | None = None,
        *,
        storage_options: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return this dataset at its position: the running epoch stays as it was, the next epoch reads ``source``.

        Before the first sample of an epoch, this epoch reads ``source``. New shards come after all known shards, so
        sample ids stay. The order of the next epoch is resolved anew: a window in bytes is another number of chunks for
        a larger dataset. States name both datasets, and resume at any world size, where all their shards exist.
        ``shoal.open(..., follow=True)`` does this at the beginning of each epoch.

        Shards that left are named in a warning; the next epoch lacks them, and later samples have other ids.

        Parameters
        ----------
        source
            What `shoal.open` opened, listed again (the default); another directory, glob or list; an index made by
            ``shoal index --append``; or an opened dataset, taken as it is. For a mixture, a mapping of some of its
            sources: ``{"web": "more/web"}``.
        storage_options
            Options of the store of ``source``; default: the options of `shoal.open`.

        Raises
        ------
        UsageError
            Ranks cannot agree on the shards that they see (make an index with ``shoal index --append``); ranks fill
            their batches (``filter(refill=True)``), and may be in different epochs; or a choice of samples before
            `shuffle` cannot be repeated on the larger dataset.

        Examples
        --------
        >>> few = shoal.open("data/train-{000000..000001}.tar").shuffle(seed=0).batch(10)
        >>> batch = next(iter(few))
        >>> more = few.extended("data")
        >>> more
        <shoal.Dataset: 100 samples of 2 tar shards, ..., batches of 10, from epoch 1 on 200 samples>
        >>> len(list(more)), len(list(more))
        (9, 20)
        """
        stream = self.stream
        if not isinstance(untyped := cast("object", storage_options), Mapping | None):
            msg = f"extended(storage_options=) is a dict, not {type(untyped).__name__}"
            raise UsageError(msg, hint='storage_options={"region": "eu-west-1"}')
        if stream.batcher.counts_share:
            msg = "extended(): ranks of this dataset fill their batches, and may be in different epochs"
            raise UsageError(msg, hint="end the epoch, open the larger dataset, and set_epoch() to the next epoch")
        try:
            epoch, number = stream.next_position
        except StateError as error:
            raise UsageError(f"extended(): {error.message}", hint=error.hint) from error
        border = epoch + (number > 0)
        spec = stream.spec
        opened = dataset_to_follow(spec, source, storage_options, border)
        extended = type(self)(extended_spec(spec, opened, border))
        extended.stream.begin_as(stream, epoch, Start(number))
        return extended
