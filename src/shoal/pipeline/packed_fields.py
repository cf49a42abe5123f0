"""Fields that run along the tokens of a document, such as labels and masks: their values, types and padding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.hints import did_you_mean
from shoal.pipeline.mask_totals import MaskCount

LABELS, LOSS_MASK = "labels", "loss_mask"
IGNORED_LABEL = -100
"""The label without a loss, ``ignore_index`` of torch's cross entropy."""


class PackedDocument(NamedTuple):
    """The values of a document in each packed field, and its number of tokens, a separator included.

    An array has a value for each token, without a separator; an array of shape () is the value of all tokens.
    """

    columns: tuple[NDArray[Any], ...]
    num_tokens: int


class PackedPieces(NamedTuple):
    """Places of pieces of documents in sequences laid end to end, arrays of shape (num_pieces,).

    ``begins`` are the places of first tokens, ``starts`` and ``stops`` the tokens of each piece in its document.
    ``separators`` are the places of separators.
    """

    begins: NDArray[np.int64]
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    separators: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PackedField:
    """A field with a value for each token.

    ``padding`` fills sequences up. ``separator`` is the value after each document; None for the padding. A field
    ``is_optional`` if documents may lack it: then its value is 1.
    """

    name: str
    padding: float = 0
    separator: float | None = None
    is_optional: bool = False

    def check_in(self, document: Any, sample_id: int, argument: str) -> None:
        """Raise `UsageError` if a document lacks the field and may not. ``argument`` named the field."""
        if not self.is_optional or not isinstance(document, Mapping):
            check_field("pack_sequences", argument, self.name, document, sample_id)

    def type_of(self, array: NDArray[Any], values: Any) -> np.dtype[Any]:
        """Return the type for values of a document that numpy made an array of."""
        # numpy's type for an empty list is float64
        is_list = not array.size and isinstance(values, list | tuple)
        dtype = np.asarray(self.padding).dtype if is_list else array.dtype
        is_mask = self.name == LOSS_MASK and dtype.kind in "iuf" and bool(((array == 0) | (array == 1)).all())
        return np.dtype(bool) if is_mask else dtype

    def check_values(self, array: NDArray[Any], tokens: NDArray[Any], key: str, sample_id: int) -> None:
        """Raise `UsageError` unless an array has numbers, one for each token or one for the document."""
        where = f"the field {self.name!r} of the sample with id {sample_id}"
        if array.dtype.kind not in ("b" if self.name == LOSS_MASK else "biuf"):
            msg = f"{where} is {array.dtype} of shape {array.shape}"
            takes = "0 and 1; weights go into another field" if self.name == LOSS_MASK else "numbers"
            hint = f"pack_sequences(fields=) takes {takes}, for each token or for a whole document; if a source lacks "
            raise UsageError(msg, hint=f"{hint}the field, mix(missing={{{self.name!r}: ...}}) gives a number")
        if array.ndim and len(array) != len(tokens):
            msg = f"{where} has {len(array)} values, but the document has {len(tokens)} tokens in {key!r}"
            raise UsageError(msg, hint="a packed field has a value for each token, or one number for the document")

    def row_shape(self, columns: Sequence[NDArray[Any]]) -> tuple[int, ...]:
        """Return the shape of a token's value, from the values of some documents."""
        # The rows of an empty list may have any shape.
        shapes = {column.shape[1:] for column in columns if column.ndim > 1 or (column.ndim and column.size)}
        if len(shapes) > 1:
            msg = f"the documents of a batch have arrays {self.name!r} with rows of the shapes {sorted(shapes)}"
            raise UsageError(msg, hint="pack_sequences() packs along the first axis; the other axes must be equal")
        return shapes.pop() if shapes else ()

    def fill(self, places: NDArray[Any], columns: Sequence[NDArray[Any]], pieces: PackedPieces) -> None:
        """Write values to the places of sequences laid end to end, which hold the padding.

        ``columns`` are the values of each piece's document.
        """
        spans = zip(columns, pieces.begins.tolist(), pieces.starts.tolist(), pieces.stops.tolist(), strict=True)
        for column, begin, start, stop in spans:
            if not column.ndim:
                places[begin : begin + stop - start] = column
            elif column.size:
                part = column[start:stop]
                places[begin : begin + len(part)] = part
        places[pieces.separators] = self.padding if self.separator is None else self.separator

    def mask_count(self, columns: Sequence[NDArray[Any]], pieces: PackedPieces) -> MaskCount | None:
        """Count the tokens of pieces, and those with a loss; None if the field is no mask.

        Masks are booleans and fields with "mask" in their name; labels are a mask of the labels that are not -100.
        Values of whole documents are not counted: nobody computed them from tokens.
        """
        arrays = [
            column[start:stop]
            for column, start, stop in zip(columns, pieces.starts.tolist(), pieces.stops.tolist(), strict=True)
            if column.ndim == 1
        ]
        is_mask = "mask" in self.name or any(array.dtype.kind == "b" for array in arrays)
        if not arrays or not (is_mask or self.padding == IGNORED_LABEL) or self.name == "attention_mask":
            return None
        ignored = 0 if is_mask else IGNORED_LABEL
        num_trained = sum(int(np.count_nonzero(array if is_mask else array != ignored)) for array in arrays)
        return MaskCount(sum(map(len, arrays)), num_trained, is_mask)

    def common_type(self, columns: Sequence[NDArray[Any]]) -> np.dtype[Any]:
        """Return the type of arrays; numbers of whole documents and the padding widen the type only if needed."""
        dtypes = {column.dtype for column in columns if column.ndim}
        numbers = [column for column in columns if not column.ndim]
        dtypes = dtypes | {np.min_scalar_type(number) for number in numbers} if dtypes else {n.dtype for n in numbers}
        if not columns:
            dtypes = {np.dtype(np.int32) if isinstance(self.padding, int) else np.asarray(self.padding).dtype}
        if self.separator is not None:
            dtypes.add(np.min_scalar_type(self.separator))
        return token_type(dtypes, self.padding)


def check_field(verb: str, argument: str, name: str, document: Any, sample_id: int) -> None:
    """Raise `UsageError`, with the document's fields, if a document lacks a field that an argument names."""
    if isinstance(document, Mapping) and name in document:
        return
    shown = f"[{name!r}]" if argument == "fields" else repr(name)
    msg = f"{verb}({argument}={shown}): the sample with id {sample_id} has no such field; "
    if not isinstance(document, Mapping):
        msg += f"it is a {type(document).__name__}, not a dict of fields"
        raise UsageError(msg, hint=f"put {verb}() before to_tuple(), or before map() that makes something else")
    msg += f"it has {', '.join(map(repr, document)) or 'none'}"
    hint = "key= names the field with the tokens; tokenize() makes tokens from text"
    if argument == "fields":
        hint = f"each document needs the field; mix(missing={{{name!r}: ...}}) gives a number to sources without it"
    raise UsageError(msg, hint=did_you_mean(name, document) + hint)


def token_type(dtypes: Iterable[np.dtype[Any]], padding: float = 0) -> np.dtype[Any]:
    """Return a type for values of these types and the padding.

    >>> [str(token_type(map(np.dtype, names), -100)) for names in (["uint16"], ["uint64", "int8"], ["float32"])]
    ['int32', 'int64', 'float32']
    """
    token_dtypes = set(dtypes)
    dtype = np.result_type(*token_dtypes)
    if dtype.kind in "biu" and padding != (padding // 1):  # nan, too
        raise UsageError(f"padding={padding} is not an integer, but the values are of {dtype}", hint="padding=0")
    limits = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max) if dtype.kind in "iu" else None
    if limits is not None and not limits[0] <= padding <= limits[1]:
        dtype = np.result_type(dtype, np.min_scalar_type(padding))
    # numpy's type for uint64 and signed integers is float64, and no token has a number of 2**63 or more
    is_rounded = dtype.kind == "f" and all(token_dtype.kind in "biu" for token_dtype in token_dtypes)
    return np.dtype(np.int64) if is_rounded else dtype
