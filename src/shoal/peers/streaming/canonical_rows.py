"""Positions of an epoch that alternates over canonical nodes.

A canonical node has a row of the epoch, and the positions go down the columns: position ``q`` is sample ``q // nodes``
of row ``q % nodes``, as long as all rows have a sample. Streaming calls this a partition. Streaming hands position
``q`` to physical node ``q % physical_nodes``, and on the node to rank ``(q // physical_nodes) % ranks_per_node``. The
rank divides its positions into batches and among workers. So a global batch is a range of positions, for any number of
nodes, ranks and workers.

References
----------
``streaming/base/partition/orig.py`` and ``relaxed.py`` of mosaicml-streaming 0.13.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of sample numbers, read down the columns: whole columns first, then a listed tail.

    Sample ``i`` of row ``k`` has number ``starts[k] + i``. ``tail`` has the numbers after the first ``width`` columns.
    """

    starts: NDArray[np.int64]
    width: int
    tail: NDArray[np.int64]

    @staticmethod
    def once(num_samples: int, num_rows: int) -> Rows:
        """Return rows with each sample once; row ``k`` begins with number ``k * num_samples // num_rows``.

        >>> rows = Rows.once(7, 3)
        >>> rows.numbers(0, 7).tolist()
        [0, 2, 4, 1, 3, 5, 6]
        """
        borders = part_starts(num_samples, num_rows)
        width = num_samples // num_rows
        longer = np.flatnonzero(np.diff(borders) > width)
        return Rows(borders[:-1], width, borders[longer] + width)

    @staticmethod
    def padded(num_samples: int, num_rows: int, *, num_nodes: int, ranks_per_node: int) -> Rows:
        """Return rows with the repeats of Streaming, so that each rank has equally many samples.

        A shorter row repeats its last sample. If several nodes share a row, repeats make its length divisible by the
        nodes; if several ranks share a node, repeats make the samples of the node divisible by the ranks.

        Raises `UsageError` for too few samples, where Streaming also fails.
        """
        length = -(-num_samples // num_rows)
        ratio = num_nodes // num_rows if num_rows < num_nodes else 1
        padding = -length % ratio
        if num_samples > num_rows or (num_samples == num_rows and num_rows >= num_nodes):
            borders = part_starts(num_samples, num_rows)
            starts, width = borders[:-1], length - 1
            last = starts + width - (np.diff(borders) < length)
            columns = _filling(length, padding, ratio)
            tail = np.concatenate([last, (starts + columns[:, None]).reshape(-1)])
        else:  # fewer samples than rows: samples are repeated from the first sample on, row after row
            repeated = np.arange(num_rows * (length + padding)) % max(1, num_samples)
            starts, width, tail = np.zeros(num_rows, dtype=np.int64), 0, repeated.reshape(num_rows, -1).T.reshape(-1)
        rows = Rows(starts, width, tail)
        return rows.extended(_rank_padding(len(rows) // num_nodes, ranks_per_node), num_nodes)

    def extended(self, sources: NDArray[np.int64], num_nodes: int) -> Rows:
        """Return rows in which the share of every node ends with a repeat of its samples at these places."""
        if not len(sources):
            return self
        positions = (sources[:, None] * num_nodes + np.arange(num_nodes)).reshape(-1)
        return Rows(self.starts, self.width, np.concatenate([self.tail, self._numbers_at(positions)]))

    def __len__(self) -> int:
        return len(self.starts) * self.width + len(self.tail)

    def numbers(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the sample numbers at positions ``[start, stop)``; O(stop - start + num_rows)."""
        num_rows = len(self.starts)
        whole = num_rows * self.width
        end = min(stop, whole)
        tail = self.tail[max(0, start - whole) : max(0, stop - whole)]
        if start >= end:
            return tail
        first = start // num_rows
        columns = np.arange(first, -(-end // num_rows))
        numbers = (columns[:, None] + self.starts).reshape(-1)[start - first * num_rows : end - first * num_rows]
        return np.concatenate([numbers, tail]) if len(tail) else numbers

    def _numbers_at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        columns, rows = np.divmod(positions, len(self.starts))
        numbers: NDArray[np.int64] = self.starts[rows] + columns
        later = columns >= self.width
        numbers[later] = self.tail[positions[later] - len(self.starts) * self.width]
        return numbers


def _filling(length: int, padding: int, ratio: int) -> NDArray[np.int64]:
    """Return the columns for filling up rows of ``length`` samples if ``ratio`` nodes share a row."""
    stop = length - ratio + 1
    columns = np.arange(max(0, stop - padding), max(0, stop))
    if padding and len(columns) not in (1, padding):
        msg = f"{length} samples of a canonical node cannot be filled up for {ratio} physical nodes, as in Streaming"
        raise UsageError(msg, hint="fewer nodes, or more samples")
    return np.broadcast_to(columns, padding) if padding else columns[:0]


def _rank_padding(num_samples: int, num_ranks: int) -> NDArray[np.int64]:
    """Return the positions of a node's samples to repeat, so that all ranks of the node get equally many samples."""
    missing = -num_samples % num_ranks
    begin = num_samples - num_ranks - missing + 1
    return begin + np.arange(missing) if begin >= 0 else np.arange(missing) % max(1, num_samples)


def rank_of(positions: NDArray[Any], num_nodes: int, ranks_per_node: int) -> NDArray[Any]:
    """Return the rank of each position, counted over all nodes."""
    rest, node = np.divmod(positions, num_nodes)
    ranks: NDArray[Any] = node * ranks_per_node + rest % ranks_per_node
    return ranks


def part_starts(num_samples: int, num_parts: int) -> NDArray[np.int64]:
    """Return the first sample of each part, then the number of samples; shape (num_parts + 1,)."""
    return np.array([num_samples * part // num_parts for part in range(num_parts + 1)], dtype=np.int64)
