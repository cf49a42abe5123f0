"""Stages of a sample between its bytes and its batch: each is a small function of one sample.

A stage takes the sample and its id and returns the new sample, or `DROPPED`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shoal.arguments import as_flag, with_type
from shoal.errors import ShardError, ShoalError, UsageError
from shoal.formats.decoding.decoders import Decoder, decoder_for, decoders_of
from shoal.formats.decoding.hf_features import feature_decoders
from shoal.formats.decoding.images import IMAGE_SPECS, exact_size
from shoal.hints import SKIP_HINT, did_you_mean, pointer_in
from shoal.index.table import SampleIndex
from shoal.pipeline.chosen_fields import fields_of
from shoal.reading.checks.salvage import Damaged

FEATURES = ("hf", "hf-names")
"""Decoders that follow the column features of Hugging Face."""

_MOST_NAMES = 1 << 10  # lists of fields whose decoders are cached

DROPPED = object()
"""Result of a filter for a sample that it rejects."""

# Errors of a decoder that say nothing about the data: a lack of memory, a missing library, a bug in the decoder, a
# failed connection; and shoal's own errors.
_NO_DAMAGE = (MemoryError, ImportError, NameError, ConnectionError, TimeoutError, ShoalError)


class Stage(Protocol):
    """One processing step of a sample."""

    def __call__(self, sample: Any, sample_id: int, /) -> Any:
        """Return the sample after this step."""
        ...


@runtime_checkable
class EpochStage(Stage, Protocol):
    """A step whose result depends on the epoch."""

    def in_epoch(self, epoch: int) -> Stage:
        """Return this stage for one epoch."""
        ...


class _DecodeError(Exception):
    """An error in the `Decode` of a source, for which its data is to blame."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


class FieldError(Exception):
    """A field that shoal's own decoders cannot decode; its cause is their error.

    ``otherwise`` is what can be done about it but to leave the sample out.
    """

    def __init__(self, field: str, otherwise: str) -> None:
        super().__init__(field)
        self.otherwise = otherwise


def run_stages(
    stages: Sequence[Stage],
    sample: Any,
    sample_id: int,
    *,
    index: SampleIndex | None,
    forgiving: bool = False,
    name: Callable[[], str] | None = None,
) -> Any:
    """Run a sample through all stages; return it or `DROPPED`. Errors of a stage name the sample and its location.

    ``index`` is that of the dataset, if the sample belongs to one; else ``name`` says what errors call it. With
    ``forgiving``, a sample that `Decode` cannot decode becomes `Damaged`; no other error is taken for damage.

    Raises
    ------
    ShardError
        One of shoal's own decoders cannot decode a field. Errors of user functions are raised as they are.
    """
    if type(sample) is Damaged:
        return sample
    try:
        for stage in stages:
            sample = stage(sample, sample_id)
            if sample is DROPPED:
                break
    except FieldError as bad:
        undecodable = _undecodable(bad, sample_id, index, name)
        if forgiving:
            return Damaged(undecodable)
        raise undecodable from bad.__cause__
    except _DecodeError as failed:
        error = failed.error
        error.add_note(f"shoal: in {_named(sample_id, index, name)}")
        if forgiving:
            return Damaged(error)
        raise error from error.__cause__
    except Exception as error:
        error.add_note(f"shoal: in {stage!r} of {_named(sample_id, index, name)}")
        if forgiving and isinstance(stage, Decode) and not isinstance(error, _NO_DAMAGE):
            return Damaged(error)
        raise
    return sample


def _undecodable(
    bad: FieldError, sample_id: int, index: SampleIndex | None, name: Callable[[], str] | None
) -> ShardError:
    cause = bad.__cause__
    called = f"the sample with id {sample_id}" if name is None else name()
    msg = f"{bad} of {called} cannot be decoded: {type(cause).__name__}: {cause}"
    hint = f"{SKIP_HINT}; {bad.otherwise}"
    shard, byte = _place(sample_id, index) or ("a sample of no dataset", None)
    return ShardError(msg, shard=shard, byte=byte, hint=hint)


def _place(sample_id: int, index: SampleIndex | None) -> tuple[str, int] | None:
    """Return the shard of a sample, and the byte at which it begins, or its extent if no more is known."""
    return None if index is None else index.place(sample_id)[:2]


def _named(sample_id: int, index: SampleIndex | None, name: Callable[[], str] | None) -> str:
    """Return a sample in words."""
    if name is not None:
        return name()
    place = _place(sample_id, index)
    where = "" if place is None else f", which begins at byte {place[1]} of {place[0]}"
    return f"the sample with id {sample_id}{where}"


def verb_of(stage: Stage) -> str:
    """Return the name of the method that added a stage."""
    return repr(stage).partition("(")[0]


def in_epoch(stages: Iterable[Stage], epoch: int) -> tuple[Stage, ...]:
    """Return the stages for one epoch."""
    return tuple(stage.in_epoch(epoch) if isinstance(stage, EpochStage) else stage for stage in stages)


def stages_of(stages: tuple[Stage, ...], source: int) -> tuple[Stage, ...]:
    """Return the stages that the samples of one source go through."""
    if stages and isinstance(first := stages[0], BySource):
        return (*first.stages[source], *stages[1:])
    return stages


@dataclass(frozen=True, slots=True)
class Map:
    """A stage that applies a function to every sample."""

    function: Callable[[Any], Any]

    def __post_init__(self) -> None:
        _check_callable("map()", self.function)

    def __repr__(self) -> str:
        return f"map({_name_of(self.function)})"

    def __call__(self, sample: Any, _: int) -> Any:
        """Return the result of the function."""
        return self.function(sample)


@dataclass(frozen=True, slots=True)
class Filter:
    """A stage that keeps only samples for which a function is true; ``refill`` asks for full batches of these."""

    function: Callable[[Any], Any]
    refill: bool = False

    def __post_init__(self) -> None:
        _check_callable("filter()", self.function)

    def __repr__(self) -> str:
        return f"filter({_name_of(self.function)})"

    def __call__(self, sample: Any, _: int) -> Any:
        """Return the sample, or `DROPPED`."""
        return sample if self.function(sample) else DROPPED


@dataclass(frozen=True, slots=True)
class WithIds:
    """A stage that adds the sample id as the field ``__id__``, counted from ``first_id``, and the epoch."""

    epoch: int = 0
    first_id: int = 0

    def __repr__(self) -> str:
        return "with_ids()"

    def in_epoch(self, epoch: int) -> WithIds:
        """Return this stage for one epoch."""
        return replace(self, epoch=epoch)

    def __call__(self, sample: Any, sample_id: Any) -> Any:
        """Add both to a sample, or to columns with an id for each row; refuse existing fields of these names."""
        fields = fields_of(sample, "with_ids()")
        if self.first_id:
            sample_id = sample_id - self.first_id  # an array of ids must not change
        epoch = np.full(len(sample_id), self.epoch) if isinstance(sample_id, np.ndarray) else self.epoch
        added: dict[str, Any] = {"__id__": sample_id, "__epoch__": epoch}
        has_id = "__id__" in fields
        for name, value in added.items():
            # A stored field that happens to be right in epoch 0 is refused in epoch 0 already, not only in epoch 1.
            if name in fields and not (has_id and np.array_equal(fields[name], value)):
                msg = f"with_ids() adds {name!r}, and the samples have a field of that name"
                hint = f'.rename(own_{name.strip("_")}="{name}") before with_ids() keeps it under another name'
                raise UsageError(msg, hint=hint)
        return {**fields, **added}


@dataclass(frozen=True, slots=True)
class BySource:
    """A stage that runs a sample of a mixture through the stages of its own source, and adds ``__source__``.

    ``first_ids`` are the first sample id of each source, ascending; ``names`` and ``stages`` are those of each.
    ``missing`` is what `shoal.mix` was told of fields that a source lacks.
    """

    names: tuple[str, ...]
    first_ids: tuple[int, ...]
    stages: tuple[tuple[Stage, ...], ...]
    missing: Mapping[str, Any] | str | None = None

    def in_epoch(self, epoch: int) -> BySource:
        """Return this stage for one epoch."""
        return replace(self, stages=tuple(in_epoch(stages, epoch) for stages in self.stages))

    def __repr__(self) -> str:
        return "the stages of a source"

    def __call__(self, sample: Any, sample_id: int) -> Any:
        """Return the sample after the stages of its source, or `DROPPED`."""
        source = bisect_right(self.first_ids, sample_id) - 1
        for stage in self.stages[source]:
            try:
                sample = stage(sample, sample_id)
            except Exception as error:
                error.add_note(f"shoal: in {stage!r} of the source {self.names[source]!r}")
                if isinstance(stage, Decode) and not isinstance(error, (FieldError, *_NO_DAMAGE)):
                    raise _DecodeError(error) from None
                raise
            if sample is DROPPED:
                return DROPPED
        return NameSource(self.names[source])(sample, sample_id)

    @property
    def naming(self) -> NameSources:
        """The stage that adds ``__source__`` alone, also to columns."""
        return NameSources(np.array(self.names, dtype=object), np.array(self.first_ids, dtype=np.int64))

    def unfiltered(self) -> BySource:
        """Return this stage without the filters of sources."""
        kept = tuple(tuple(each for each in own if not isinstance(each, Filter)) for own in self.stages)
        return replace(self, stages=kept)


@dataclass(frozen=True, slots=True)
class NameSource:
    """A stage that adds the name of its source to a sample; within a nested mixture, that of its dataset there."""

    name: str

    def __call__(self, sample: Any, _: int) -> Any:
        """Return the sample with the field ``__source__``; refuse one that has such a field of its own."""
        if not isinstance(sample, Mapping):
            return sample
        if "__source__" in sample and "/" not in self.name:
            msg = f"samples of {self.name!r} have a field '__source__', by which a mixture names sources"
            raise UsageError(msg, hint='.rename(origin="__source__") on that source, before mix()')
        return {**sample, "__source__": self.name}


@dataclass(frozen=True, slots=True)
class FillMissing:
    """A stage that gives a value to each of some fields that a sample lacks."""

    values: Mapping[str, Any]

    def __call__(self, sample: Any, _: int) -> Any:
        """Return the sample with these fields."""
        if not isinstance(sample, Mapping):
            return sample
        return {**sample, **{name: value for name, value in self.values.items() if name not in sample}}


@dataclass(frozen=True, slots=True, eq=False)
class NameSources:
    """A stage that adds the name of its source to each sample, or to columns with an id for each row.

    ``names`` and ``first_ids``, the first sample id of each source, have the shape (num_sources,).
    """

    names: NDArray[Any]
    first_ids: NDArray[np.int64]

    def __repr__(self) -> str:
        return "the names of sources"

    def __call__(self, sample: Any, sample_id: Any) -> Any:
        """Return the sample, or the columns, with ``__source__``; refuse a field of that name as `NameSource` does."""
        names = self.names[np.searchsorted(self.first_ids, sample_id, side="right") - 1]
        if not isinstance(sample_id, np.ndarray):
            return NameSource(names)(sample, sample_id)
        if "__source__" in sample:
            for name in dict.fromkeys(names):
                NameSource(name)(sample, -1)
        return {**sample, "__source__": names.tolist()}


def each_stage(stages: Iterable[Stage]) -> Iterator[Stage]:
    """Yield the stages, with those of the sources of a mixture in place of the stage that runs them."""
    for stage in stages:
        if isinstance(stage, BySource):
            for own in stage.stages:
                yield from each_stage(own)
        else:
            yield stage


def filters_in(stages: Iterable[Stage]) -> Iterator[Filter]:
    """Yield the filters among stages, those of the sources of a mixture included."""
    return (stage for stage in each_stage(stages) if isinstance(stage, Filter))


def _checked_spec(spec: Any) -> Any:
    is_mapping = isinstance(spec, Mapping) and all(isinstance(name, str) for name in spec)
    if isinstance(spec, str) or (is_mapping and all(map(callable, spec.values()))):
        return spec
    msg = f"decode() takes names of decoders one by one, or mappings from suffix to function; got {with_type(spec)}"
    raise UsageError(msg, hint='decode("pil", "audio"), or decode({"m4a": function})')


class Decode:
    """A stage that decodes bytes by the last part of each field's name ("seg.png" is a png).

    ``specs`` are names of decoders ("pil", "rgb8", "audio", ...) or mappings from suffix to function; later ones win.
    Values that are not bytes, and fields of unknown suffix, stay as they are. ``features`` are those that Hugging Face
    describes, if "hf" or "hf-names" is among the specs: these fields are decoded by their full names. ``size`` is a
    height and a width of all images, or one number for both.
    """

    def __init__(
        self,
        specs: Sequence[str | Mapping[str, Decoder]],
        *,
        allow_pickle: bool = False,
        features: Mapping[str, Any] | None = None,
        size: Any = None,
    ) -> None:
        self._specs, self._features = tuple(map(_checked_spec, specs)), features
        self._allow_pickle = allow_pickle = as_flag("decode(allow_pickle=)", allow_pickle)
        self._size = None if size is None else exact_size(size)
        if size is not None and not any(isinstance(spec, str) and spec in IMAGE_SPECS for spec in specs):
            msg = f"decode(size={size!r}) resizes images, and no decoder of images is named"
            meant = "".join(did_you_mean(spec, IMAGE_SPECS) for spec in specs)
            raise UsageError(
                msg, hint=meant + 'decode("rgb8", size=...) gives arrays, and decode("pil", size=...) images'
            )
        self._decoders: dict[str, Decoder] = decoders_of(None, allow_pickle=allow_pickle)
        self._given: dict[str, Decoder] = {}
        self._of_features: dict[str, Callable[[Any], Any]] = {}
        for spec in specs:
            if isinstance(spec, str) and spec in FEATURES:
                self._of_features = feature_decoders(features or {}, names=spec == "hf-names")
            elif isinstance(spec, str):
                named = decoders_of(spec, size=self._size)
                self._decoders |= named
                self._given = {suffix: given for suffix, given in self._given.items() if suffix not in named}
            else:
                self._decoders |= spec
                self._given |= spec
        self._by_names: dict[tuple[Any, ...], tuple[tuple[str, Decoder], ...]] = {}

    @property
    def has_functions(self) -> bool:
        """True if it calls functions of the user."""
        return any(not isinstance(spec, str) for spec in self._specs)

    @property
    def has_media(self) -> bool:
        """True if it decodes images, audio or video, which releases the interpreter's lock."""
        return any(isinstance(spec, str) for spec in self._specs)

    def __repr__(self) -> str:
        given = [*map(repr, self._specs), *([] if self._size is None else [f"size={self._size}"])]
        return f"decode({', '.join(given)})"

    def __reduce__(self) -> tuple[object, ...]:
        return _decode, (self._specs, self._allow_pickle, self._features, self._size)

    def __call__(self, sample: Any, _: int) -> Any:
        """Return the sample with its fields decoded."""
        fields = fields_of(sample, "decode()")
        names, decoded = tuple(fields), dict(fields)
        for name, decoder in self._by_names.get(names) or self._decoders_of(names):
            value = decoded[name]
            try:
                if type(value) is bytes:
                    decoded[name] = decoder(value)
                elif name in self._of_features:
                    decoded[name] = None if value is None else decoder(value)
                elif isinstance(value, bytes | memoryview):
                    decoded[name] = decoder(bytes(value))
            except Exception as error:
                size = f" ({len(value)} bytes)" if isinstance(value, bytes | memoryview) else ""
                what = f"the field {name!r}{size}"
                if not isinstance(error, _NO_DAMAGE) and self._is_own(name):
                    stored = value.get("bytes") if isinstance(value, dict) else value
                    if pointer := pointer_in(bytes(stored)) if isinstance(stored, bytes | memoryview) else None:
                        raise FieldError(what, f"{pointer[1]}, and write the shard again") from ValueError(pointer[0])
                    raise FieldError(what, 'decode({"suffix": function}) decodes fields otherwise') from error
                error.add_note(f"shoal: decoding {what}")
                raise
        return decoded

    def _decoders_of(self, names: tuple[Any, ...]) -> tuple[tuple[str, Decoder], ...]:
        """Return the fields that are decoded, of samples with these fields, and how."""
        known = (name for name in names if isinstance(name, str))
        pairs = ((name, self._of_features.get(name) or decoder_for(name, self._decoders)) for name in known)
        found = tuple((name, decoder) for name, decoder in pairs if decoder is not None)
        if len(self._by_names) < _MOST_NAMES:
            self._by_names[names] = found
        return found

    def _is_own(self, name: str) -> bool:
        """True if no user function decodes this field."""
        return name in self._of_features or decoder_for(name, self._given) is None


def _decode(
    specs: Sequence[str | Mapping[str, Decoder]],
    allow_pickle: bool,  # noqa: FBT001
    features: Mapping[str, Any] | None,
    size: tuple[int, int] | None,
) -> Decode:
    return Decode(specs, allow_pickle=allow_pickle, features=features, size=size)


def _check_callable(verb: str, function: object) -> None:
    if not callable(function):
        msg = f"{verb} takes a function; got {function!r}"
        raise UsageError(msg)


def _name_of(function: Callable[[Any], Any]) -> str:
    return getattr(function, "__qualname__", "") or repr(function)
