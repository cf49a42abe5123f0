"""The live dataset that users hold: a stream without an index, from a source that may never end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Self

from shoal.arguments import as_choice, as_texts
from shoal.errors import UsageError
from shoal.formats.decoding.decoders import Decoder
from shoal.hints import no_attribute
from shoal.live.live_run import LiveRun, LiveSpec
from shoal.live.shuffle_buffer import BufferSize
from shoal.pipeline.output_format import Formatting
from shoal.pipeline.stages.chosen_fields import Rename, SelectColumns, ToTuple
from shoal.pipeline.stages.decode import FEATURES, Decode
from shoal.pipeline.stages.map_and_filter import GENERATORS, Filter, Map, SeededMap
from shoal.pipeline.stages.stage import Stage, verb_of
from shoal.plugins.displays import Sheet, as_html, sheet_of_values
from shoal.stream.dataset import Dataset
from shoal.stream.ranks import Ranks
from shoal.stream.verbs.dataset_requests import count_of

_INSTEAD = {
    "take": "take samples with itertools.islice(ds, n)",
    "skip": "step over samples with itertools.islice(ds, n, None)",
    "select": "choose samples with filter(function)",
    "tokenize": "tokenize samples with map(function)",
    "chat_tokens": "apply chat templates with map(function)",
    "fill_in_middle": "rearrange tokens with map(function, seed=True)",
    "with_ids": "number samples where they are written, or in the source",
}
_REMAINDERS = ("keep", "drop")


class LiveDataset:
    """A stream of samples from a live source: an iterable, a function, or files that appear while it runs.

    The stream has one position, which only moves forward: a second loop goes on where the first stopped. Verbs return a
    new dataset at the start of the source. There are no epochs, no length and no access by number; `shoal.open` offers
    all three for samples in shards. The shuffle buffer holds samples of the source; `map`, `filter` and the other
    stages process a sample when it leaves the buffer.

    Examples
    --------
    >>> live
    <shoal.LiveDataset: an iterable (list)>
    >>> [batch["txt"] for batch in live.decode().shuffle(seed=0, buffer=4).batch(4)]
    [['cat 1', 'cat 3', 'cat 5', 'cat 2'], ['cat 4', 'cat 0']]
    """

    def __init__(self, spec: LiveSpec, name: str) -> None:
        self._spec, self._name = spec, name
        self._started: LiveRun | None = None

    def __repr__(self) -> str:
        """Return a one-line summary."""
        spec = self._spec
        parts = [self._name, *([f"shuffled in {spec.size}"] if spec.size else [])]
        parts += [verb_of(stage) for stage in spec.stages]
        parts += [f"batches of {spec.batch_size:,}"] if spec.batch_size else []
        return f"<shoal.LiveDataset: {', '.join(parts)}>"

    def _repr_html_(self) -> str:
        spec = self._spec
        facts = {
            "Source": self._name,
            "Shuffle": f"in {spec.size}" if spec.size else "as the samples come",
            "Stages": [repr(stage) for stage in spec.stages],
            "Batches": f"of {spec.batch_size:,}" if spec.batch_size else "",
        }
        return as_html("live", facts)

    def __getattr__(self, name: str) -> Any:
        """Refuse attributes of a `Dataset`, with an alternative."""
        if name.startswith("_") or not hasattr(Dataset, name):
            raise AttributeError(no_attribute("a live dataset", name, dir(type(self))))
        hint = _INSTEAD.get(name, "for files that no longer change, use the dataset of shoal.open()")
        msg = f"a live stream has no {name}, which needs to know all samples: {hint}"
        raise AttributeError(msg, name=name, obj=self)

    def __reduce__(self) -> tuple[object, ...]:
        """Return the description: a copy in another process begins at the start of the source there."""
        return type(self), (self._spec, self._name)

    # ---- order and processing

    def shuffle(self, *, seed: int = 0, buffer: int | str | None = None, **unknown: Any) -> Self:
        """Shuffle through a buffer: each step delivers a random sample, and the next sample fills the gap.

        The order equals `shoal.orders.Buffer` over the samples as they arrive. A sample leaves at most ``buffer``
        samples early. It stays for ``buffer`` steps on average, and possibly much longer. Delivery begins when the
        buffer is full or the source has ended.

        Parameters
        ----------
        seed
            0 to 2**64 - 1. Ranks draw differently with the same seed.
        buffer
            The size in samples (``10_000``), or in bytes of their values (``"1GiB"``). Long runs of similar samples
            need a larger buffer: docs/guides/which-kind-of-dataset.md.

        Raises
        ------
        UsageError
            The size is invalid or missing, or the stream is shuffled or in batches already.

        Examples
        --------
        >>> [sample["txt"] for sample in live.shuffle(seed=0, buffer=4)]
        [b'cat 1', b'cat 3', b'cat 5', b'cat 2', b'cat 4', b'cat 0']
        """
        if unknown or buffer is None:
            arguments = ", ".join(f"{name}=" for name in unknown) or "no size"
            msg = f"a live stream is shuffled through a buffer of a size that you choose; got {arguments}"
            raise UsageError(msg, hint='shuffle(seed=0, buffer=10_000) or buffer="1GiB"; windows need shoal.open()')
        self._refuse_after_batch("shuffle()")
        if self._spec.size is not None:
            raise UsageError(f"the stream is shuffled already, in {self._spec.size}", hint="call shuffle() once")
        return self._with(size=BufferSize.of(seed, buffer))

    def map(self, function: Callable[..., Any], *, seed: bool | int = False, generator: str = "numpy") -> Self:
        """Apply a function to every sample (after `batch`: to every batch).

        With ``seed=True`` the call is ``function(sample, rng)``, as in `Dataset.map`; the numbers follow from the seed
        of `shuffle` and the place of the sample in its source. If the function raises an error, the stream skips and
        counts the sample (``num_failed``): the next ``next()`` goes on with the following sample. A coroutine function
        runs for one sample after another.

        Examples
        --------
        >>> list(live.map(lambda sample: len(sample["txt"])))
        [5, 5, 5, 5, 5, 5]
        """
        as_choice("map(generator=)", generator, GENERATORS)
        if seed is not False:
            return self._then(SeededMap.of(function, seed, generator), "map(seed=)")
        if self._spec.batch_size is not None:
            return self._with(batch_stages=(*self._spec.batch_stages, Map(function)))
        return self._then(Map(function), "map()")

    def filter(self, function: Callable[[Any], Any]) -> Self:
        """Keep samples if the function returns true; batches are full nevertheless.

        Examples
        --------
        >>> list(live.filter(lambda sample: sample["txt"] > b"cat 3"))
        [{'txt': b'cat 4', 'cls': b'0'}, {'txt': b'cat 5', 'cls': b'0'}]
        """
        return self._then(Filter(function), "filter()")

    def decode(
        self,
        *decoders: str | Mapping[str, Decoder],
        size: int | tuple[int, int] | None = None,
        crop: str | tuple[float, float] | None = None,
        allow_pickle: bool = False,
    ) -> Self:
        """Decode fields by suffix, as `Dataset.decode` does.

        Examples
        --------
        >>> next(iter(live.decode()))
        {'txt': 'cat 0', 'cls': 0}
        """
        if features := [name for name in decoders if isinstance(name, str) and name in FEATURES]:
            msg = f"decode({features[0]!r}) follows the features of a dataset, but a live stream has none"
            raise UsageError(msg, hint='name decoders by suffix: decode("pil"), decode({"m4a": function})')
        return self._then(Decode(decoders, allow_pickle=allow_pickle, size=size, crop=crop), "decode()")

    def rename(self, **names: str) -> Self:
        """Rename fields: ``rename(image="jpg;jpeg;png")`` takes the first alternative that a sample has.

        Paths lead into fields, as in `Dataset.rename`.

        Examples
        --------
        >>> next(iter(live.rename(text="txt", label="cls")))
        {'text': b'cat 0', 'label': b'0'}
        """
        return self._then(Rename.of(names), "rename()")

    def columns(self, *names: str) -> Self:
        """Keep only these fields.

        Examples
        --------
        >>> next(iter(live.columns("txt")))
        {'txt': b'cat 0'}
        """
        return self._then(SelectColumns(as_texts("columns", names)), "columns()")

    def to_tuple(self, *names: str) -> Self:
        """Turn each sample into a tuple of the values of these fields; alternatives and paths as in `rename`.

        Examples
        --------
        >>> next(iter(live.decode().to_tuple("txt", "cls")))
        ('cat 0', 0)
        """
        return self._then(ToTuple(as_texts("to_tuple", names)), "to_tuple()")

    def format(self, name: str) -> Self:
        """Convert batches, or samples, to "python", "numpy", "arrow" or "torch" values, as `Dataset.format` does.

        Examples
        --------
        >>> next(iter(live.decode().columns("cls").batch(3).format("python")))
        {'cls': [0, 0, 0]}
        """
        return self._with(formatting=Formatting.named(name))

    def batch(self, size: int, *, remainder: str = "keep") -> Self:
        """Group samples into batches of ``size``, collated as in `Dataset.batch`.

        At the end of the source, ``remainder="drop"`` leaves out the last incomplete batch.

        Examples
        --------
        >>> [batch["txt"] for batch in live.decode().batch(4)]
        [['cat 0', 'cat 1', 'cat 2', 'cat 3'], ['cat 4', 'cat 5']]
        """
        self._refuse_after_batch("batch()")
        number = count_of(size, "batch()")
        if not number:
            raise UsageError("batch() needs at least one sample; got 0")
        as_choice("remainder", remainder, _REMAINDERS)
        return self._with(batch_size=number, remainder=remainder)

    def partition(self, *, rank: int | None = None, world_size: int | None = None, replicate: int = 1) -> Self:
        """Set the rank and world size, as `Dataset.partition` does.

        Examples
        --------
        >>> [sample["txt"] for sample in live.partition(rank=1, world_size=2)]
        [b'cat 1', b'cat 3', b'cat 5']
        """
        return self._with(ranks=Ranks.of_arguments(rank, world_size, replicate))

    def show(self, n: int = 16) -> Sheet:
        """Return a contact sheet of the next samples, as `Dataset.show` does; the position of the stream stays.

        The samples are read again, so the source must give them again: `shoal.follow`, a sequence, or ``replay=True``.
        The stream does not wait for samples: there may be fewer.

        Raises
        ------
        UsageError
            The source gives each sample once.

        Examples
        --------
        >>> live = shoal.from_iterable([{"txt": "a reef"}], shared=True)
        >>> print(live.show(1))
        the next sample
        <BLANKLINE>
        0
          txt  6 B  a reef
        """
        run = self._run().again()
        if run is None:
            msg = f"show() would take samples from the stream: {self._name} gives each sample once"
            hint = "list(itertools.islice(ds, n)) takes some; from_iterable(..., replay=True) reads a source again"
            raise UsageError(msg, hint=hint)
        return sheet_of_values(islice(run, count_of(n, "show()")), self._name)

    # ---- the run

    def __iter__(self) -> LiveRun:
        """Continue at the position of this dataset; look for more samples if the source had ended.

        Examples
        --------
        >>> next(iter(live))["txt"], next(iter(live))["txt"]
        (b'cat 0', b'cat 1')
        """
        self._run().begin()
        return self._run()

    def state_dict(self, *, contents: bool = False) -> dict[str, Any]:
        """Return the position in the source, and the places or contents of the buffer; JSON types, with a checksum.

        Each rank saves its own state. A resumed run continues exactly, with the same samples in the buffer, if the
        source can restore these samples:

        - `shoal.follow`, a sequence, or ``replay=True``: always, since shoal reads the samples again;
        - a source with a ``state_dict`` of its own: with ``contents=True``, which keeps the samples in the state;
        - any other source, such as a queue: with ``contents=True``, if the source lost nothing in the meantime.

        Otherwise the samples in the buffer are lost: at most the buffer size and a batch in progress, counted by
        `stats` (``num_lost``). The state has a few bytes for each sample in the buffer, and with ``contents=True`` the
        sample in base64.

        Raises
        ------
        UsageError
            With ``contents=True``: a sample in the buffer has a value of an unsupported type.

        Examples
        --------
        >>> sample = next(iter(live))
        >>> live.state_dict()
        {'live': 1, 'kind': 'iterable', 'rank': 0, ..., 'source': {'next': 1}, 'places': [], 'check': '...'}
        """
        return self._run().state_dict(contents=contents)

    def load_state_dict(self, state: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
        """Continue from the state of this rank, or from a list of the states of all ranks.

        With a list, a `shoal.follow` may resume on another number of ranks: it deals the undelivered samples again; no
        sample is lost or repeated.

        Raises
        ------
        StateError
            The state is of another kind of source, shuffle or rank, or was changed; or the source cannot continue from
            it.

        Examples
        --------
        >>> texts = ["a", "b", "c", "d"]
        >>> live, resumed = shoal.from_iterable(texts), shoal.from_iterable(texts)
        >>> first = next(iter(live))
        >>> resumed.load_state_dict(live.state_dict())
        >>> list(resumed)
        ['b', 'c', 'd']
        """
        self._run().load_state_dict(state)

    def stats(self) -> dict[str, Any]:
        """Return the counters of this rank since this dataset object was made.

        Examples
        --------
        >>> batches = list(live := live.batch(4))
        >>> live.stats()
        {'num_taken': 6, 'num_samples': 6, 'num_batches': 2, 'num_filtered': 0, 'num_failed': 0, ...}
        """
        return self._run().stats()

    def _run(self) -> LiveRun:
        if self._started is None:
            self._started = LiveRun(self._spec)
        return self._started

    def _then(self, stage: Stage, verb: str) -> Self:
        self._refuse_after_batch(verb)
        return self._with(stages=(*self._spec.stages, stage))

    def _with(self, **changes: Any) -> Self:
        return type(self)(replace(self._spec, **changes), self._name)

    def _refuse_after_batch(self, verb: str) -> None:
        if self._spec.batch_size is not None:
            msg = f"{verb} takes samples, but was called after batch()"
            raise UsageError(msg, hint=f"call {verb} before batch(); only map() may follow, with a function of batches")
