"""The fields of every state and certificate of shoal, for checks, docs/states.md and fuzzing.

Unknown fields of an order, from a newer shoal, may be any JSON value; the comparison of orders refuses unknown fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.order.seeds import MAX_SEED
from shoal.order.states.forms import (
    MAX_POSITION,
    ByName,
    Digits,
    Either,
    Field,
    Fields,
    ListOf,
    OneOf,
    Plain,
    Row,
    Switch,
    Text,
    Whole,
)

_COUNT, _ORDINAL, _SEED, _EPOCH, _TEXT = Whole(), Whole(least=1), Whole(MAX_SEED), Whole(MAX_SEED), Text()
_NONE = OneOf((None,))
_COUNT_OR_NONE = Either((_COUNT, _NONE))
_NUMBER = Plain(MAX_POSITION)
_WEIGHTS = ByName(Whole(1 << 40))  # the maximum sum of weights
_TOKENIZERS = ByName(ListOf(_TEXT))
_SEGMENTS = Text("[0-9]{1,18}-[0-9a-f]+", "a number of segments and their digest")
_SEQUENCES = Whole(1 << 48)
_GAPS = ListOf(Row({"epoch": _EPOCH, "start": _COUNT, "stop": _ORDINAL}))
_SHARDS = Either((_COUNT, ByName(_COUNT)))
_SNAPSHOT = Either((_TEXT, ByName(_TEXT)))
_SPANS = ListOf(Row({"start": _COUNT, "stop": _ORDINAL}))


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of state, or the certificate.

    Parameters
    ----------
    what
        Word for this kind in messages: "state".
    title
        Noun after "a": "state of a dataset".
    call
        Call that returns a state of this kind.
    taken_by
        Hint that names the calls that load this kind.
    fields
        Fields of this kind.
    version
        Field with the version, and the current version; None for a kind without a version.
    instead
        End of the hint for an old version: the replacement.
    """

    what: str
    title: str
    call: str
    taken_by: str
    fields: Fields
    version: tuple[str, int] | None = None
    instead: str = ""


_POSITIONS = {"delivered": Field(_TEXT, "digest of the positions chosen after `shuffle`", is_optional=True)}
_CHOSEN = {
    "stored": Field(_TEXT, "digest of the samples chosen before `shuffle`", is_optional=True),
    "sampled": Field(_TEXT, "digest of the rule of `sample`", is_optional=True),
    **_POSITIONS,
}

_SEQUENCE_CHANGES = Either((
    ListOf(Row({"last epoch": _EPOCH, "last sequence": _COUNT, "digest": _TEXT, "number": _ORDINAL}), least=1),
    ListOf(Row({"epoch": _EPOCH, "sequence": _COUNT, "ramp": _COUNT, "weights": _WEIGHTS}), least=1),
))  # fmt: skip
PACKING = Fields(
    {
        "length": Field(_ORDINAL, "tokens of a sequence", is_optional=True),
        "strategy": Field(_TEXT, "strategy of `pack_sequences`", is_optional=True),
        "by": Field(_TEXT, "column with the group of each sample, of batches by column", is_optional=True),
        "size": Field(
            _COUNT_OR_NONE, "maximum documents of a batch by length; samples or classes by column", is_optional=True
        ),
        "sizes": Field(_TEXT, "digest of the sizes of batches by group", is_optional=True),
        "each": Field(_ORDINAL, "samples of each class in a batch", is_optional=True),
        "limits": Field(ByName(_NUMBER), "limits of costs in a batch, by column", is_optional=True),
        "too_large": Field(_TEXT, "treatment of samples that cost more than a limit", is_optional=True),
        "look_ahead": Field(_ORDINAL, "samples that may wait for a batch", is_optional=True),
        "max_tokens": Field(_COUNT_OR_NONE, "maximum number of tokens in a batch by length", is_optional=True),
        "buckets": Field(ListOf(_ORDINAL), "lengths to pad documents to", is_optional=True),
        "alike": Field(_COUNT, "consecutive batches of similar lengths, or of the same groups", is_optional=True),
        "block": Field(_ORDINAL, "documents to pack together", is_optional=True),
        "too_long": Field(_TEXT, "treatment of documents longer than the limit", is_optional=True),
        "separated": Field(OneOf((True,)), "lengths do not count the separators of documents", is_optional=True),
        "multiple_of": Field(_ORDINAL, "documents take a multiple of this number of tokens", is_optional=True),
        "lengths": Field(_TEXT, "digest of the lengths of all documents", is_optional=True),
        "changes": Field(_SEQUENCE_CHANGES, "changes of weights at sequences; a digest if many", is_optional=True),
    },
    others=_NUMBER,
    title="the packing",
)
PARTS = Fields(
    {"most_parts": Field(_ORDINAL, "most parts that `flat_map` makes of a sample")},
    others=_NUMBER,
    title="the parts of samples",
)
_PACKED = {"packed": Field(PACKING, "how documents are packed into sequences or batches by length", is_optional=True)}
_NAME = {
    "name": Field(_TEXT, "name of the order"),
    "version": Field(_NUMBER, "version of the order; a state of another version is refused", is_optional=True),
}

WINDOW = Fields(
    {
        **_NAME,
        "chunks": Field(_COUNT, "chunks of the window", is_optional=True),
        "num_canonical_nodes": Field(_COUNT, "parts of the dataset to mix separately", is_optional=True),
        "extents_per_chunk": Field(_COUNT, "extents of the index in a chunk", is_optional=True),
        **_CHOSEN,
        **_PACKED,
    },
    others=_NUMBER,
    title="the window order",
)
GROWING = Fields(
    {
        **_NAME,
        "window": Field(_COUNT, "bytes of the window"),
        "chunk": Field(_COUNT_OR_NONE, "bytes of a chunk; null for a part of the window"),
        "num_canonical_nodes": Field(_COUNT_OR_NONE, "parts to mix separately; null for the default number"),
        **_POSITIONS,
    },
    others=_NUMBER,
    title="the growing order",
)
OTHER_ORDER = Fields(
    {
        **_NAME,
        "extents_per_chunk": Field(_COUNT_OR_NONE, "extents in a chunk; null for whole shards", is_optional=True),
        **_CHOSEN,
        **_PACKED,
    },
    others=_NUMBER,
    title="another order, with its own parameters",
)
CHANGES = Either((
    ListOf(Row({"position": _COUNT, "digest": _TEXT}), least=1),
    Either((
        ListOf(Row({"last position": _COUNT, "digest": _TEXT, "number of changes": _ORDINAL}), least=1),
        ListOf(Row({"position": _COUNT, "ramp": _COUNT, "weights": _WEIGHTS}), least=1),
    )),
))  # fmt: skip
_MIXED = {
    **_NAME,
    "choice": Field(_TEXT, "how the source of each position is chosen"),
    "run": Field(_ORDINAL, "consecutive positions from one source"),
    "chosen": Field(ByName(_NUMBER), "parameters of the choice of another library", is_optional=True),
    "ends": Field(Either((_ORDINAL, OneOf(("first", "all", "forever")))), "end of an epoch, or its size"),
    "counted": Field(OneOf((True,)), "weights are exact numbers of samples", is_optional=True),
    "changes": Field(CHANGES, "changes of weights; digests if many"),
}


def _order_forms() -> Mapping[str, Fields]:
    return {"mix": MIXTURE, "window": WINDOW, "growing": GROWING}


def _source_forms() -> Mapping[str, Fields]:
    return {"mix": NESTED}


ORDER = Switch("name", _order_forms, OTHER_ORDER)
SOURCE = Fields(
    {
        "index": Field(_TEXT, "fingerprint of the dataset"),
        "seed": Field(_SEED, "seed of the order"),
        "order": Field(ORDER, "order of the dataset"),
    },
    title="a source",
)
_SOURCES = {"sources": Field(ByName(Switch("name", _source_forms, SOURCE)), "sources by name")}
NESTED = Fields({**_MIXED, **_SOURCES, "seed": Field(_SEED, "seed of the choice")}, title="a nested mixture")
MIXTURE = Fields({**_MIXED, **_SOURCES, **_POSITIONS, **_PACKED}, others=_NUMBER, title="a mixture")

_DEALT = {
    "epoch": Field(_EPOCH, "epoch of the global batches"),
    "position": Field(_COUNT, "first position of the global batches"),
    "global_batch": Field(_ORDINAL, "size of a global batch"),
    "world_size": Field(_ORDINAL, "number of ranks"),
    "without": Field(_SPANS, "positions left out of the epoch", is_optional=True),
    "packing": Field(
        Either((PACKING, PARTS)),
        "how each rank packs documents as they come, or divides samples",
        is_optional=True,
    ),
    "sequences": Field(
        ListOf(_SEQUENCES), "sequences taken from documents, or parts of the sample, after `taken`", is_optional=True
    ),
}
RANK_DEAL = Fields(
    {**_DEALT, "rank": Field(_COUNT, "the rank"), "taken": Field(_COUNT, "samples taken from the share of the rank")},
    title="progress of one rank",
)
DEAL = Fields(
    {
        **_DEALT,
        "taken": Field(_COUNT, "samples that each rank has taken at least"),
        "ahead": Field(ListOf(_COUNT_OR_NONE), "how many more samples each rank has taken; null for its whole share"),
    },
    title="progress of all ranks",
)

NEXT = Fields(
    {
        "epoch": Field(_EPOCH, "the first epoch of this dataset"),
        "index": Field(Either((_TEXT, ByName(_TEXT))), "its fingerprint; by source for a mixture"),
        "shards": Field(_SHARDS, "its number of shards; by source for a mixture", is_optional=True),
        "snapshot": Field(_SNAPSHOT, "its snapshot of a table; by source for a mixture", is_optional=True),
    },
    title="the next dataset",
)

STATE = Kind(
    "state",
    "state of a dataset",
    "state_dict()",
    "load it with load_state_dict() of a dataset of shoal.open() or shoal.mix(), or of its loader",
    Fields(
        {
            "version": Field(_COUNT, "version of states"),
            "epoch": Field(_EPOCH, "epoch of the next sample"),
            "position": Field(_COUNT, "samples of the epoch delivered over all ranks"),
            "seed": Field(_SEED, "seed of the order"),
            "order": Field(ORDER, "the order, and everything else that selects samples"),
            "index": Field(_TEXT, "fingerprint of the dataset"),
            "shards": Field(_SHARDS, "shards of the dataset; by source for a mixture", is_optional=True),
            "snapshot": Field(_SNAPSHOT, "snapshot of a table; by source for a mixture", is_optional=True),
            "next": Field(NEXT, "the dataset of later epochs, if it has grown", is_optional=True),
            "segments": Field(_SEGMENTS, "identity of the segments read, in the growing order", is_optional=True),
            "tokenizers": Field(_TOKENIZERS, "digests by source; '' for a single dataset", is_optional=True),
            "without": Field(_GAPS, "positions left out (`without`)", is_optional=True),
            "refill": Field(ListOf(Either((RANK_DEAL, DEAL))), "progress of ranks that fill batches", is_optional=True),
            "check": Field(_TEXT, "checksum of all fields"),
        },
        others=None,
        title="the state of a dataset",
    ),
    ("version", 3),
    ": ds.state_at(position, epoch=...) with the numbers in the state makes a new state",
)

_SAMPLE_SOURCE = Fields(
    {
        "next": Field(_COUNT, "number of the next sample"),
        "own": Field(Plain(), "result of the source's own `state_dict()`", is_optional=True),
    },
    title="an iterable or a function",
)
_FILE = Row({"modified": _COUNT, "name": _TEXT})
_FILES = Fields(
    {
        "files": Field(ByName(_TEXT), "fingerprints of the files to read again"),
        "order": Field(OneOf(("name", "mtime")), "order of the files"),
        "at": Field(Either((_FILE, _NONE)), "the current file"),
        "record": Field(Whole(least=-1), "the next record of the file; -1 at the end"),
        "late": Field(
            Either((Row({"modified": _COUNT, "name": _TEXT, "record": _COUNT}), _NONE)),
            "the current late file, and its next record",
        ),
        "behind": Field(ListOf(_FILE), "late files to read"),
        "listed_ns": Field(_COUNT, "time of the last listing"),
        "fresh": Field(ListOf(_TEXT), "files with later times"),
    },
    title="followed files",
)

_BUFFER = Either((Row({"samples": _ORDINAL, "null": _NONE}), Row({"null": _NONE, "bytes": _ORDINAL})))


def _live_fields(source: Fields, places: ListOf) -> Fields:
    fields = {
        "live": Field(_COUNT, "version of states of live streams"),
        "kind": Field(_TEXT, "kind of the source"),
        "rank": Field(_COUNT, "the rank"),
        "world_size": Field(_ORDINAL, "number of ranks"),
        "seed": Field(_SEED, "seed of the shuffle"),
        "buffer": Field(_BUFFER, "size of the shuffle buffer, in samples or in bytes"),
        "taken": Field(_COUNT, "samples taken from the source"),
        "steps": Field(_COUNT, "samples taken out of the buffer"),
        "hole": Field(_COUNT_OR_NONE, "the slot of the last sample taken out of the buffer"),
        "pending": Field(_COUNT, "samples of the unfinished batch"),
        "again": Field(_COUNT, "samples of an earlier run to deliver first"),
        "source": Field(source, "position of the source"),
        "places": Field(places, "places of all taken samples that are not delivered"),
        "contents": Field(_TEXT, "these samples, with `contents=True`", is_optional=True),
        "check": Field(_TEXT, "checksum of all fields"),
    }
    return Fields(fields, others=None)


_BY_NUMBER = _live_fields(_SAMPLE_SOURCE, ListOf(_COUNT))
_BY_FILE = _live_fields(_FILES, ListOf(Row({"name": _TEXT, "record": _COUNT})))
LIVE_SOURCES = Switch("kind", lambda: {"iterable": _BY_NUMBER, "callable": _BY_NUMBER, "followed": _BY_FILE})
LIVE = Kind(
    "state",
    "state of a live stream",
    "state_dict()",
    "load it with load_state_dict() of a stream of shoal.from_iterable(), from_callable() or follow()",
    _BY_NUMBER,
    ("live", 1),
)

_DELIVERED = Fields(
    {
        "start": Field(_COUNT, "first position"),
        "end": Field(_COUNT, "position after the last sample"),
        "num_samples": Field(_COUNT, "samples delivered"),
        "sum": Field(Text("[0-9a-f]{16}", "16 hexadecimal digits"), "sum of the hashes of the samples"),
        "index": Field(_TEXT, "fingerprint of the dataset of this epoch, if an earlier one", is_optional=True),
    },
    title="a part of an epoch",
)
CERTIFICATE = Kind(
    "certificate",
    "certificate",
    "certificate()",
    "ds.check_certificate() and shoal.merge_certificates() take a certificate",
    Fields(
        {
            "version": Field(_COUNT, "version of certificates"),
            "index": Field(_TEXT, "fingerprint of the dataset"),
            "seed": Field(_SEED, "seed of the order"),
            "order": Field(ORDER, "the order, as in a state"),
            "checksums": Field(_TEXT, "checksums in the sums: of records, of extents, mixed or none"),
            "epochs": Field(ByName(_DELIVERED, Digits(_EPOCH)), "samples delivered, by epoch"),
            "without": Field(_GAPS, "positions left out (`without`)", is_optional=True),
        },
        others=None,
    ),
    ("version", 1),
)

WORKER = Kind(
    "state",
    "state of one worker of torch's loader",
    "state_dict()",
    "load it with shoal.torch.IterableDataset in the same worker and rank, of as many workers and ranks",
    Fields(
        {
            "start": Field(STATE.fields, "state of the dataset at the start of the epoch"),
            "step": Field(_COUNT, "items made by the worker"),
            "worker": Field(_COUNT, "the worker"),
            "num_workers": Field(_ORDINAL, "number of workers"),
            "rank": Field(_COUNT, "the rank"),
            "world_size": Field(_ORDINAL, "number of ranks"),
        }
    ),
)
PART = Kind(
    "state",
    "state of a dataset of Hugging Face made by to_hf()",
    "state_dict()",
    "load it with load_state_dict() of ds.to_hf()",
    Fields(
        {
            "type": Field(OneOf(("shoal",)), "always shoal"),
            "part": Field(_COUNT, "the part of the samples"),
            "num_parts": Field(_ORDINAL, "number of parts"),
            "epoch": Field(_EPOCH, "epoch"),
            "start": Field(Either((STATE.fields, _NONE)), "state of the dataset at the start of the epoch"),
            "taken": Field(_COUNT, "samples yielded by the part"),
        }
    ),
)

KINDS = (STATE, LIVE, CERTIFICATE, WORKER, PART)
