"""The next samples of a dataset's order, for people who look at a few: the position of the dataset stays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shoal.indexing.opened_dataset import OpenedDataset
from shoal.reading.resolved_epochs import Piecewise
from shoal.stats.counters import Counters
from shoal.stream.choosing.map_view import MapView
from shoal.stream.dataset_stream import Stream

_MOST_DROPPED = 16  # samples to look at for each sample that filters keep


@dataclass(frozen=True, slots=True)
class NextSamples:
    """Ids of the samples that come next over all ranks, at position ``number`` of an epoch, gaps not counted.

    ``samples[id]`` reads a sample and runs all its stages; `NoSampleError` if a filter drops the sample. ``opened`` has
    the places of the samples.
    """

    epoch: int
    number: int
    ids: NDArray[np.int64]
    opened: OpenedDataset
    samples: MapView


def next_samples(stream: Stream, num_samples: int) -> NextSamples:
    """Return the ids of the next samples, fewer at the end of an epoch, without reading data.

    If filters may drop samples, there are more ids than ``num_samples``. An order that grows waits until enough shards
    are indexed. Of packed documents, the ids are those of the documents.
    """
    spec, resolved = stream.spec, stream.resolved
    rank, world_size = spec.ranks.resolve()
    resolved.begin(rank, world_size)
    epoch, number = stream.next_position
    piecewise = Piecewise(Counters(), None, rank, world_size, lambda: False)
    pieces = resolved.pieces(resolved.first(spec.source, epoch).opened, epoch, piecewise)
    # Bytes that scans keep for the stream are still needed: nothing counts as read.
    piece = pieces.upto(number + max(1, num_samples) - 1, read_before=0)
    order = piece.resolved.epoch(epoch)
    num_wanted = num_samples * (_MOST_DROPPED if spec.has_filters else 1)
    rows = order.ids(number, min(number + num_wanted, order.num_samples))
    ids = piece.resolved.samples_of(epoch, rows)
    if len(ids) != len(rows):  # documents, which several sequences may share
        ids = np.array(list(dict.fromkeys(ids.tolist()))[:num_wanted], dtype=np.int64)
    view = MapView(spec, piece.resolved, stream.cursor, opened=piece.opened, filters=True)
    return NextSamples(epoch, number, ids, piece.opened, view)
