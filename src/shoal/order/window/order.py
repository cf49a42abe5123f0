"""The default order: a window of chunks drawn from the whole dataset, close to a perfect shuffle.

`shoal.order.window.canonical_nodes` determines the chunks that mix, and `shoal.order.window.timeline_slabs` determines
the time of each sample. This module turns positions into offsets of nodes, and caches spans.

On chunks that each hold one class, the variance of the mean of a batch of ``b`` samples is ``max(1, b / chunks)``
times the variance in a perfect shuffle: with as many chunks in the window as samples in a global batch, each batch is
as good as perfect. The loss of a model follows four successive batches, so use four times as many chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.order.arrays.permutation import permute, unpermute
from shoal.order.arrays.vectorized import distinct
from shoal.order.protocol import MOST_RANKS, Moved, as_ids, as_span, as_whole, check_chunk_samples, chunk_starts
from shoal.order.seeds import check_epoch, check_seed, key
from shoal.order.window.canonical_nodes import CanonicalNodes
from shoal.order.window.timeline_slabs import Timeline

_LEAST_SPAN = 1 << 17  # positions: with shorter spans, calls cost more than the arrays; 12 MB of temporaries
_MOST_SPAN = 1 << 21
_CACHED_SPANS = 2
_SPANS_OF_FEW_NODES = 4  # in one span: a few nodes have too few samples to be worth the calls for each span
_NO_LANE = 0xFFFF  # also a lane of windows of 65,536 chunks, which is then only looked up again
_EMITTED = 1 << 16  # samples made at a time: a fifth faster than twice as many, because larger arrays need fresh pages
_KEPT_BYTES, _EMITTED_BYTES = 16, 88  # per position: two columns, and eleven more while making the span


def default_canonical_nodes(chunks: int) -> int:
    """Return the default number of canonical nodes of a window: at most 64, with at least 16 chunks in each."""
    return max(1, min(64, chunks // 16))


@dataclass(frozen=True, slots=True)
class Window:
    """A window that mixes the samples of ``chunks`` chunks at any time; chunks are drawn from the whole dataset.

    Parameters
    ----------
    chunks
        K, the chunks alive at a time over all canonical nodes; at least 2.
    num_canonical_nodes
        C, the shares of the dataset to mix separately, each with ``chunks // C`` chunks alive; with more nodes, more
        ranks read chunks exclusively. Default ``min(64, chunks // 16)``, at least 1.

    Examples
    --------
    >>> order = shoal.orders.Window(chunks=4).bind([10, 10, 10, 10, 10, 10], seed=0, epoch=0)
    >>> order.ids(0, 6).tolist()
    [21, 35, 6, 31, 22, 33]
    >>> order.positions([21, 35, 6]).tolist()
    [0, 1, 2]
    """

    name: ClassVar[str] = "window"
    version: ClassVar[int] = 1
    moves: ClassVar[Moved] = "chunks"

    chunks: int = 256
    num_canonical_nodes: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "chunks", as_whole("chunks", self.chunks))
        if self.num_canonical_nodes is not None:
            nodes = as_whole("num_canonical_nodes", self.num_canonical_nodes)
            if nodes > MOST_RANKS:
                msg = f"an order has at most {MOST_RANKS:,} canonical nodes; got {nodes:,}"
                raise UsageError(msg, hint="one node for each rank is more than enough")
            object.__setattr__(self, "num_canonical_nodes", nodes)
        if self.chunks < 2:
            msg = f"a window needs at least 2 chunks; got chunks={self.chunks}"
            raise UsageError(msg, hint="a larger window, or smaller chunks")
        if not 1 <= self.resolved_nodes <= self.chunks // 2:
            most = self.chunks // 2
            msg = f"a window of {self.chunks} chunks allows 1 to {most} canonical nodes; got {self.resolved_nodes}"
            raise UsageError(msg, hint="every canonical node needs at least 2 chunks of the window")

    @property
    def resolved_nodes(self) -> int:
        """Number of canonical nodes, with the default resolved."""
        nodes = self.num_canonical_nodes
        return default_canonical_nodes(self.chunks) if nodes is None else nodes

    @property
    def parameters(self) -> dict[str, int]:
        """Parameters of this order that a state keeps."""
        return {"chunks": self.chunks, "num_canonical_nodes": self.resolved_nodes}

    @property
    def span(self) -> int:
        """Number of positions made at a time; a multiple of the number of canonical nodes."""
        span = min(max(_LEAST_SPAN, 32 * self.chunks), _MOST_SPAN)  # 16 costs a fifth more with 16,384 chunks
        return -(-span // self.resolved_nodes) * self.resolved_nodes

    def kept_bytes(self, num_samples: int) -> int:
        """Return the bytes for spans of ids and chunks that a bound order keeps beside its chunk tables."""
        return min(num_samples, _CACHED_SPANS * self.span) * _KEPT_BYTES

    def span_bytes(self, num_samples: int) -> int:
        """Return the peak bytes while making a span after the first span; 0 if one span holds all samples.

        Includes the kept spans, the new span, and temporaries for the samples of some nodes.
        """
        most, together = 0, max(_EMITTED, self.span // self.resolved_nodes)
        for begin in self.span_starts(num_samples)[:_CACHED_SPANS]:
            size = min(self.span, num_samples - begin)
            most = max(most, (begin + size) * _KEPT_BYTES + min(size, together) * _EMITTED_BYTES)
        return most

    def span_starts(self, num_samples: int) -> range:
        """Return the first positions of the spans made during delivery: all but the first span."""
        return range(self.span, num_samples, self.span)

    def bind(self, chunk_samples: Any, *, seed: int = 0, epoch: int = 0) -> WindowEpoch:
        """Return the order of one epoch; 0.1 us and 20 bytes per chunk."""
        return self.bind_between(chunk_starts(check_chunk_samples(chunk_samples)), seed=seed, epoch=epoch)

    def bind_between(self, borders: NDArray[np.int64], *, seed: int = 0, epoch: int = 0) -> WindowEpoch:
        """Return the order of one epoch of chunks with these borders; see `shoal.order.protocol.BindsBetween`."""
        seed, epoch = check_seed(seed), check_epoch(epoch)
        nodes = CanonicalNodes(borders, seed=seed, num_nodes=self.resolved_nodes)
        return WindowEpoch(self, nodes, seed=seed, epoch=epoch)


class WindowEpoch:
    """The window order of one epoch."""

    version = Window.version

    def __init__(self, order: Window, nodes: CanonicalNodes, *, seed: int, epoch: int) -> None:
        self._nodes = nodes
        self.parameters = order.parameters
        chunks = order.chunks
        self.num_samples = nodes.num_samples
        self.num_canonical_nodes = nodes.num_nodes
        width = chunks // nodes.num_nodes
        self._timeline = Timeline(nodes, width=width, seed=seed, epoch=epoch)
        num_parts = nodes.node_end_part - nodes.node_first_part
        # If all chunks of a node fit into its window, the node needs no window.
        whole = (num_parts <= width) | (chunks >= len(nodes.chunk_first_id) - 1)
        self._windowed = np.flatnonzero(~whole)
        self._whole = [int(node) for node in np.flatnonzero(whole)]
        self._whole_key = {node: key(seed, epoch, "whole", node) for node in self._whole}
        self.span = order.span
        self._cache: dict[tuple[int, range], tuple[NDArray[np.int64], NDArray[np.int64]]] = {}
        self._lanes = np.zeros(0, dtype=np.uint16)

    def narrow(self, positions: int) -> None:
        """Limit spans to about this many positions: spans of 16,384 cost a third more, of 4,096 three times as much."""
        span = -(-positions // self.num_canonical_nodes) * self.num_canonical_nodes
        if span < self.span:
            self.span = span
            self._cache = {}

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample ids at positions ``[start, stop)``; about 100 ns per id, O(span) additional memory."""
        return self.locate(start, stop)[0]

    def locate(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sample ids at positions ``[start, stop)`` and the chunk of each."""
        return self.locate_in(start, stop, range(self.num_canonical_nodes))

    def locate_in(self, start: int, stop: int, nodes: range) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return `locate` for the positions of some consecutive canonical nodes, in the time for these positions."""
        start, stop = as_span(start, stop, self.num_samples)
        filled, end = 0, self._number_in(stop, nodes) - self._number_in(start, nodes)
        ids, chunks = np.empty(end, dtype=np.int64), np.empty(end, dtype=np.int64)
        span = self.span * (1 if len(nodes) * _SPANS_OF_FEW_NODES > self.num_canonical_nodes else _SPANS_OF_FEW_NODES)
        for begin in range(start // span * span, stop, span):
            before = self._number_in(begin, nodes)
            low = self._number_in(max(start, begin), nodes) - before
            high = self._number_in(min(stop, begin + span), nodes) - before
            span_ids, span_chunks = self._span(begin, min(begin + span, self.num_samples), nodes)
            ids[filled : filled + high - low] = span_ids[low:high]
            chunks[filled : filled + high - low] = span_chunks[low:high]
            filled += high - low
        return ids, chunks

    def positions(self, ids: Any) -> NDArray[np.int64]:
        """Return the position of each sample id; O(log num_chunks + window / num_canonical_nodes) per id."""
        array = as_ids(ids, self.num_samples)
        nodes, parts = self._nodes.parts_of(array)
        offsets = np.empty(len(array), dtype=np.int64)
        windowed = np.isin(nodes, self._windowed)
        offsets[windowed] = self._windowed_offsets(nodes[windowed], parts[windowed], array[windowed])
        for node in distinct(nodes[~windowed]):
            in_node = nodes == node
            first = self._nodes.node_first_part[node]
            inside = array[in_node] - self._nodes.part_first_id(nodes[in_node], parts[in_node])
            line = self._part_line(int(node))[parts[in_node] - first] + inside
            offsets[in_node] = unpermute(line, self._node_samples(int(node)), self._whole_key[int(node)])
        return offsets * self.num_canonical_nodes + nodes

    def lanes(self, chunks: NDArray[np.int64]) -> NDArray[np.uint16]:
        """Return the lane of each chunk; see `Timeline.fill_lanes`, called once for each node with a chunk in use."""
        if not len(self._lanes):
            self._lanes = np.full(len(self._nodes.chunk_first_id) - 1, _NO_LANE, dtype=np.uint16)
        lanes = self._lanes[chunks]
        if (unknown := chunks[lanes == _NO_LANE]).size:
            last_ids = self._nodes.chunk_first_id[unknown + 1] - 1
            for node in distinct(self._nodes.parts_of(last_ids)[0]).tolist():
                self._timeline.fill_lanes(self._lanes, node)
            lanes = self._lanes[chunks]
        return lanes

    def _number_in(self, position: int, nodes: range) -> int:
        """Count the positions of some consecutive nodes before a position."""
        rows, node = divmod(position, self.num_canonical_nodes)
        return rows * len(nodes) + min(max(node - nodes.start, 0), len(nodes))

    # ---- spans of positions

    def _span(self, begin: int, end: int, nodes: range) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ids and chunks of a span, from the cache if possible; without a lock, a span may be made twice."""
        span = self._cache.get((begin, nodes))
        if span is None:
            span = self._cache[begin, nodes] = self._make(begin, end, nodes)
            for oldest in list(self._cache)[:-_CACHED_SPANS]:
                self._cache.pop(oldest, None)  # another thread may have just removed it
        return span

    def _make(self, start: int, stop: int, nodes: range) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Make ids and chunks of positions ``[start, stop)``; ``start`` is a multiple of the number of nodes."""
        num_nodes = self.num_canonical_nodes
        begin = start // num_nodes
        counts = np.zeros(num_nodes, dtype=np.int64)  # samples of each node
        counts[nodes.start : nodes.stop] = (stop - start - np.array(nodes) + num_nodes - 1) // num_nodes
        grid = np.empty((2, int(counts.max(initial=0)), len(nodes)), dtype=np.int64)
        self._fill_windowed(grid, begin, counts, nodes.start)
        for node in self._whole:
            if counts[node]:
                whole_span = self._whole_span(node, begin, begin + int(counts[node]))
                grid[:, : counts[node], node - nodes.start] = whole_span
        flat = grid.reshape(2, -1)[:, : int(counts.sum())]
        return flat[0], flat[1]

    def _fill_windowed(self, grid: NDArray[np.int64], begin: int, counts: NDArray[np.int64], first_node: int) -> None:
        rows = self._windowed[counts[self._windowed] > 0]
        if not rows.size:
            return
        together = max(1, _EMITTED // int(counts.max()))
        for some in (rows[i : i + together] for i in range(0, len(rows), together)):
            emitted = self._timeline.span(some, np.full(len(some), begin), begin + counts[some])
            for node, first, end in zip(some, emitted.row_first, emitted.row_first[1:], strict=False):
                grid[0, : counts[node], node - first_node] = emitted.ids[first:end]
                grid[1, : counts[node], node - first_node] = emitted.chunks[first:end]

    def _whole_span(self, node: int, begin: int, end: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Make offsets ``[begin, end)`` of a node with all chunks in its window: a permutation of its samples."""
        samples = self._node_samples(node)
        line = permute(np.arange(begin, end), samples, self._whole_key[node]) if samples else np.zeros(0, np.int64)
        borders = self._part_line(node)
        numbers = np.searchsorted(borders, line, side="right") - 1
        parts = self._nodes.node_first_part[node] + numbers
        ids = self._nodes.part_first_id(np.full(len(line), node), parts) + line - borders[numbers]
        return ids, self._nodes.part_chunk[parts].astype(np.int64)

    # ---- offsets from ids

    def _windowed_offsets(
        self, nodes: NDArray[np.int64], parts: NDArray[np.int64], ids: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Make each slab with one of the samples once, and look the samples up in the slab."""
        timeline = self._timeline
        slabs = timeline.slab_of_ids(nodes, parts, ids)
        node_slabs, which = np.unique(np.stack([nodes, slabs]), axis=1, return_inverse=True)
        which = which.reshape(-1)
        offsets = np.empty(len(ids), dtype=np.int64)
        rows_at_once = max(1, _LEAST_SPAN // timeline.width)  # each row has the chunks of a window
        for begin in range(0, node_slabs.shape[1], rows_at_once):
            rows, slab = node_slabs[0, begin : begin + rows_at_once], node_slabs[1, begin : begin + rows_at_once]
            emitted = timeline.emit(rows, slab, slab + 1)
            before = timeline.delivered(rows, slab) - emitted.row_first[:-1]
            in_rows = np.flatnonzero((which >= begin) & (which < begin + rows_at_once))
            by_id = np.argsort(emitted.ids, kind="stable")
            places = by_id[np.searchsorted(emitted.ids[by_id], ids[in_rows])]
            offsets[in_rows] = places + before[which[in_rows] - begin]
        return offsets

    def _node_samples(self, node: int) -> int:
        return int(self._nodes.node_first_sample[node + 1] - self._nodes.node_first_sample[node])

    def _part_line(self, node: int) -> NDArray[np.int64]:
        """Return the number of samples before each part of a node."""
        first, end = self._nodes.node_first_part[node], self._nodes.node_end_part[node]
        line = np.zeros(int(end - first) + 1, dtype=np.int64)
        np.cumsum(self._nodes.part_samples[first:end], out=line[1:])
        return line
