"""Questions about a dataset that its index and order answer, without reading samples."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from shoal.arguments import as_text
from shoal.errors import UsageError
from shoal.indexing.growing.growing_shards import Growth
from shoal.order.sampling.weights_and_classes import Repeats
from shoal.quality.expected_quality import ShuffleQuality
from shoal.reading.mixture.mix_request import FOREVER
from shoal.reading.resolved_order import ResolvedOrder
from shoal.stream.choosing.index_columns import class_names, key_column
from shoal.stream.dataset_stream import Stream
from shoal.stream.quality.predictions import predicted
from shoal.stream.verbs.dataset_requests import count_of


class OrderQuestions:
    """Methods of `Dataset` that describe its samples and their order; none reads a sample."""

    stream: Stream

    @property
    def num_samples(self) -> int:
        """Number of samples in an epoch over all ranks, before any filter; an estimate while `growth` goes on.

        Examples
        --------
        >>> ds.num_samples
        200
        """
        stream = self.stream
        return stream.num_samples(0 if stream.spec.coming is None else stream.cursor.epoch)

    @property
    def growth(self) -> Growth | None:
        """Shards indexed so far and the estimated number of samples of ``index="grow"``; None for a complete index.

        Examples
        --------
        >>> ds.growth is None
        True
        """
        return self.stream.growth

    @property
    def resolved(self) -> ResolvedOrder:
        """The order resolved to integers; str() gives a call that reproduces the order even if defaults change.

        Examples
        --------
        >>> print(ds.shuffle(seed=0, window="100KiB").resolved)
        shuffle(shoal.orders.Window(chunks=2, num_canonical_nodes=1), seed=0, chunk=51200)
        """
        return cast("ResolvedOrder", self.stream.resolved.in_epoch(self.stream.cursor.epoch))  # a `MixedDataset` has a `ResolvedMixture`

    @property
    def repeats(self) -> Repeats | None:
        """Average repeats and gaps of `sample` in an epoch, as numbers and as a sentence; None without `sample`.

        Examples
        --------
        >>> ds.sample(by="cls", balanced=True).repeats.most_copies
        4
        """
        return self.stream.spec.repeats

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes of the field `cls` (or `label` of Hugging Face), by number; see `class_names`.

        Examples
        --------
        >>> ds.classes
        ('cat', 'dog', 'owl')
        """
        return class_names(self.stream.spec.opened.one("classes"))

    def class_names(self, field: str) -> tuple[str, ...]:
        """Return the names for a field's numbers: texts in the index, directories, or a Hugging Face ClassLabel.

        Examples
        --------
        >>> ds.class_names("cls")[2]
        'owl'
        """
        return class_names(self.stream.spec.opened.one("class_names()"), as_text("class_names()", field))

    def index_column(self, name: str) -> NDArray[Any]:
        """Return a column of the index, "shard" or "bytes", as an array by sample id; read-only.

        Examples
        --------
        >>> ds.index_column("cls")[118:122]
        array([0, 0, 1, 1])
        """
        return key_column(self.stream.spec.opened.one("index_column()").index, name)

    def ids(self, epoch: int = 0, start: int = 0, stop: int | None = None) -> NDArray[np.int64]:
        """Return the ids at global positions ``[start, stop)`` of an epoch, without reading data; 0.1 us per id.

        Examples
        --------
        >>> ds.shuffle(seed=0).ids(epoch=1, stop=4)
        array([186,  36,  69, 179])
        """
        resolved, epoch = self.stream.resolved, count_of(epoch, "ids(epoch=)")
        order = resolved.untouched(epoch)
        if stop is None and order.num_samples > FOREVER // 2:
            msg = "ids() without stop= needs the end of the epoch, and this mixture has no end"
            raise UsageError(msg, hint="ids(epoch, start, stop)")
        return resolved.samples_of(epoch, order.ids(start, order.num_samples if stop is None else stop))

    def batch_ids(
        self, step: int, *, epoch: int = 0, rank: int | None = None, world_size: int | None = None
    ) -> NDArray[np.int64]:
        """Return the sample ids of a rank at a step of an epoch that began at position 0, repeats included.

        Examples
        --------
        >>> ds.shuffle(seed=0).batch(4).batch_ids(10, rank=1, world_size=2)
        array([ 45, 162,  18, 165])
        """
        ids = self.stream.batch_of_order("batch_ids", step, epoch, rank, world_size)
        return self.stream.resolved.samples_of(epoch, ids)

    def quality(self, *, batch: int | None = None, key: Any = None, rho: float | None = None) -> ShuffleQuality:
        """Predict how well batches will be mixed, from the index and the order alone; no data is read.

        Predictions are within 10 % of measurements (`shoal.measure.audit`). Storage order, and a buffer with a key,
        have no formula and are measured. With ``index="grow"``, the result does not wait for the index, and its
        ``first_epoch`` predicts the first epoch, which mixes few shards at first.

        Parameters
        ----------
        batch
            Samples in a global batch; default: the global batch of `batch`, else 256.
        key
            The property to mix: the label of each sample by id, a column of the index, ``"shard"`` or ``"bytes"``; its
            correlation inside chunks is measured. Default: the worst case, each chunk of a single kind.
        rho
            The correlation inside chunks, if you know it: 0 for data shuffled before writing, 1 for the worst case.

        Examples
        --------
        >>> round(ds.shuffle(seed=0).quality(batch=16, key="cls").vr[16], 1)
        1.0
        """
        stream = self.stream
        if batch is None and stream.spec.batching is not None:
            batch = stream.partition.global_batch
        elif batch is None:
            # An estimate may be too high: a third of the estimate is safer than half.
            most = stream.resolved.num_samples // 2 if stream.resolved.knows_end(0) else stream.num_samples(0) // 3
            batch = max(1, min(256, most))
        return predicted(stream.resolved, count_of(batch, "quality(batch=)"), key=key, rho=rho)
