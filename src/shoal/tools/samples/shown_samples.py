"""Samples to show: their fields, places, keys and classes, and lines of text about them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from shoal.errors import NoSampleError, ShardError, UsageError
from shoal.indexing.opened_dataset import OpenedDataset
from shoal.stream.choosing.index_columns import class_names
from shoal.stream.choosing.map_view import MapView
from shoal.tools.samples.preview import preview, printable, size_of

KEY = "__key__"
SOURCE_FIELD = "__source__"
_CLASS_FIELDS = ("cls", "label")
_LEAST_PREVIEW_COLUMNS = 20


@dataclass(frozen=True, slots=True)
class ShownSample:
    """A sample with its place.

    ``shard`` is "" without a place; ``error`` is the damage of a sample that cannot be read, which has no fields.
    """

    sample_id: int
    shard: str
    first_byte: int
    end_byte: int
    fields: Mapping[str, Any] = field(repr=False)
    key: str | None = None
    class_name: str = ""
    source: str = ""
    error: str = ""

    @property
    def place(self) -> str:
        """The shard and the bytes of the sample, or of its extent."""
        return f"{printable(self.shard)} [{self.first_byte}, {self.end_byte})"

    @property
    def heading(self) -> str:
        """Id, key, class and place in a line."""
        key = "" if self.key is None else f"  {printable(self.key)}"
        name = f"  ({printable(self.class_name)})" if self.class_name else ""
        source = f"  of {printable(self.source)}" if self.source else ""
        return f"{self.sample_id}{key}{name}{source}" + (f"  in {self.place}" if self.shard else "")

    def lines(self, *, columns: int) -> list[str]:
        """Return the heading, and a line for each field, ``columns`` letters wide."""
        if self.error:
            return [self.heading, f"  {printable(self.error)}"]
        return [self.heading, *_field_lines(self.fields, columns)]


class ShownSamples:
    """The samples of a view by id, ready to show; ``opened`` has their places and the names of their classes."""

    def __init__(self, view: MapView, opened: OpenedDataset) -> None:
        self._view, self._opened = view, opened
        names = [name for name in opened.indexes if name]
        self._names = dict(zip((id(part) for part in opened.parts), names, strict=False))
        self._classes: dict[tuple[int, str], Sequence[str]] = {}

    def read(self, sample_id: int) -> ShownSample:
        """Read a sample. Raises `NoSampleError` if a filter drops the sample, and `ShardError` if it is damaged."""
        value = self._view[sample_id]
        fields, key = fields_and_key(value)
        name = next(filter(None, (self._class_name(sample_id, each, fields) for each in _CLASS_FIELDS)), "")
        if str(fields.get(SOURCE_FIELD)) == self._source_of(sample_id):  # the heading has the source
            del fields[SOURCE_FIELD]
        return self._shown(sample_id, fields, key=key, class_name=name)

    def damaged(self, sample_id: int, error: ShardError) -> ShownSample:
        """Return a sample that could not be read."""
        return self._shown(sample_id, {}, error=f"{type(error).__name__}: {error.message}")

    def first(self, sample_ids: Iterable[int], num_samples: int) -> Iterator[ShownSample]:
        """Yield the first samples that no filter drops; damaged samples with their error."""
        num_left = num_samples
        for sample_id in sample_ids:
            if not num_left:
                return
            try:
                shown = self.read(sample_id)
            except NoSampleError:
                continue
            except ShardError as error:
                shown = self.damaged(sample_id, error)
            num_left -= 1
            yield shown

    def _shown(self, sample_id: int, fields: Mapping[str, Any], **more: Any) -> ShownSample:
        place = self._opened.index.place(sample_id)
        return ShownSample(sample_id, *place, fields=fields, source=self._source_of(sample_id), **more)

    def _source_of(self, sample_id: int) -> str:
        """Return the name of the source of a mixture; "" for a single dataset."""
        return self._names.get(id(self._opened.part_of(sample_id)[0]), "")

    def _class_name(self, sample_id: int, name: str, fields: Mapping[str, Any]) -> str:
        """Return the name of the class in a field; "" without a name."""
        value = fields.get(name)
        if isinstance(value, bytes | str) and value.isdigit():
            value = int(value)
        if not hasattr(value, "__index__") or getattr(value, "shape", ()) != ():
            return ""
        part, _ = self._opened.part_of(sample_id)
        known = self._classes.get((id(part), name))
        if known is None:
            try:
                known = class_names(part, name)
            except UsageError:  # the numbers have no names
                known = ()
            self._classes[id(part), name] = known
        number = int(value)  # type: ignore[arg-type]  # it is an index
        return str(known[number]) if 0 <= number < len(known) else ""


def fields_and_key(value: Any) -> tuple[dict[str, Any], str | None]:
    """Return the fields of a sample by name, and its key; None without a key.

    Values of a tuple are named by number, and any other value is the field "sample".
    """
    fields = _fields_of(value)
    key = fields.pop(KEY, None)
    key = key.decode("utf-8", "replace") if isinstance(key, bytes) else key
    return fields, None if key is None else str(key)


def _fields_of(value: Any) -> dict[str, Any]:
    if isinstance(value, Mapping):
        return {str(name): field for name, field in value.items()}
    if isinstance(value, tuple | list):
        return {str(number): field for number, field in enumerate(value)}
    return {"sample": value}


def _field_lines(fields: Mapping[str, Any], columns: int) -> list[str]:
    names = [printable(name) for name in fields]
    sizes = [size_of(value) for value in fields.values()]
    name_width = max(map(len, names), default=0)
    size_width = max(map(len, sizes), default=0)
    columns = max(_LEAST_PREVIEW_COLUMNS, columns - name_width - size_width - 7)
    texts = [preview(name, value, columns=columns) for name, value in fields.items()]
    return [
        f"  {name:<{name_width}}  {size:>{size_width}}  {text}".rstrip()
        for name, size, text in zip(names, sizes, texts, strict=True)
    ]
