"""The stage that decodes bytes by the suffix of their field's name."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from operator import itemgetter, setitem
from typing import Any

from shoal.arguments import as_flag, with_type
from shoal.errors import ShoalError, UsageError
from shoal.formats.decoding.array_decoder import ArrayDecoder
from shoal.formats.decoding.crops import Crop, PartOf
from shoal.formats.decoding.decoders import Decoder, decoder_for, decoders_of, may_resize
from shoal.formats.decoding.hf_features import feature_decoders
from shoal.formats.decoding.images import IMAGE_SPECS, exact_size
from shoal.hints import did_you_mean, pointer_in
from shoal.pipeline.batch_rows import BatchRows, NextRows
from shoal.pipeline.stages.chosen_fields import fields_of
from shoal.pipeline.stages.concurrent_functions import is_coroutine_function
from shoal.pipeline.stages.cropping import Cropping
from shoal.pipeline.stages.running import FieldError
from shoal.pipeline.stages.stage import Stage

FEATURES = ("hf", "hf-names")
"""Decoders that follow the column features of Hugging Face."""

NO_DAMAGE = (MemoryError, ImportError, NameError, ConnectionError, TimeoutError, ShoalError)
"""Errors of a decoder that do not show damage: a lack of memory, a missing library, a bug in the decoder, a failed
connection, and shoal's own errors."""

_MOST_NAMES = 1 << 10  # lists of fields whose decoders are cached


def _checked_spec(spec: Any) -> Any:
    is_mapping = isinstance(spec, Mapping) and all(isinstance(name, str) for name in spec)
    if isinstance(spec, str):
        return spec
    if is_mapping and all(map(callable, spec.values())):
        if any(map(is_coroutine_function, spec.values())):
            msg = f"decode() calls a function for one value after another, but got a coroutine function: {spec}"
            raise UsageError(msg, hint="map() runs coroutine functions of samples, many at a time")
        return spec
    msg = f"decode() takes separate decoder names, or mappings from suffix to function; got {with_type(spec)}"
    raise UsageError(msg, hint='decode("pil", "audio"), or decode({"m4a": function})')


def _cropping(specs: Sequence[Any], size: tuple[int, int] | None, crop: Any) -> Cropping | None:
    """Return the crops of a stage; raises `UsageError` if nothing can be cropped."""
    if crop is None:
        return None
    rule = Crop.of(crop)
    if size is None or not any(isinstance(spec, str) and spec in IMAGE_SPECS for spec in specs):
        msg = f"decode(crop={crop!r}) takes a part of each image, and resizes it to a size"
        raise UsageError(msg, hint='decode("rgb8", size=224, crop="random")')
    return Cropping(rule, size)


def _cropped(decoder: Decoder, parts: Sequence[PartOf]) -> Decoder:
    """Return the decoder of the next values with a part for each; unchanged unless it decodes images."""
    return decoder.cropped(parts) if isinstance(decoder, ArrayDecoder) else decoder


class Decode(Stage):
    """A stage that decodes bytes by the last part of each field's name ("seg.png" is a png).

    ``specs`` are names of decoders ("pil", "rgb8", "audio", ...) or mappings from suffix to function; later specs win.
    Values that are not bytes, and fields of unknown suffix, stay unchanged. ``features`` are Hugging Face's column
    features for the specs "hf" and "hf-names", which decode these fields by full name. ``size`` is the height and width
    of all images, or one number for both; ``crop`` is the argument of `Dataset.decode`.
    """

    def __init__(
        self,
        specs: Sequence[str | Mapping[str, Decoder]],
        *,
        allow_pickle: bool = False,
        features: Mapping[str, Any] | None = None,
        size: Any = None,
        crop: Any = None,
    ) -> None:
        self._specs, self._features = tuple(map(_checked_spec, specs)), features
        self._allow_pickle = allow_pickle = as_flag("decode(allow_pickle=)", allow_pickle)
        self._size = None if size is None else exact_size(size)
        if size is not None and not any(isinstance(spec, str) and may_resize(spec) for spec in specs):
            msg = f"decode(size={size!r}) resizes images, but no decoder of images is named"
            meant = "".join(did_you_mean(spec, IMAGE_SPECS) for spec in specs)
            hint = 'decode("rgb8", size=...) gives arrays, and decode("pil", size=...) images'
            raise UsageError(msg, hint=meant + hint)
        self._cropping = _cropping(specs, self._size, crop)
        self._crop = crop
        self._decoders: dict[str, Decoder] = decoders_of(None, allow_pickle=allow_pickle)
        self._functions: dict[str, Decoder] = {}
        self._of_features: dict[str, Callable[[Any], Any]] = {}
        for spec in specs:
            if isinstance(spec, str) and spec in FEATURES:
                self._of_features = feature_decoders(features or {}, names=spec == "hf-names")
            elif isinstance(spec, str):
                named = decoders_of(spec, size=self._size)
                self._decoders |= named
                self._functions = {suffix: call for suffix, call in self._functions.items() if suffix not in named}
            else:
                self._decoders |= spec
                self._functions |= spec
        self._by_names: dict[tuple[Any, ...], tuple[tuple[str, Decoder], ...]] = {}
        self._rows: NextRows | None = None

    @property
    def has_functions(self) -> bool:
        """True if this stage calls functions of the user."""
        return any(not isinstance(spec, str) for spec in self._specs)

    @property
    def has_media(self) -> bool:
        """True if this stage decodes images, audio or video, and thus releases the interpreter's lock."""
        return any(isinstance(spec, str) for spec in self._specs)

    def filling(self, rows: NextRows) -> Decode:
        """Return this stage with memory for arrays."""
        return self._with(_rows=rows)

    def in_epoch(self, epoch: int) -> Decode:
        """Return this stage for one epoch."""
        crops = self._cropping
        return self if crops is None else self._with(_cropping=replace(crops, epoch=epoch))

    def seeded(self, seed: int, numbers: Iterator[int]) -> Decode:
        """Return this stage with the seed of random crops."""
        crops = self._cropping
        return self if crops is None else self._with(_cropping=replace(crops, seed=seed, number=next(numbers)))

    def moved(self, first_id: int) -> Decode:
        """Return this stage with ids that are larger by ``first_id``."""
        crops = self._cropping
        return self if crops is None else self._with(_cropping=replace(crops, first_id=crops.first_id + first_id))

    def _with(self, **attributes: Any) -> Decode:
        changed = object.__new__(Decode)
        changed.__dict__ = self.__dict__ | attributes
        return changed

    def blames_data(self, error: Exception) -> bool:
        """Return True unless the error is among `NO_DAMAGE`."""
        return not isinstance(error, NO_DAMAGE)

    def __repr__(self) -> str:
        arguments = [*map(repr, self._specs), *([] if self._size is None else [f"size={self._size}"])]
        arguments += [] if self._crop is None else [f"crop={self._crop!r}"]
        return f"decode({', '.join(arguments)})"

    def __reduce__(self) -> tuple[object, ...]:
        make = partial(
            Decode, allow_pickle=self._allow_pickle, features=self._features, size=self._size, crop=self._crop
        )
        return make, (self._specs,), {"_cropping": self._cropping}

    def __call__(self, sample: Any, sample_id: int) -> Any:
        """Return the sample with decoded fields."""
        fields = fields_of(sample, "decode()")
        names, decoded, rows, crops = tuple(fields), dict(fields), self._rows, self._cropping
        for name, decoder in self._by_names.get(names) or self._decoders_of(names):
            value = decoded[name]
            try:
                if type(value) is bytes:
                    used = decoder if crops is None else _cropped(decoder, [crops.part_of(sample_id)])
                    decoded[name] = used(value) if rows is None else rows.decoded(name, used, [value])[0]
                elif name in self._of_features:
                    decoded[name] = None if value is None else decoder(value)
                elif isinstance(value, bytes | memoryview):
                    used = decoder if crops is None else _cropped(decoder, [crops.part_of(sample_id)])
                    decoded[name] = used(bytes(value))
            except Exception as error:
                size = f" ({len(value)} bytes)" if isinstance(value, bytes | memoryview) else ""
                label = f"the field {name!r}{size}"
                if not isinstance(error, NO_DAMAGE) and self._is_own(name):
                    stored = value.get("bytes") if isinstance(value, dict) else value
                    if pointer := pointer_in(bytes(stored)) if isinstance(stored, bytes | memoryview) else None:
                        raise FieldError(label, f"{pointer[1]}, and write the shard again") from ValueError(pointer[0])
                    raise FieldError(label, 'decode({"suffix": function}) decodes fields otherwise') from error
                error.add_note(f"shoal: decoding {label}")
                raise
        return decoded

    def on_columns(self, columns: Any, sample_ids: Any) -> Any:  # noqa: ARG002
        """Return the columns with decoded fields; an error does not name its sample, nor its field."""
        if self._of_features:
            raise NotImplementedError("features decode values that are not bytes")
        fields = fields_of(columns, "decode()")
        names, decoded = tuple(fields), dict(fields)
        for name, decoder in self._by_names.get(names) or self._decoders_of(names):
            if not isinstance(values := decoded[name], list):
                continue
            if self._rows is not None and set(map(type, values)) == {bytes}:
                decoded[name] = self._rows.decoded(name, decoder, values)
            else:
                decoded[name] = [
                    decoder(value if type(value) is bytes else bytes(value))
                    if isinstance(value, bytes | memoryview)
                    else value
                    for value in values
                ]
        return decoded

    def on_run(self, samples: Sequence[Any], sample_ids: Sequence[int]) -> list[Any]:
        """Decode field by field, which takes less of the interpreter's time, if the samples have the same fields."""
        rows, crops, apart = self._rows, self._cropping, partial(map, self, samples, sample_ids)
        # Loops in C: between two images the code of the interpreter leaves the cache of the processor.
        if set(map(type, samples)) != {dict} or len(all_names := set(map(tuple, samples))) > 1:
            return list(apart())
        (names,) = all_names
        decoded: list[dict[Any, Any]] = list(map(dict, samples))
        for name, decoder in self._by_names.get(names) or self._decoders_of(names):
            data = list(map(itemgetter(name), samples))
            if set(map(type, data)) != {bytes}:
                return list(apart())
            if crops is not None:
                decoder = _cropped(decoder, list(map(crops.part_of, sample_ids)))  # noqa: PLW2901
                rows = rows or BatchRows(0).next_from(0)
            values = map(decoder, data) if rows is None else rows.decoded(name, decoder, data)
            deque(map(setitem, decoded, repeat(name), values), maxlen=0)
        return decoded

    def _decoders_of(self, names: tuple[Any, ...]) -> tuple[tuple[str, Decoder], ...]:
        """Return the decoded fields of samples with these fields, each with its decoder; cached."""
        known = (name for name in names if isinstance(name, str))
        pairs = ((name, self._of_features.get(name) or decoder_for(name, self._decoders)) for name in known)
        decoders = tuple((name, decoder) for name, decoder in pairs if decoder is not None)
        if len(self._by_names) < _MOST_NAMES:
            self._by_names[names] = decoders
        return decoders

    def _is_own(self, name: str) -> bool:
        """True if no user function decodes this field."""
        return name in self._of_features or decoder_for(name, self._functions) is None
