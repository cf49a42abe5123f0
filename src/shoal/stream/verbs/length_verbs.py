"""Methods of a dataset that group samples: batches, sequences of a fixed length, and padded batches by length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from shoal.errors import UsageError
from shoal.pipeline.stages.map_and_filter import Filter
from shoal.reading.mixture.mix_request import FOREVER
from shoal.reading.resolved_epochs import BatchSegments
from shoal.stream.dataset_spec import CHOSEN, DIVIDED, GROUPED, DatasetSpec
from shoal.stream.dataset_stream import Stream
from shoal.stream.groups.batch_calls import batched
from shoal.stream.sequences.sequence_requests import SequenceRequest
from shoal.stream.verbs.dataset_requests import Batching
from shoal.stream.verbs.dataset_run import DatasetRun


class LengthVerbs(DatasetRun):
    """Methods of `Dataset` that group samples, by number or by length, or describe the groups."""

    def __init__(self, spec: DatasetSpec) -> None:
        self.stream = Stream(spec)  # private, for the modules of shoal

    def batch(
        self,
        size: int | Mapping[Any, int] | None = None,
        each: int | None = None,
        *,
        by: str | None = None,
        alike: int | None = None,
        look_ahead: int | None = None,
        too_small: str | None = None,
        limits: Mapping[str, float] | None = None,
        too_large: str | None = None,
        block: int | None = None,
        global_batch_size: int | None = None,
        remainder: str = "keep",
        balance: str | None = None,
        neighbours: int = 8,
        steps: int | str | None = None,
    ) -> Self:
        """Group samples into batches of ``size`` on each rank, or of ``global_batch_size`` over all ranks.

        Numbers, and arrays or tensors of equal shape and type, are stacked; the rest become lists. Dicts and tuples in
        samples become dicts and tuples of columns, as in torch's ``default_collate``.

        With ``by``, all samples of a batch have the same value in a column of the index, or the batch has ``size``
        classes with ``each`` samples. With ``limits``, a batch has as many samples as several costs allow. Then a rank
        gets a whole batch at each step, and states and `num_samples` count batches, which are the same at any world
        size. Samples that cannot be batched are left out, and counted as ``num_ungrouped_samples`` in `stats`.

        Parameters
        ----------
        size
            Samples of a batch on each rank; with ``by``, also sizes by value of the column. With ``each``, the number
            of classes in a batch. With ``limits``, the most samples of a batch (default: any number).
        each
            Samples of each class in a batch; they follow each other. Samples that fill no batch are left out.
        by
            The column of the index with the group or class of each sample. Samples keep their order, and the next
            batch is the first that is complete.
        alike
            With ``by``, the number of consecutive batches of the same groups (default 1). Set the number of ranks: all
            ranks then get the same group at a step, and read different chunks. ``alike`` is part of the order, and
            stays the same if the number of ranks changes.
        look_ahead
            With ``each``, the samples of frequent classes that may wait for other classes (default 65,536); of more
            samples, the oldest are left out. Other samples wait, too: fewer than ``alike`` batches of each group.
        too_small
            With ``by``, groups that never fill a batch are an error ("refuse", the default), or left out ("drop"). With
            ``remainder="keep"``, small groups make short batches.
        limits
            The most that the samples of a batch cost together, by column: ``{"num_tokens": 8192, "image_tiles": 32}``.
            Each sample goes into the first batch with enough room.
        too_large
            With ``limits``, a sample that costs more than a limit is an error ("refuse", the default), or left out
            ("drop").
        block
            With ``limits``, samples to batch together: the samples of a canonical node in this many positions of the
            order (default 65,536).
        remainder
            The last, incomplete global batch: "keep" it (divided evenly; a rank without a sample gets a repeat),
            "pad" it with repeats, or "drop" it. Repeats are marked true in the field ``__pad__``. With ``by``, the last
            samples of each group make a short batch at the end of the epoch ("keep"), or are left out ("drop").
        balance
            A column of the index with the cost of each sample: ranks share the samples of a global batch so that the
            costs sum up to about the same on each rank. With "attention", ranks share sequences (`pack_sequences`) by
            the squared lengths of documents. Global batches, and the number of samples of each rank, stay the same.
        neighbours
            Number of consecutive ranks that exchange samples for ``balance``. Each of these ranks reads the data of
            all: give the number of ranks on a machine, which read the data once with a shared cache.
        steps
            Number of batches in a pass, if ranks fill their batches (``filter(refill=True)``,
            ``pack_sequences(lengths=None)``). Every rank yields this number, and the next pass continues after the
            last batch. With "apart", a pass is an epoch, and ranks may yield different numbers of batches. Required
            with several ranks.

        Examples
        --------
        >>> [len(batch["txt"]) for batch in ds.batch(64)]
        [64, 64, 64, 8]
        >>> [len(batch["txt"]) for batch in ds.batch(64, remainder="drop")]
        [64, 64, 64]
        >>> batches = ds.decode().shuffle(seed=0).batch(32, by="cls")
        >>> [(len(batch["cls"]), int(batch["cls"][0])) for batch in batches]
        [(32, 0), (32, 0), (32, 1), (32, 0), (20, 2), (24, 0), (28, 1)]
        >>> next(iter(ds.decode().shuffle(seed=0).batch(3, 2, by="cls")))["cls"]
        array([0, 0, 2, 2, 1, 1])
        """
        grouping = {"each": each, "alike": alike, "look_ahead": look_ahead, "too_small": too_small}
        grouping |= {"too_large": too_large, "block": block}
        cutting = {"size": size, "global_batch_size": global_batch_size, "remainder": remainder, "balance": balance}
        cutting |= {"neighbours": neighbours, "steps": steps}
        return type(self)(batched(self.stream.spec, by, limits, grouping=grouping, cutting=cutting))

    def pack_sequences(
        self,
        length: int,
        *,
        key: str = "tokens",
        fields: Sequence[str] | Mapping[str, float] = (),
        strategy: str = "concat",
        lengths: str | None = "num_tokens",
        separator: int | None = None,
        padding: int = 0,
        extras: Sequence[str] = (),
        too_long: str = "cut",
        multiple_of: int = 1,
        block: int | None = None,
    ) -> Self:
        """Pack documents into sequences of ``length`` tokens; `batch` makes batches of sequences.

        A sequence has the fields ``key``, ``segment_ids`` (its documents are 1, 2, ...; padding is 0) and
        ``position_ids`` (from 0 in each document), arrays of shape (length,). Every token appears once in an epoch, at
        any world size; each epoch is packed again, in its own order. States, batches and ranks count sequences.

        Without lengths in the index (``lengths=None``), each rank packs what it reads, in groups of ``block``
        documents. Then each rank saves its own state, as with ``filter(refill=True)`` (`merge_states`). At the same
        world size and batch size, a run resumes at the exact sequence, and reads at most a group of documents again.
        Otherwise, up to a group of documents of each rank is repeated, and no document is missed.

        Parameters
        ----------
        key
            The field with a document's tokens, an array of integers of shape (num_tokens,).
        fields
            Other fields to pack along with the tokens: names, or padding by name, ``{"labels": -100, "weights": 0.0}``.
            By default, "labels" have the padding -100, and other fields 0. A field has a number (or a row of numbers)
            for each token, or one number for the whole document. Padding and separators have the field's padding.
            `MaskWarning` warns of a mask that leaves out all or none of a million tokens.
        strategy
            "concat" lays documents end to end and cuts them where a sequence is full. The other strategies keep
            documents whole: "first_fit" puts each into the first sequence with room, "best_fit" puts the longest first
            into the fullest.
        too_long
            A document of more than ``length`` tokens is "cut" into full sequences and a rest for packing, or left out
            ("drop"), or an error before the run ("refuse").
        multiple_of
            Each document is padded to a multiple of this number of tokens, which divides ``length``. The padding
            belongs to the document's segment, and has the padding of each field.
        lengths
            The column of the index with the number of tokens of each document; None if the index has no lengths.
        separator
            A token to add after each document; None for none. A token beyond the type of the documents makes batches of
            a larger type: 99_999 after uint16 gives uint32; so does ``padding``.
        padding
            The token that fills the rest of a sequence.
        extras
            Additional fields: "loss_mask" is false for separators and padding, and where the ``loss_mask`` of a
            document is false, if documents have this field; "cu_seqlens" are the borders of
            documents and paddings in a batch laid end to end, shape (num_segments + 1,); "document_ids" and, of a
            mixture, "source_ids" (numbers as in `source_of`) are by segment, shape (num_sequences, 1 + most segments of
            a sequence), with padding in column 0 and -1 for missing segments. An earlier `with_ids` adds
            "document_ids", too.
        block
            Documents to pack together. Default: the documents of a canonical node in 65,536 positions of the order;
            without lengths, 1024 documents of a rank.

        Raises
        ------
        UsageError
            The index lacks the column, an argument is invalid, or `batch` was called before; or `filter` was called
            before and the index has the lengths.

        Examples
        --------
        >>> docs  # of 8 to 47 tokens
        <shoal.Dataset: 40 samples of 1 mds shard>
        >>> batch = next(iter(docs.shuffle(seed=0).pack_sequences(64).batch(4)))
        >>> batch["tokens"].shape, batch["segment_ids"][0, ::8]
        ((4, 64), array([1, 2, 2, 2, 2, 3, 3, 3], dtype=int32))
        >>> labelled = docs.map(lambda doc: doc | {"labels": [-100, *doc["tokens"][1:]]})
        >>> sequence = next(iter(labelled.pack_sequences(64, fields=["labels"], strategy="best_fit")))
        >>> sequence["tokens"][:3], sequence["labels"][:3]
        (array([100, 101, 102], dtype=uint16), array([-100,  101,  102]))
        """
        arguments = (length, key, strategy, lengths, block, too_long, separator, padding, extras, fields, multiple_of)
        return type(self)(_packed(self.stream.spec, SequenceRequest.packed(*arguments)))

    def batch_by_length(
        self,
        size: int | None = None,
        *,
        max_tokens: int | None = None,
        buckets: Sequence[int] = (),
        key: str = "tokens",
        lengths: str = "num_tokens",
        padding: float = 0,
        too_long: str = "refuse",
        remainder: str = "keep",
        alike: int = 8,
        block: int = 1 << 16,
    ) -> Self:
        """Group documents of similar length into batches, and pad each batch to its longest document.

        A rank gets a whole batch at each step: the field ``key``, of shape (num_documents, padded length), the longest
        document first unless there are ``buckets``; ``attention_mask`` of the same shape, false for padding;
        ``lengths`` of shape (num_documents,); and the other fields as in `batch`. Batches do not depend on the world
        size, and differ between epochs; states and `num_samples` count batches. Documents without tokens are left out.

        Parameters
        ----------
        size
            Maximum number of documents in a batch.
        max_tokens
            Maximum number of tokens in a batch, padding included: number of documents times padded length.
        buckets
            Ascending lengths to pad to, for batches of few shapes. The last bucket must fit the longest document.
            Documents of the next shorter bucket fill the last batch of a bucket.
        key
            The field with a document's tokens: an array of shape (num_tokens, ...).
        lengths
            The column of the index with the number of tokens of each document.
        padding
            The value that pads documents.
        too_long
            A document of more tokens than the last bucket, or ``max_tokens``, is an error before the run ("refuse"),
            left out ("drop"), or "cut" into rows of that length and a rest.
        remainder
            The last step of an epoch may have too few batches for all ranks: "keep" or "pad" it with repeats, marked
            true in ``__pad__``, or "drop" it.
        alike
            Number of consecutive batches of neighbouring lengths: the number of ranks or a multiple, so that ranks wait
            little for each other. ``alike`` is part of the order, and stays the same if the number of ranks changes.
        block
            Documents to sort together: the documents of a canonical node in this many positions of the order.

        Raises
        ------
        UsageError
            The index lacks the column, an argument is invalid, or `filter` or `batch` was called before.

        Examples
        --------
        >>> for batch in docs.shuffle(seed=0).batch_by_length(max_tokens=512, alike=1):
        ...     print(batch["tokens"].shape, batch["lengths"][:5])
        (13, 37) [37 36 35 34 33]
        (10, 47) [47 46 45 44 43]
        (17, 24) [24 23 22 21 20]
        """
        arguments = (size, max_tokens, buckets, key, lengths, padding, too_long, alike, block)
        spec = _packed(self.stream.spec, SequenceRequest.by_length(*arguments))
        batching = replace(Batching.of_arguments(1, None, remainder), verb="batch_by_length()", kind="by length")
        return type(self)(spec.in_batches(batching))

    def batch_segments(
        self, step: int, *, epoch: int = 0, rank: int | None = None, world_size: int | None = None
    ) -> BatchSegments:
        """Return the places of documents in the sequences of a rank's step, without reading data.

        As in `batch_ids`, the epoch began at position 0, and repeats are included. Each row is a piece of a document:
        its sequence in the batch, its segment in the sequence, its sample id, and its tokens.

        Raises
        ------
        UsageError
            Documents are not packed, or packed as they come (``extras=["document_ids"]`` shows the documents), or the
            step does not exist.

        Examples
        --------
        >>> segments = docs.shuffle(seed=0).pack_sequences(64).batch(2).batch_segments(0)
        >>> segments.rows, segments.ids, segments.stops - segments.starts
        (array([0, 0, 0, 0, 1, 1, 1]), array([10, 21, 19,  3, 39, 30,  8]), array([ 2, 35, 21,  6, 31, 18, 15]))
        """
        sequences = self.stream.batch_of_order("batch_segments", step, epoch, rank, world_size)
        return self.stream.spec.rows.segments_in(self.stream.resolved, epoch, sequences)


def _packed(spec: DatasetSpec, sequences: SequenceRequest) -> DatasetSpec:
    """Return a dataset that groups documents by their lengths; allowed once."""
    verb = sequences.verb
    if spec.rows.verb and spec.batching is None:
        msg = f"{verb} was called after {spec.rows.verb}: the documents are packed already"
        raise UsageError(msg, hint=f"remove {verb} or {spec.rows.verb}")
    if sequences.lengths is None:
        spec.refuse(verb, (*GROUPED, DIVIDED))
    elif any(isinstance(stage, Filter) for stage in spec.stages):
        msg = f"{verb} counts documents by the index, but was called after filter(), which counts as it reads"
        as_read = "" if sequences.packing.alike else ", or pack_sequences(lengths=None) packs what a filter keeps"
        raise UsageError(msg, hint=f"select() by columns of the index instead of filter(){as_read}")
    else:
        spec.refuse(verb, CHOSEN)
        if spec.num_samples > FOREVER // 2:
            msg = f"{verb} counts the sequences of an epoch, but this mixture has no end"
            raise UsageError(msg, hint="mix(epoch_size=...), or pack_sequences(lengths=None)")
    sequences.batcher(spec.source, spec.stages)  # raises an error for an impossible field here, not during iteration
    return replace(spec, rows=sequences)
