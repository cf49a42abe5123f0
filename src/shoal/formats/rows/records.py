"""Records: samples with borders of their own, each decoded from its bytes alone, as in most formats.

Such a format finds the borders (`borders_in`) and defines how the bytes of one sample are decoded; `CutRecords`
hands out samples by number and adds positions to errors.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import ShardError
from shoal.formats.compiled_cutting import next_records
from shoal.formats.field_columns import Columns
from shoal.formats.shard_format import Sample, Span
from shoal.hints import SKIP_HINT
from shoal.index.shard_scan import Buffer

_OTHER_FILE = "the shard is damaged, or not the one that was indexed: copy it again, or index it again"


class BadRecordError(ValueError):
    """Bytes that are not a valid sample; ``byte`` is the offset of the defect in these bytes, ``hint`` the remedy.

    Examples
    --------
    >>> raise shoal.formats.BadRecordError("the record begins with a length of 7 bytes, but has 3 bytes", byte=4)
    Traceback (most recent call last):
    ...
    shoal.formats.rows.records.BadRecordError: the record begins with a length of 7 bytes, but has 3 bytes
    """

    def __init__(self, what: str, *, byte: int = 0, hint: str = _OTHER_FILE) -> None:
        super().__init__(what)
        self.what, self.byte, self.hint = what, byte, hint

    def placed(self, shard: str, first_byte: int) -> ShardError:
        """Return the `ShardError` for bytes that begin at ``first_byte`` of the shard."""
        return ShardError(self.what, shard=shard, byte=first_byte + self.byte, hint=f"{self.hint}; {SKIP_HINT}")


DecodeRecord = Callable[[bytes], Sample]
"""A function that decodes the bytes of one sample, which owns its data; raises `BadRecordError` for invalid bytes."""


class Cut(NamedTuple):
    """Two faster ways to decode samples: ``many`` is the ``cut`` of a `Piece`.

    ``one`` decodes the sample in ``data[start:end]`` where it lies, or returns None for an unusual or invalid sample.
    """

    one: Callable[[Buffer, int, int], Sample | None] | None
    many: CutMany


class Piece(NamedTuple):
    """The bytes of some samples and their borders, for ``cut``, which cuts samples out of several pieces in one call.

    ``cut(held, ids, units, last, at, stop)`` returns the next samples of ``[at, stop)``: sample ``i`` has the id
    ``ids[i]`` and lies in ``held[units[i]]``, a tuple that begins with its piece and the id of the piece's first
    sample. The list ends after a sample where ``last`` is True (None: nowhere), and before a sample whose piece is
    missing or has another ``cut``, or that is unusual or invalid.
    """

    cut: CutMany
    data: Buffer
    starts: Sequence[int]


CutMany = Callable[
    [Mapping[int, tuple[Any, ...]], list[int], list[int], list[bool] | None, int, int],
    list[Sample],
]


def cut_together(decode: DecodeRecord, decode_all: Callable[[list[bytes]], list[Sample]] | None = None) -> Cut | None:
    """Return the `Cut` that passes the bytes of many samples to ``decode_all``; None without the compiled module.

    ``decode_all`` returns what ``decode`` returns for each sample; after its error, ``decode`` decodes the samples
    before the first invalid one. Call this once for a format: only pieces with the same `Cut` are cut together.
    """
    if next_records is None:
        return None

    def many(*chosen: Any) -> list[Sample]:
        records: list[bytes] = next_records(*chosen)
        with suppress(Exception):  # raised again at its sample
            return [*map(decode, records)] if decode_all is None else decode_all(records)
        samples: list[Sample] = []
        with suppress(Exception):
            samples.extend(map(decode, records))  # `extend` keeps what came before the error
        return samples

    return Cut(None, many)


def borders_in(
    buffer: Buffer, span: Span, walk: Callable[[], Sequence[int]], *, what: str = "samples"
) -> Sequence[int]:
    r"""Return the offsets where a span's samples begin and the last one ends: from the index, else from ``walk``.

    Raises `ShardError` if there are not ``span.num_samples`` samples, or an offset lies outside the buffer.

    Examples
    --------
    >>> span = shoal.formats.Span("a.txt", first_byte=0, num_samples=2)  # without sample_starts
    >>> shoal.formats.borders_in(b"one\ntwo\n", span, lambda: [0, 4, 8])
    [0, 4, 8]
    """
    is_known = span.sample_starts is not None
    starts = walk() if span.sample_starts is None else span.sample_starts
    whole = starts[-1] <= len(buffer) if is_known else starts[-1] == len(buffer)
    if len(starts) != span.num_samples + 1 or not whole:
        scanned = f"{len(starts) - 1} are found in {starts[-1]} bytes"
        msg = f"the index says {span.num_samples} {what} in these {len(buffer)} bytes, but {scanned}"
        raise ShardError(msg, shard=span.shard, byte=span.first_byte, hint=_OTHER_FILE)
    return starts


def compact(borders: NDArray[np.int64]) -> Sequence[int]:
    """Pack numbers into a Python sequence with 4 bytes each, or 8 from 4 GiB on; a list takes 40."""
    is_small = not len(borders) or int(borders[-1]) < 1 << 32
    numbers = array("I" if is_small else "q")
    stored = borders.astype(np.uint32 if is_small else np.int64)
    numbers.frombytes(stored.data.cast("B") if len(stored) else b"")
    return numbers


class CutRecords:
    r"""Some consecutive samples, handed out by number; each is decoded on request.

    ``starts`` are their borders in ``buffer``, shape (len + 1,); ``crcs`` returns the layout CRCs, and ``columns``, if
    given, the columns of `shoal.formats.shard_format.ColumnRecords`. ``cut``, if given, decodes samples faster.

    Examples
    --------
    >>> data, span = b"one\ntwo\n", shoal.formats.Span("a.txt", first_byte=0, num_samples=2)
    >>> parts = {"decode": lambda line: {"text": line.decode().rstrip()}, "crcs": lambda: np.zeros(2, dtype=np.uint32)}
    >>> shoal.formats.CutRecords(data, [0, 4, 8], span, **parts).sample(1)
    {'text': 'two'}
    """

    __slots__ = ("_columns", "_crcs", "_decode", "_first_byte", "_many", "_one", "_shard", "_view", "starts")

    def __init__(
        self,
        buffer: Buffer,
        starts: Sequence[int],
        span: Span,
        *,
        decode: DecodeRecord,
        crcs: Callable[[], NDArray[np.uint32]],
        columns: Callable[[], Columns | None] | None = None,
        cut: Cut | None = None,
    ) -> None:
        self._view, self.starts = buffer if type(buffer) is bytes else memoryview(buffer), starts
        self._shard, self._first_byte = span.shard, span.first_byte
        self._decode, self._crcs, self._columns = decode, crcs, columns
        self._one = None if cut is None else cut.one
        self._many = None if cut is None else cut.many

    def __len__(self) -> int:
        return len(self.starts) - 1

    def layout_crcs(self) -> NDArray[np.uint32]:
        """Return the CRCs that the scan of the format gives for these samples; shape (len,)."""
        return self._crcs()

    def columns(self) -> Columns | None:
        """Return the fields of all samples as arrays, if the format provides them."""
        return None if self._columns is None else self._columns()

    @property
    def piece(self) -> Piece | None:
        """The bytes and borders of the samples, if samples can be cut together with those of other records."""
        return None if self._many is None else Piece(self._many, self._view, self.starts)

    def sample(self, number: int) -> Sample:
        """Decode sample ``number``; O(its bytes).

        Raises `ShardError` if the bytes are invalid; the error has the position in the shard.
        """
        start, end = self.starts[number], self.starts[number + 1]
        if self._one is not None and (sample := self._one(self._view, start, end)) is not None:
            return sample
        try:
            return self._decode(bytes(self._view[start:end]))
        except BadRecordError as error:
            raise error.placed(self._shard, self._first_byte + int(start)) from None
