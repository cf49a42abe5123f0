"""Slices of sequences for the ranks of a context parallel group: joined, they are the batch of one rank."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.stream.test_pack_fields import FIELDS, LENGTH, SEPARATOR, check_fields, document_of, packed, written

import shoal
from shoal.errors import UsageError
from shoal.pipeline.stages.context_slices import ContextSlice
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning", "ignore::shoal.errors.MaskWarning")

EXTRAS = ["loss_mask", "cu_seqlens", "document_ids"]
WHOLE = ("cu_seqlens", "document_ids", "__pad__")
PADDINGS: dict[str, Any] = {"tokens": 0, "segment_ids": 0, "position_ids": 0, "loss_mask": False, **FIELDS}


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return written(tmp_path_factory.mktemp("documents") / "d", map(document_of, range(90)))


def slice_of(row: NDArray[Any], number: int, num_slices: int, kind: str) -> NDArray[Any]:
    """The published description: of 2n equal chunks, rank r has the r-th from the front and from the back."""
    if kind == "contiguous":
        return np.split(row, num_slices)[number]
    chunks = np.split(row, 2 * num_slices)
    return np.concatenate([chunks[number], chunks[-1 - number]])


def padded(batch: dict[str, Any], length: int) -> dict[str, Any]:
    """A batch of one rank, each sequence filled up with the padding of each field."""
    result: dict[str, Any] = {}
    for name, values in batch.items():
        if name in WHOLE:
            result[name] = values
            continue
        more = np.full((len(values), length - values.shape[1], *values.shape[2:]), PADDINGS[name], values.dtype)
        result[name] = np.concatenate([values, more], axis=1)
    if "cu_seqlens" in batch:
        segments = result["segment_ids"]
        begins = [np.flatnonzero(np.diff(row, prepend=-1)) + place * length for place, row in enumerate(segments)]
        result["cu_seqlens"] = np.concatenate([*begins, [segments.size]]).astype(np.int32)
    return result


def check_slices(whole: list[dict[str, Any]], sliced: list[list[dict[str, Any]]], kind: str = "zigzag") -> None:
    """Each rank of a group has its slice of each sequence, and nothing else."""
    num_slices = len(sliced)
    num_chunks = num_slices * (1 if kind == "contiguous" else 2)
    length = -(-LENGTH // num_chunks) * num_chunks
    for number, batches in enumerate(sliced):
        for batch, expected in zip(batches, whole, strict=True):
            assert batch.keys() == expected.keys()
            for name, values in padded(expected, length).items():
                rows = values
                if name not in WHOLE:
                    rows = np.stack([slice_of(row, number, num_slices, kind) for row in values])
                assert batch[name].dtype == rows.dtype, name
                assert np.array_equal(batch[name], rows), (name, number)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=12)
@given(
    num_slices=st.integers(2, 7),
    kind=st.sampled_from(["zigzag", "contiguous"]),
    num_parts=st.integers(1, 3),
    replicate=st.integers(1, 2),
    how=st.fixed_dictionaries(
        {
            "strategy": st.sampled_from(["concat", "best_fit", "first_fit"]),
            "separator": st.sampled_from([None, SEPARATOR]),
            "fields": st.sampled_from([(), FIELDS]),
            "extras": st.sampled_from([(), EXTRAS]),
        }
    ),
    batching=st.fixed_dictionaries(
        {
            "size": st.integers(1, 6),
            "remainder": st.sampled_from(["keep", "pad", "drop"]),
            "balance": st.sampled_from([None, "attention"]),
        }
    ),
)
def test_the_slices_of_a_group_are_the_sequences_of_a_rank(
    documents: Dataset,
    num_slices: int,
    kind: str,
    num_parts: int,
    replicate: int,
    how: dict[str, Any],
    batching: dict[str, Any],
) -> None:
    ds = packed(documents, **how).batch(batching["size"], remainder=batching["remainder"], balance=batching["balance"])
    sharing: dict[str, Any] = {
        "world_size": num_parts * num_slices * replicate,
        "replicate": replicate,
        "context_parallel": num_slices,
        "context_slices": kind,
    }
    rank = 0
    for part in range(num_parts):
        whole = list(ds.partition(rank=part, world_size=num_parts))
        sliced: list[list[dict[str, Any]]] = []
        for _ in range(num_slices):
            replicas = [list(ds.partition(rank=rank + replica, **sharing)) for replica in range(replicate)]
            sliced += replicas
            rank += replicate
        for replica in range(replicate):
            check_slices(whole, sliced[replica::replicate], kind)


@pytest.mark.parametrize("num_slices", [1, 2, 3, 8])
def test_the_zigzag_is_that_of_torch(num_slices: int) -> None:
    balancers = pytest.importorskip("torch.distributed.tensor.experimental._context_parallel._load_balancer")
    length = 2 * num_slices * 5
    places = balancers._HeadTailLoadBalancer(length, num_slices, "cpu")._generate_indices()[0].numpy()
    sequence = np.arange(length)[None]
    ours = np.concatenate([ContextSlice(number, num_slices).of_sequences(sequence)[0] for number in range(num_slices)])
    assert ours.tolist() == places.tolist()


def test_zigzag_slices_have_the_same_work_and_contiguous_slices_have_not() -> None:
    num_earlier = np.arange(1, 65)[None]
    work = {
        kind: [int(ContextSlice(number, 4, kind).of_sequences(num_earlier).sum()) for number in range(4)]
        for kind in ("zigzag", "contiguous")
    }
    assert len(set(work["zigzag"])) == 1
    assert work["contiguous"][3] > 4 * work["contiguous"][0]


def test_documents_packed_as_they_come_are_sliced_too(documents: Dataset) -> None:
    ds = packed(documents, lengths=None, block=16, extras=EXTRAS).batch(3, steps=9)
    for part in range(2):
        whole = list(ds.partition(rank=part, world_size=2))
        ranks = [ds.partition(rank=2 * part + number, world_size=4, context_parallel=2) for number in range(2)]
        sliced = [list(rank) for rank in ranks]
        check_slices(whole, sliced)
        assert ranks[0].state_dict() == ranks[1].state_dict()
        assert len(list(ranks[0])) == 9  # the next pass


def test_a_mixture_is_sliced_too(documents: Dataset, tmp_path: Path) -> None:
    more = written(tmp_path / "more", map(document_of, range(200, 260)))
    mixed = shoal.mix({"a": documents, "b": more}, weights={"a": 2, "b": 1}, epoch_size=150)
    ds = packed(mixed, extras=EXTRAS).batch(4)
    sliced = [list(ds.partition(rank=number, world_size=3, context_parallel=3)) for number in range(3)]
    check_slices(list(ds), sliced)


def test_single_sequences_are_sliced_too(documents: Dataset) -> None:
    ds = packed(documents, extras=["loss_mask"])
    sliced = [list(ds.partition(rank=number, world_size=2, context_parallel=2)) for number in range(2)]
    for sequence, *slices in zip(ds, *sliced, strict=True):
        for number, part in enumerate(slices):
            for name, values in part.items():
                assert np.array_equal(values, slice_of(sequence[name], number, 2, "zigzag")), name


def test_a_map_of_batches_sees_whole_sequences(documents: Dataset) -> None:
    def with_next(batch: dict[str, Any]) -> dict[str, Any]:
        check_fields(batch)
        nexts = np.roll(batch["tokens"], -1, axis=1)
        nexts[:, -1] = -1
        return {**batch, "nexts": nexts}

    ds = packed(documents).batch(4).map(with_next)
    sliced = [next(iter(ds.partition(rank=number, world_size=2, context_parallel=2))) for number in range(2)]
    whole = next(iter(ds))
    for number, batch in enumerate(sliced):
        assert np.array_equal(batch["nexts"], [slice_of(row, number, 2, "zigzag") for row in whole["nexts"]])


def test_a_state_counts_sequences_whatever_the_slices(documents: Dataset) -> None:
    """A state of two groups of two ranks is that of two ranks, and goes on in one group of four, or on one rank."""
    ds = packed(documents).batch(global_batch_size=8)

    def on(rank: int, world_size: int, num_slices: int) -> Dataset:
        return ds.partition(rank=rank, world_size=world_size, context_parallel=num_slices)

    ranks = [on(rank, 4, 2) for rank in range(4)]
    batches = [iter(rank) for rank in ranks]
    for batch in batches:
        next(batch), next(batch)
    state = ranks[0].state_dict()
    plain = ds.partition(rank=1, world_size=2)
    others = iter(plain)
    next(others), next(others)
    assert all(rank.state_dict() == state for rank in [*ranks, plain])
    assert state["position"] == 16

    ds.load_state_dict(state)
    rest = list(ds)
    sliced = []
    for rank in range(4):
        resumed = on(rank, 4, 4)
        resumed.load_state_dict(state)
        sliced.append(list(resumed))
    check_slices(rest, sliced)


def test_a_group_counts_once_in_certificates(documents: Dataset) -> None:
    ds = packed(documents).batch(4)
    ranks = [ds.partition(rank=rank, world_size=4, context_parallel=2) for rank in range(4)]
    for rank in ranks:
        list(rank)
    certificates = [rank.certificate() for rank in ranks]
    assert certificates[0] == certificates[1]
    assert certificates[2] == certificates[3]
    merged = shoal.merge_certificates(certificates[::2])
    assert "all of" in ds.check_certificate(merged)


def test_padding_is_counted(documents: Dataset) -> None:
    """A rank counts the whole sequences that it packs, with their padding to equal chunks."""
    whole = packed(documents).batch(4)
    part = whole.partition(rank=0, world_size=7, context_parallel=7)
    list(whole), list(part)
    before, after = whole.stats(), part.stats()
    assert after["num_tokens"] == before["num_tokens"]
    num_sequences = whole.num_samples
    assert after["num_padding_tokens"] - before["num_padding_tokens"] == num_sequences * (56 - LENGTH)


@pytest.mark.parametrize("form", ["numpy", "torch"])
def test_formats(documents: Dataset, form: str) -> None:
    if form == "torch":
        pytest.importorskip("torch")
    ds = packed(documents).batch(4)
    whole = next(iter(ds))
    batch = next(iter(ds.format(form).partition(rank=1, world_size=2, context_parallel=2)))
    for name, values in whole.items():
        rows = np.stack([slice_of(row, 1, 2, "zigzag") for row in values])
        assert np.array_equal(np.asarray(batch[name]), rows), name


def test_what_cannot_be_sliced_says_what_to_do(documents: Dataset) -> None:
    sharing: Any = {"rank": 0, "world_size": 4, "context_parallel": 2}
    shuffled = documents.shuffle(seed=0)
    for ds in (shuffled.batch(4), shuffled, shuffled.filter(bool, refill=True).batch(4, steps=3)):
        with pytest.raises(UsageError, match=r"not packed(.|\n)*pack_sequences\(\) before batch"):
            iter(ds.partition(**sharing))
    with pytest.raises(UsageError, match=r"batch_by_length\(\) pads each batch to its own length"):
        iter(shuffled.batch_by_length(4).partition(**sharing))
    ds = packed(documents).batch(4).partition(**sharing)
    with pytest.raises(UsageError, match=r"4 equal chunks, but the batch has 'x' of 47 tokens(.|\n)*shift labels"):
        next(iter(ds.map(lambda batch: {"x": batch["tokens"][:, :-1]})))
    with pytest.raises(UsageError, match="'tokens' of 48 tokens, 'x' of 44 tokens"):
        next(iter(ds.map(lambda batch: {"tokens": batch["tokens"], "x": batch["tokens"][:, :-4]})))
    with pytest.raises(UsageError, match="no arrays"):
        next(iter(ds.format("python")))
    with pytest.raises(UsageError, match="the batch is a tuple"):
        next(iter(ds.map(lambda batch: (batch["tokens"], batch["labels"]))))
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"context_parallel": 3}, "context_parallel=3 does not divide the 4 ranks"),
        ({"context_parallel": 4, "replicate": 2}, r"replicate=2 \* context_parallel=4 does not divide the 4 ranks"),
        ({"context_parallel": 0}, "context_parallel must be at least 1; got 0"),
        ({"context_parallel": 1.5}, "context_parallel must be an integer"),
        ({"context_slices": "zig"}, "must be one of 'zigzag', 'contiguous', 'documents'"),
    ]
    for arguments, message in wrong:
        with pytest.raises(UsageError, match=message):
            documents.partition(**{**sharing, **arguments})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=15)
@given(
    num_slices=st.sampled_from([2, 3, 4]),
    strategy=st.sampled_from(["concat", "best_fit", "first_fit"]),
    separator=st.sampled_from([None, SEPARATOR]),
    lengths=st.sampled_from(["num_tokens", None]),
)
def test_documents_are_sliced_one_by_one(
    documents: Dataset, num_slices: int, strategy: str, separator: int | None, lengths: str | None
) -> None:
    """The published description: each document, padded to 2n equal chunks, is sliced as a sequence of its own."""
    how: Any = {"strategy": strategy, "separator": separator, "lengths": lengths, "extras": EXTRAS, "block": 32}
    ds = packed(documents, **how, multiple_of=2 * num_slices).batch(3, steps="apart" if lengths is None else None)
    sharing: Any = {"world_size": num_slices, "context_parallel": num_slices, "context_slices": "documents"}
    ranks = [list(ds.partition(rank=rank, **sharing)) for rank in range(num_slices)]
    for whole, *slices in zip(ds, *ranks, strict=True):
        borders, places = whole["cu_seqlens"], np.arange(whole["tokens"].size)
        for number, batch in enumerate(slices):
            parts = [slice_of(places[low:high], number, num_slices, "zigzag") for low, high in pairwise(borders)]
            for name, values in whole.items():
                rows = values
                if name not in WHOLE:
                    flat = values.reshape(-1, *values.shape[2:])
                    rows = flat[np.concatenate(parts)].reshape(len(values), -1, *values.shape[2:])
                assert np.array_equal(batch[name], rows), name
            assert (batch["cu_seqlens"] // num_slices)[1:].tolist() == np.cumsum(list(map(len, parts))).tolist()


def test_a_batch_without_sequences_has_empty_slices() -> None:
    places = ContextSlice(1, 2, "documents").of_documents(np.zeros((0, 16), dtype=np.int32))
    assert places.shape == (0, 8)


def test_documents_without_room_for_equal_chunks_are_refused(documents: Dataset) -> None:
    sharing: Any = {"rank": 0, "world_size": 4, "context_parallel": 4, "context_slices": "documents"}
    for multiple in (1, 4, 12):
        with pytest.raises(UsageError, match=rf"multiple_of={multiple}\) does not pad(.|\n)*multiple_of=8"):
            iter(packed(documents, multiple_of=multiple).batch(4).partition(**sharing))
    ds = packed(documents, multiple_of=8).batch(4).partition(**sharing)
    with pytest.raises(UsageError, match="by the field 'segment_ids', but the batch has no such field"):
        next(iter(ds.map(lambda batch: {"tokens": batch["tokens"]})))
    with pytest.raises(UsageError, match="8 equal chunks, but a document has 20 tokens"):
        next(iter(ds.map(lambda batch: {"segment_ids": np.repeat([[1, 2]], [20, 28], axis=1)})))
