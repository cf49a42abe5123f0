"""Documents packed into sequences: every token once, at any world size, through any chain of resumes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import StateError, UsageError
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore:a window of")

NUM_DOCUMENTS, LENGTH = 400, 48
SEPARATOR = 10**6


def tokens_of(document: int) -> list[int]:
    """Tokens that say what they are: the document and the place in it."""
    size = int(np.random.default_rng(document).integers(0, 80))
    return [document * 100 + place for place in range(size)]


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return written(tmp_path_factory.mktemp("documents") / "d", range(NUM_DOCUMENTS))


def written(directory: Path, numbers: Iterable[int]) -> Dataset:
    samples = ({"tokens": (found := tokens_of(number)), "num_tokens": len(found)} for number in numbers)
    shoal.pack.pack(samples, directory, format="jsonl", shard_bytes="8KiB", extent_bytes=512, columns=["num_tokens"])
    return shoal.open(directory)


def packed(documents: Dataset, strategy: str = "best_fit", **how: Any) -> Dataset:
    return documents.shuffle(seed=1, window="8KiB", chunk="1KiB").pack_sequences(
        LENGTH, strategy=strategy, **{"block": 64, **how}
    )


ALL_TOKENS = Counter(token for document in range(NUM_DOCUMENTS) for token in tokens_of(document))


def tokens_in(batch: dict[str, Any]) -> Counter[int]:
    """The tokens of the sequences of a batch that are no repeats."""
    kept = ~batch.get("__pad__", np.zeros(len(batch["tokens"]), dtype=bool))
    return Counter(batch["tokens"][kept][batch["segment_ids"][kept] > 0].tolist())


@pytest.mark.parametrize("strategy", ["concat", "best_fit"])
def test_segments_are_documents(documents: Dataset, strategy: str) -> None:
    for batch in packed(documents, strategy).batch(5):
        for tokens, segments, positions in zip(
            *(batch[n] for n in ("tokens", "segment_ids", "position_ids")), strict=True
        ):
            assert len(tokens) == LENGTH
            for segment in range(1, segments.max() + 1):
                mine = segments == segment
                assert np.flatnonzero(mine).tolist() == list(range(mine.argmax(), mine.argmax() + mine.sum()))
                assert len(set((tokens[mine] // 100).tolist())) == 1
                assert positions[mine].tolist() == list(range(mine.sum()))
                if strategy == "best_fit" and len(whole := tokens_of(int(tokens[mine][0] // 100))) <= LENGTH:
                    assert tokens[mine].tolist() == whole
            assert not tokens[segments == 0].any()


def test_a_state_resumes_to_the_very_sequence(documents: Dataset) -> None:
    whole = [batch["tokens"].tolist() for batch in packed(documents).batch(4)]
    for stop in (1, 5, len(whole) - 1):
        first = packed(documents).batch(4)
        for _ in zip(range(stop), first, strict=False):
            pass
        rest = packed(documents).batch(4)
        rest.load_state_dict(first.state_dict())
        assert [batch["tokens"].tolist() for batch in rest] == whole[stop:]
    assert len(json.dumps(first.state_dict())) < 1024
    again = packed(documents).batch(4)
    again.set_epoch(1)
    assert [batch["tokens"].tolist() for batch in again] != whole


def test_single_sequences_are_those_of_batches(documents: Dataset) -> None:
    alone = [sequence["tokens"].tolist() for sequence in packed(documents)]
    assert alone == [row for batch in packed(documents).batch(7) for row in batch["tokens"].tolist()]
    assert len(alone) == packed(documents).num_samples == len(packed(documents))


def test_a_global_batch_does_not_depend_on_the_world_size(documents: Dataset) -> None:
    def steps(world_size: int, balance: str | None = None) -> list[set[tuple[int, ...]]]:
        batched = packed(documents).batch(global_batch_size=12, remainder="drop", balance=balance)
        ranks = [batched.partition(rank=r, world_size=world_size) for r in range(world_size)]
        return [
            {tuple(row) for batch in batches for row in batch["tokens"].tolist()}
            for batches in zip(*ranks, strict=True)
        ]

    assert steps(1) == steps(2) == steps(4) == steps(1, "attention") == steps(3, "attention") == steps(4, "attention")


def test_balanced_ranks_have_about_as_much_to_compute(documents: Dataset) -> None:
    def spread(balance: str | None) -> float:
        batched = packed(documents, block=256).batch(8, remainder="drop", balance=balance)
        ranks = [batched.partition(rank=rank, world_size=4) for rank in range(4)]
        sums = [
            [sum(float((np.bincount(row)[1:] ** 2).sum()) for row in batch["segment_ids"]) for batch in batches]
            for batches in zip(*ranks, strict=True)
        ]
        return float(np.mean([max(each) / np.mean(each) for each in sums]))

    assert spread("attention") < 1.03
    assert spread(None) > 1.05


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torch_gets_the_same_through_workers(documents: Dataset, num_workers: int) -> None:
    torch = pytest.importorskip("shoal.torch", reason="torch is not installed", exc_type=ImportError)
    wanted = [batch["tokens"].tolist() for batch in packed(documents).batch(4)]
    loader = torch.DataLoader(packed(documents).batch(4), num_workers=num_workers)
    found = []
    for batch in loader:
        found.append(batch["tokens"].tolist())
        if len(found) == 3:
            break
    state = loader.state_dict()
    loader = torch.DataLoader(packed(documents).batch(4), num_workers=num_workers)
    loader.load_state_dict(state)
    found += [batch["tokens"].tolist() for batch in loader]
    assert found == wanted


def test_certificates_of_ranks_add_up(documents: Dataset) -> None:
    ranks = [packed(documents).batch(4).partition(rank=rank, world_size=3) for rank in range(3)]
    for rank in ranks:
        for _ in rank:
            pass
    whole = shoal.merge_certificates(rank.certificate() for rank in ranks)
    packed(documents).check_certificate(whole)
    with pytest.raises(StateError, match="fewer than expected"):
        packed(documents).check_certificate(ranks[0].certificate())


def test_separators_end_documents(documents: Dataset) -> None:
    found: Counter[int] = Counter()
    for batch in packed(documents, "concat", separator=SEPARATOR, extras=["loss_mask"]).batch(8):
        kept = batch["tokens"][batch["segment_ids"] > 0]
        found += Counter(kept.tolist())
        assert np.array_equal(batch["loss_mask"], (batch["tokens"] != SEPARATOR) & (batch["segment_ids"] > 0))
    assert found == ALL_TOKENS + Counter({SEPARATOR: NUM_DOCUMENTS})


def test_sequences_of_a_mixture(documents: Dataset, tmp_path: Path) -> None:
    more = written(tmp_path / "more", range(NUM_DOCUMENTS, NUM_DOCUMENTS + 50))
    mixed = shoal.mix({"a": documents, "b": more}, repeat={"a": 1, "b": 1}, seed=2).pack_sequences(LENGTH, block=64)
    found: Counter[int] = Counter()
    for rank in range(2):
        for batch in mixed.batch(3).partition(rank=rank, world_size=2):
            found += tokens_in(batch)
    assert found == ALL_TOKENS + Counter(t for d in range(NUM_DOCUMENTS, NUM_DOCUMENTS + 50) for t in tokens_of(d))


def test_weights_of_a_mixture_may_change_behind_the_documents_in_work(documents: Dataset, tmp_path: Path) -> None:
    more = written(tmp_path / "more", range(NUM_DOCUMENTS, 2 * NUM_DOCUMENTS))

    def mixed(at: int | None = None) -> Dataset:
        ds = shoal.mix({"a": documents, "b": more}, weights={"a": 1, "b": 1}, seed=2).shuffle(seed=1)
        if at is not None:
            ds = ds.reweight(at=at, weights={"a": 3, "b": 1})
        return ds.pack_sequences(LENGTH, strategy="best_fit", block=64).batch(4)

    before = mixed()
    first = [batch["tokens"].tolist() for _, batch in zip(range(6), before, strict=False)]
    state = before.state_dict()
    changed = mixed(200)
    changed.load_state_dict(state)
    assert first + [b["tokens"].tolist() for b in changed] == [b["tokens"].tolist() for b in mixed(200)]
    with pytest.raises(StateError, match="the weights before position 64 differ"):
        mixed(50).load_state_dict(state)
    with pytest.raises(UsageError, match="this mixture has no end"):
        next(iter(shoal.mix({"a": documents}, ends="forever", seed=2).pack_sequences(LENGTH)))


def test_what_cannot_be_packed_is_refused(documents: Dataset, tars: Dataset) -> None:
    with pytest.raises(UsageError, match="the index has no column 'num_tokens'"):
        next(iter(tars.pack_sequences(8)))
    with pytest.raises(UsageError, match="was called after filter") as found:
        documents.filter(bool).pack_sequences(8)
    assert "select()" in found.value.hint
    assert "lengths=None" in found.value.hint
    with pytest.raises(UsageError, match="was called after batch"):
        documents.batch(3).pack_sequences(8)
    with pytest.raises(UsageError, match="packed already"):
        documents.pack_sequences(8).pack_sequences(8)
    with pytest.raises(UsageError, match=r"(?s)map\(\) works on documents, .* only map\(\) works on batches"):
        documents.pack_sequences(8).map(dict)
    with pytest.raises(UsageError, match=r"did you mean 'best_fit'"):
        documents.pack_sequences(8, strategy="bestfit")
    with pytest.raises(UsageError, match=r"balance='memory'\) weighs samples by a column, but was called"):
        documents.pack_sequences(8).batch(8, balance="memory")
    for unknown in (documents, documents.pack_sequences(8, lengths=None)):
        with pytest.raises(UsageError, match=r"by lengths in the index, but there are none"):
            unknown.batch(8, balance="attention")
    with pytest.raises(UsageError, match=r"neighbours=1\)"):
        documents.pack_sequences(8).batch(8, balance="attention", neighbours=1)
    for extras in (["mask"], "mask"):
        with pytest.raises(UsageError, match="got 'mask'"):
            documents.pack_sequences(8, extras=extras)
    with pytest.raises(UsageError, match=r"key='segment_ids'\): sequences have a field of this name"):
        documents.pack_sequences(8, key="segment_ids")
    wrong: Any
    for wrong in ("x", 1.5):
        with pytest.raises(UsageError, match="separator must be an integer"):
            documents.pack_sequences(8, separator=wrong)
        with pytest.raises(UsageError, match="padding must be an integer"):
            documents.pack_sequences(8, padding=wrong)
    empty = [number for number in range(NUM_DOCUMENTS) if not tokens_of(number)]
    with pytest.raises(UsageError, match=rf"makes no sequence of {len(empty)} documents: the documents have no tokens"):
        list(documents.select(empty).shuffle(seed=0).pack_sequences(8))
    shorter = documents.map(lambda sample: {"tokens": sample["tokens"][:3]}).pack_sequences(8)
    with pytest.raises(UsageError, match=r"has 3 tokens, but .* according to the index"):
        list(shorter)


def test_documents_that_are_too_long(documents: Dataset) -> None:
    longer = [document for document in range(NUM_DOCUMENTS) if len(tokens_of(document)) > LENGTH]
    found: Counter[int] = Counter()
    for batch in packed(documents, too_long="drop").batch(8):
        found += tokens_in(batch)
    assert found == ALL_TOKENS - Counter(token for document in longer for token in tokens_of(document))
    with pytest.raises(
        UsageError, match=rf"has {max(len(tokens_of(d)) for d in longer)} tokens, but a sequence has {LENGTH}"
    ):
        next(iter(packed(documents, too_long="refuse")))
    with pytest.raises(UsageError, match=r"did you mean 'refuse'"):
        packed(documents, too_long="refused")


def test_states_of_other_packings_are_refused(documents: Dataset) -> None:
    state = packed(documents).state_dict()
    for other, says in (
        (packed(documents, "concat"), r"pack_sequences\(strategy=.*pack_sequences\(strategy='concat'\)"),
        (packed(documents, block=32), r"this stream has pack_sequences\(block=32\)\n"),
        (packed(documents, separator=1), "another lengths= or separator="),
        (documents.shuffle(seed=1, window="8KiB", chunk="1KiB"), "ungrouped documents"),
        (documents.shuffle(seed=1, window="8KiB", chunk="1KiB").batch_by_length(8), r"has batch_by_length\(\)"),
    ):
        with pytest.raises(StateError, match=says) as found:
            other.load_state_dict(state)
        assert "give pack_sequences() the arguments" in found.value.hint
        assert "shuffle()" not in found.value.hint
    with pytest.raises(StateError, match="the state is of documents"):
        packed(documents).load_state_dict(documents.shuffle(seed=1, window="8KiB", chunk="1KiB").state_dict())


@pytest.mark.parametrize("strategy", ["concat", "best_fit"])
def test_tokens_and_cuts_are_counted(documents: Dataset, strategy: str) -> None:
    dataset = packed(documents, strategy).batch(4)
    num_sequences = sum(len(batch["tokens"]) for batch in dataset)
    stats = dataset.stats()
    assert stats["num_tokens"] == ALL_TOKENS.total()
    assert stats["num_tokens"] + stats["num_padding_tokens"] == num_sequences * LENGTH
    num_longer = sum(len(tokens_of(document)) > LENGTH for document in range(NUM_DOCUMENTS))
    assert (
        stats["num_cut_documents"] == num_longer if strategy == "best_fit" else stats["num_cut_documents"] > num_longer
    )


def test_batches_may_be_tensors(documents: Dataset) -> None:
    torch = pytest.importorskip("torch")
    batch = next(iter(packed(documents, extras=["cu_seqlens"]).batch(4).format("torch")))
    assert batch["tokens"].shape == (4, LENGTH)
    assert batch["segment_ids"].dtype == torch.int32
    assert batch["cu_seqlens"][-1] == 4 * LENGTH


def test_tables_have_no_column_of_another_length(documents: Dataset) -> None:
    pytest.importorskip("pyarrow")
    assert len(next(iter(packed(documents, extras=["loss_mask"]).batch(4).format("arrow")))) == 4
    with pytest.raises(UsageError, match=r"columns of one length, but the columns have: tokens 4, .* cu_seqlens"):
        next(iter(packed(documents, extras=["cu_seqlens"]).batch(4).format("arrow")))


@pytest.mark.parametrize("lengths", ["num_tokens", None])
def test_a_sequence_of_separators_alone_has_the_type_of_all_others(tmp_path: Path, lengths: str | None) -> None:
    sizes = [3, 0, 0, 0, 0, 0, 0, 0, 0, 5]
    samples = ({"tokens": list(range(size)), "num_tokens": size} for size in sizes)
    shoal.pack.pack(samples, tmp_path / "d", format="jsonl", columns=["num_tokens"])
    ds = shoal.open(tmp_path / "d").pack_sequences(4, separator=7, lengths=lengths)
    batches = list(ds.batch(1))
    assert [7, 7, 7, 7] in [batch["tokens"][0].tolist() for batch in batches]
    assert {batch["tokens"].dtype.str for batch in batches} == {"<i8"}


def test_a_column_of_names_is_no_column_of_lengths(tmp_path: Path) -> None:
    samples = ({"tokens": [1, 2], "kind": kind, "num_tokens": 2} for kind in ("book", "page", "page"))
    shoal.pack.pack(samples, tmp_path / "d", format="jsonl", columns=["num_tokens", "kind"])
    ds = shoal.open(tmp_path / "d")
    message = "the column 'kind' holds names, such as 'book', and no counts of tokens"
    for call in (
        lambda: ds.pack_sequences(8, lengths="kind").ids(),
        lambda: ds.batch_by_length(8, lengths="kind").ids(),
        lambda: shoal.mix({"a": ds}, unit="tokens", length="kind"),
    ):
        with pytest.raises(UsageError, match=message) as found:
            call()
        assert "tokens:len" in found.value.hint
    with pytest.raises(UsageError, match="'shard' numbers shards"):
        shoal.mix({"a": ds}, unit="tokens", length="shard")
