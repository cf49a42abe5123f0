"""Methods of a dataset that add a stage for single samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

from shoal.arguments import as_choice, as_flag, as_texts, with_type
from shoal.errors import UsageError
from shoal.formats.decoding.decoders import Decoder
from shoal.order.protocol import as_within
from shoal.pipeline.output_format import Formatting
from shoal.pipeline.stages.chosen_fields import Rename, SelectColumns, ToTuple
from shoal.pipeline.stages.concurrent_functions import as_function
from shoal.pipeline.stages.decode import FEATURES, Decode
from shoal.pipeline.stages.flat_map import FlatMap
from shoal.pipeline.stages.map_and_filter import GENERATORS, Filter, Map, SeededMap
from shoal.pipeline.stages.with_ids import WithIds
from shoal.pipeline.stored_types import features_of
from shoal.stream.dataset_spec import DIVIDED, GROUPED
from shoal.stream.derived.join_datasets import joined_spec
from shoal.stream.refilling.filled_batches import FilledRows
from shoal.stream.refilling.parts_of_samples import PartRows
from shoal.stream.verbs.token_verbs import TokenVerbs

_MOST_PARTS = 1 << 20


class StageVerbs(TokenVerbs):
    """Methods of `Dataset` that add a stage for samples; after `batch`, `map` adds a stage for batches."""

    def map(
        self,
        function: Callable[..., Any],
        *,
        seed: bool | int = False,
        generator: str = "numpy",
        max_concurrency: int | None = None,
    ) -> Self:
        """Apply a function to every sample (after `batch`: to every batch, but with ``seed`` only to samples).

        With ``seed=True`` the function is called as ``function(sample, rng)`` with a `numpy.random.Generator` (with
        ``generator="torch"`` a `torch.Generator`), seeded by the seed of the order, the epoch and the sample id: the
        augmentation is the same at any world size, with any number of workers and after a resume, and differs between
        epochs. A number sets the seed; with True, each `map` draws different numbers. Repeats of a sample in an epoch
        get the same augmentation. Takes some 10 us per sample. Batches have no seed: call a seeded `map` before
        `batch`.

        A coroutine function (``async def``) runs in up to ``max_concurrency`` coroutines at a time, 32 by default; with
        a number above 1, another function runs in so many threads, and must be thread-safe. The numbers hold for each
        worker process. Samples keep their order, and an error is raised at its sample. Batches, ``ds[i]`` and live
        streams call the function for one after another (docs/guides/functions-are-slow.md).

        Examples
        --------
        >>> ds.map(lambda sample: {"num_chars": len(sample["txt"])})[125]
        {'num_chars': 5}
        >>> ds.map(lambda sample, rng: rng.integers(10, size=3), seed=True)[125]
        array([2, 9, 6])
        >>> import asyncio
        >>> async def fetch(sample):
        ...     await asyncio.sleep(0.01)  # a request
        ...     return sample["txt"]
        >>> next(iter(ds.map(fetch, max_concurrency=64).batch(3)))
        [b'cat 0', b'cat 1', b'cat 2']
        """
        as_choice("map(generator=)", generator, GENERATORS)
        function = self._concurrent("map()", function, max_concurrency)
        if seed is False:
            return self._then(Map(function), "map()", takes_batches=True)
        return self._then(SeededMap.of(function, seed, generator), "map(seed=)")

    def filter(
        self, function: Callable[[Any], Any], *, refill: bool = False, max_concurrency: int | None = None
    ) -> Self:
        """Keep a sample only if the function returns true; if columns of the index decide, prefer `select`.

        Batches are cut before filtering, so batches may be short; a rank without samples gets a marked repeat. With
        ``refill=True``, a rank fills its batches from its own share, and also replaces samples that `reading` skips;
        ``remainder=`` applies to the last batch. Ranks may then yield different numbers of batches, and every rank
        saves its own state: `shoal.merge_states` joins these states, for any world size and batch size.
        ``max_concurrency`` and coroutine functions are as in `map`.

        Examples
        --------
        >>> sum(1 for _ in ds.filter(lambda sample: sample["txt"].endswith(b"7")))
        20
        """
        function = self._concurrent("filter()", function, max_concurrency)
        filtered = self.stream.spec.then(Filter(function), "filter()")
        if as_flag("filter(refill=)", refill):
            filtered = replace(filtered, rows=filtered.rows.refilled_as(FilledRows()))
        return type(self)(filtered)

    def flat_map(
        self, function: Callable[..., Any], *, most: int, seed: bool | int = False, generator: str = "numpy"
    ) -> Self:
        """Make several samples of each: crops of an image, question pairs of a page, windows of a recording.

        ``function(sample)`` returns up to ``most`` parts, as a list or from a generator; a sample without parts is
        dropped. Stages behind `flat_map` process each part, and `with_ids` adds the number of a part as ``__part__``.
        The parts of a sample follow each other; for parts that lie apart, make one part of each sample and epoch with
        ``map(seed=True)``.

        A rank fills its batches with the parts of its share, as with ``filter(refill=True)``: only the last batch of an
        epoch may be short, ranks may yield different numbers of batches (``batch(steps=)``), and every rank saves its
        own state. Positions, ids and certificates are those of samples. If a batch ends inside of a sample, the state
        has the number of its parts that are delivered: a resumed run continues with the next part, also after
        `shoal.merge_states` on another number of ranks. ``function`` must return the same parts each time. ``seed`` and
        ``generator`` are as in `map`. ``ds[i]`` gives the list of parts.

        Raises `UsageError` if the function returns more than ``most`` parts, or something other than parts.

        Examples
        --------
        >>> letters = ds.flat_map(lambda sample: [{"letter": letter} for letter in sample["txt"].split()], most=8)
        >>> next(iter(letters.batch(4)))
        {'letter': [b'cat', b'0', b'cat', b'1']}
        >>> letters[125]
        [{'letter': b'dog'}, {'letter': b'5'}]
        """
        as_choice("flat_map(generator=)", generator, GENERATORS)
        most = as_within("flat_map(most)", most, 1, _MOST_PARTS)
        spec = self.stream.spec
        spec.refuse("flat_map()", (*GROUPED, DIVIDED))
        stage = FlatMap(Map(function) if seed is False else SeededMap.of(function, seed, generator), most)
        return type(self)(replace(spec.then(stage, "flat_map()"), rows=PartRows(most)))

    def decode(
        self,
        *decoders: str | Mapping[str, Decoder],
        size: int | tuple[int, int] | None = None,
        crop: str | tuple[float, float] | None = None,
        allow_pickle: bool = False,
    ) -> Self:
        """Decode fields by suffix, with the names of WebDataset; images, audio, video and features only on request.

        Without arguments ``txt``, ``cls``, ``json``, ``npy``, ``npz``, ``mp`` and ``cbor`` (and related suffixes, also
        followed by ``.gz``) are decoded, and everything else stays bytes, including images, audio and video.

        Parameters
        ----------
        decoders
            "pil", "rgb8", "rgb", "torchrgb", ... for images; "audio" or "torchaudio" for float32 samples of shape
            (num_channels, num_frames) and their rate; "video" or "torchvideo" for uint8 frames and their rate; "hf" for
            the column features of Hugging Face ``datasets`` (images as PIL images, audio as the bytes of its file),
            "hf-names" for the same with classes by name; or mappings from suffix to function, ``{"m4a": function}``.
            Later decoders win.
        size
            Height and width in pixels of every resized image; one number for a square. The filter is bilinear, and
            averages when shrinking. To save time, a large JPEG is decoded at 1/2, 1/4 or 1/8 of its size, but no
            smaller than ``size``.
        crop
            Resize only a part of each image to ``size``: "center" for the largest part in the middle with the
            proportions of ``size``, "random" for the random part of torchvision's `RandomResizedCrop`, and two numbers
            for the same with other limits of its share of the area than ``(0.08, 1.0)``. The seed of the order, the
            epoch and the sample id determine a random part, at any world size and after a resume. Images of one sample
            get the same numbers.
        allow_pickle
            Also decode ``pkl``, ``pickle``, ``pyd``, ``pth``, ``pt`` and arrays of objects. Unpickling runs any code in
            the data. If false, these suffixes stay bytes, and an array of objects is an error.

        Raises
        ------
        UsageError
            The decoder is unknown, its library is not installed, the dataset describes no features, or ``size`` is
            given without a decoder that can resize images ("pilraw" cannot), or ``crop`` without ``size``.

        Examples
        --------
        >>> ds.decode()[125]
        {'__key__': 'dog/005', 'txt': 'dog 5', 'cls': 1}
        >>> ds.decode({"txt": lambda data: data.decode().upper()})[125]
        {'__key__': 'dog/005', 'txt': 'DOG 5', 'cls': 1}
        """
        describes = any(isinstance(name, str) and name in FEATURES for name in decoders)
        features = features_of(self.stream.opened) if describes else None
        stage = Decode(decoders, allow_pickle=allow_pickle, features=features, size=size, crop=crop)
        return self._then(stage, "decode()")

    def join(
        self,
        other: Any,
        *,
        on: str | tuple[str, str] = "__key__",
        how: str = "inner",
        missing: Mapping[str, Any] | None = None,
        doubles: str = "refuse",
    ) -> Self:
        """Add the fields of another dataset's samples with the same keys: captions or embeddings that were made later.

        Order, ids, states and certificates are those of this dataset. Keys are matched once, out of core, and the
        result is cached (docs/guides/join-captions-made-later.md). Partners are read along with their samples. Call
        `join` before `decode`, `map` and other stages, which then see the fields of both sides. Stages of ``other``
        apply to its own fields, before they are joined. ``__key__`` is always that of this dataset.

        Parameters
        ----------
        other
            A dataset, selected and with stages if need be, but without an order or batches.
        on
            ``"__key__"`` of tars and folders, a column of the index, or a field of the samples. A pair names the key of
            this dataset, then the key of ``other``. The number 7 and the text "7" are equal.
        how
            "inner" selects the samples with a partner. "left" keeps all samples; a sample without a partner has no
            fields of ``other``.
        missing
            Values of fields for samples without a partner, by name. Without a value, such a field is None in batches.
        doubles
            "refuse" raises if samples of ``other`` share a key; "first" takes the first of them.

        Raises
        ------
        UsageError
            A sample has no key, keys of ``other`` are not unique, or, when samples are read, both sides have a field.

        Examples
        --------
        >>> captions = ({"id": f"cat/{i:03d}", "caption": f"cat {i} sleeps"} for i in range(90))
        >>> packed = shoal.pack.pack(captions, "captions", format="jsonl")
        >>> joined = ds.join(shoal.open("captions"), on=("__key__", "id"))
        >>> joined[7]
        {'__key__': 'cat/007', 'txt': b'cat 7', 'cls': b'0', 'id': 'cat/007', 'caption': 'cat 7 sleeps'}
        >>> joined
        <shoal.Dataset: 90 samples of 4 tar shards, join on __key__: 90 of 200 samples have a partner>
        """
        if not isinstance(other, StageVerbs):
            msg = f"join() takes a dataset; got {with_type(other)}"
            raise UsageError(msg, hint='ds.join(shoal.open("captions-*.tar"))')
        left, right = self.stream.spec, other.stream.spec
        return type(self)(joined_spec(left, right, on=on, how=how, missing=missing, doubles=doubles))

    def rename(self, **names: str) -> Self:
        """Rename fields: ``rename(image="jpg;jpeg;png")`` takes the first alternative that a sample has.

        A path (``document.body``) takes a value from inside a field, a dict or JSON text; the field stays as it is.

        Examples
        --------
        >>> ds.rename(text="txt", label="cls")[125]
        {'__key__': 'dog/005', 'text': b'dog 5', 'label': b'1'}
        """
        return self._then(Rename.of(names), "rename()")

    def columns(self, *names: str) -> Self:
        """Keep only these fields. If `columns` is the first stage, Parquet, Arrow and MDS decode only these fields.

        A path (``document.body``) keeps a value from inside a field, under the path as its name.

        Examples
        --------
        >>> ds.columns("txt")[125]
        {'txt': b'dog 5'}
        """
        return self._then(SelectColumns(as_texts("columns", names)), "columns()")

    def to_tuple(self, *names: str) -> Self:
        """Turn each sample into a tuple of the values of these fields; alternatives and paths as in `rename`.

        Examples
        --------
        >>> ds.decode().to_tuple("txt", "cls")[125]
        ('dog 5', 1)
        """
        return self._then(ToTuple(as_texts("to_tuple", names)), "to_tuple()")

    def with_ids(self) -> Self:
        """Add the sample id as the field ``__id__`` and the epoch as ``__epoch__``: enough to seed random numbers.

        Before `pack_sequences`, sequences get the ids of their documents by segment instead: ``document_ids``.

        Examples
        --------
        >>> ds.with_ids()[125]
        {'__key__': 'dog/005', 'txt': b'dog 5', 'cls': b'1', '__id__': 125, '__epoch__': 0}
        """
        return self._then(WithIds(), "with_ids()")

    def format(self, name: str) -> Self:
        """Convert batches (or, without batches, samples) to another form; call `format` anywhere in the chain.

        Numbers keep their stored type: a column of int16 stays int16. "python" gives plain Python values. "numpy" gives
        arrays, of dates and times too, and lists if values are missing or differ in shape. "arrow" gives a
        `pyarrow.Table` with the types of Parquet and Arrow shards. "torch" gives the result of "numpy" with tensors in
        place of arrays. Without `format`, times are Python objects. Functions of `map` before `batch` get samples as
        they are stored.

        Examples
        --------
        >>> batches = ds.decode().columns("cls").batch(4)
        >>> next(iter(batches)), next(iter(batches.format("python")))
        ({'cls': array([0, 0, 0, 0])}, {'cls': [0, 0, 0, 0]})
        """
        return type(self)(replace(self.stream.spec, formatting=Formatting.named(name)))

    def _concurrent(self, verb: str, function: Any, max_concurrency: int | None) -> Callable[..., Any]:
        """Return the function of a verb; `UsageError` if batches are to be processed several at a time."""
        if max_concurrency is not None and self.stream.spec.batching is not None:
            msg = f"{verb} processes batches one after another, but max_concurrency={max_concurrency!r} was given"
            raise UsageError(msg, hint="call it before batch(), with a function of samples")
        return as_function(verb, function, max_concurrency)
