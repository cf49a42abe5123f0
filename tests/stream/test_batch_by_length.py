"""Batches by length: every document once, at any world size, through any chain of resumes, within max_tokens."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import StateError, UsageError
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore:a window of")

NUM_DOCUMENTS, MAX_TOKENS = 400, 160
SIZES = (np.random.default_rng(0).lognormal(2.5, 0.8, NUM_DOCUMENTS).clip(0, 79).astype(int)).tolist()


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    directory: Path = tmp_path_factory.mktemp("documents") / "d"
    samples = (
        {"tokens": [number * 100 + place for place in range(size)], "num_tokens": size, "name": f"d{number}"}
        for number, size in enumerate(SIZES)
    )
    shoal.pack.pack(samples, directory, format="jsonl", shard_bytes="8KiB", extent_bytes=512, columns=["num_tokens"])
    return shoal.open(directory)


def batched(documents: Dataset, **how: Any) -> Dataset:
    shuffled = documents.shuffle(seed=1, window="8KiB", chunk="1KiB")
    return shuffled.batch_by_length(**{"max_tokens": MAX_TOKENS, "block": 128, **how})


ALL_TOKENS = Counter(number * 100 + place for number, size in enumerate(SIZES) for place in range(size))


def tokens_in(batch: dict[str, Any]) -> Counter[int]:
    """The tokens of a batch that are no repeats."""
    if batch.get("__pad__", np.zeros(1, dtype=bool)).any():
        return Counter()
    return Counter(batch["tokens"][batch["attention_mask"]].tolist())


@pytest.mark.parametrize("buckets", [(), (8, 24, 80)])
def test_documents_are_whole_and_padded_to_one_length(documents: Dataset, buckets: tuple[int, ...]) -> None:
    dataset = batched(documents, buckets=buckets, padding=7)
    num_places, num_batches = 0, len(dataset)
    for batch in dataset:
        tokens, mask, lengths = batch["tokens"], batch["attention_mask"], batch["lengths"]
        assert tokens.shape == mask.shape
        assert tokens.shape[0] == len(lengths) == len(batch["name"])
        assert tokens.shape[1] == (min(b for b in buckets if b >= lengths.max()) if buckets else lengths.max())
        assert np.all(tokens[~mask] == 7)
        for row, length, name in zip(tokens, lengths.tolist(), batch["name"], strict=True):
            number = int(name[1:])
            assert row[:length].tolist() == [number * 100 + place for place in range(SIZES[number])]
        assert np.array_equal(mask.sum(1), lengths)
        num_places += tokens.size
    stats = dataset.stats()
    assert stats["num_tokens"] == sum(SIZES)
    assert stats["num_tokens"] + stats["num_padding_tokens"] == num_places
    assert stats["num_batches"] == num_batches == dataset.num_samples


def test_the_batches_of_some_steps_are_the_same_at_any_world_size(documents: Dataset) -> None:
    def of_steps(world_size: int, steps: int) -> list[set[str]]:
        """The batches of each `steps` steps of all ranks, by the names in them."""
        ranks = [
            [",".join(batch["name"]) for batch in batched(documents, remainder="drop").partition(rank=rank, **of)]
            for of in [dict[str, Any](world_size=world_size)]
            for rank in range(world_size)
        ]
        rows = list(zip(*ranks, strict=True))
        return [
            {name for row in rows[at : at + steps] for name in row} for at in range(0, len(rows) - steps + 1, steps)
        ]

    assert of_steps(1, 4) == of_steps(2, 2) == of_steps(4, 1)


def test_a_state_counts_batches_and_epochs_differ(documents: Dataset) -> None:
    whole = [batch["name"] for batch in batched(documents)]
    first = batched(documents)
    for _ in zip(range(7), first, strict=False):
        pass
    assert first.state_dict()["position"] == 7
    rest = batched(documents)
    rest.load_state_dict(first.state_dict())
    assert [batch["name"] for batch in rest] == whole[7:]
    assert [batch["name"] for batch in rest] != whole


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torch_gets_the_same_through_workers(documents: Dataset, num_workers: int) -> None:
    torch = pytest.importorskip("shoal.torch", reason="torch is not installed", exc_type=ImportError)
    wanted = [batch["tokens"].tolist() for batch in batched(documents)]
    loader = torch.DataLoader(batched(documents), num_workers=num_workers)
    found = [batch["tokens"].tolist() for _, batch in zip(range(3), loader, strict=False)]
    state = loader.state_dict()
    loader = torch.DataLoader(batched(documents), num_workers=num_workers)
    loader.load_state_dict(state)
    found += [batch["tokens"].tolist() for batch in loader]
    assert found == wanted


def test_repeats_are_marked_for_every_document(documents: Dataset) -> None:
    num_batches = batched(documents).num_samples
    world_size = num_batches - 1  # the last step has one batch
    repeated = 0
    for rank in range(world_size):
        last = list(batched(documents).partition(rank=rank, world_size=world_size))[-1]
        if "__pad__" in last:
            assert last["__pad__"].shape == last["lengths"].shape
            assert last["__pad__"].all()
            repeated += 1
    assert repeated == world_size - 1


def test_certificates_of_ranks_add_up(documents: Dataset) -> None:
    ranks = [batched(documents).partition(rank=rank, world_size=3) for rank in range(3)]
    for rank in ranks:
        for _ in rank:
            pass
    batched(documents).check_certificate(shoal.merge_certificates(rank.certificate() for rank in ranks))


def test_rows_of_frames_are_padded_along_the_first_axis(tmp_path: Path) -> None:
    sizes = [3, 5, 4, 1]
    samples = [{"frames": np.full((size, 2), size, np.float32), "num_frames": size} for size in sizes]
    shoal.pack.pack(samples, tmp_path / "f", format="mds", columns=["num_frames"])
    (batch,) = shoal.open(tmp_path / "f").batch_by_length(4, key="frames", lengths="num_frames")
    assert batch["frames"].shape == (4, 5, 2)
    assert batch["frames"].dtype == np.float32
    assert batch["frames"][:, 0, 0].tolist() == [5.0, 4.0, 3.0, 1.0] == batch["lengths"].tolist()


def test_what_cannot_be_batched_is_refused(documents: Dataset, tars: Dataset) -> None:
    with pytest.raises(UsageError, match="the index has no column 'num_tokens'") as missing:
        next(iter(tars.batch_by_length(8)))
    assert "pack_sequences" not in missing.value.hint
    with pytest.raises(UsageError, match=r"batch_by_length\(\) .* was called after filter") as filtered:
        documents.filter(bool).batch_by_length(8)
    assert filtered.value.hint == "select() by columns of the index instead of filter()"
    for twice in (lambda: documents.batch(3).batch_by_length(8), lambda: documents.batch_by_length(8).batch(3)):
        with pytest.raises(UsageError, match="was called after batch") as batched_twice:
            twice()
        assert "makes the batches itself" in batched_twice.value.hint
    with pytest.raises(UsageError, match="must be an integer below"):
        documents.batch_by_length(8, padding=1 << 70)
    with pytest.raises(UsageError, match="packed already"):
        documents.pack_sequences(8).batch_by_length(8)
    with pytest.raises(UsageError, match="has no such field"):
        next(iter(documents.batch_by_length(8, key="text")))
    with pytest.raises(UsageError, match=r"makes the field 'lengths'"):
        next(iter(documents.rename(lengths="name").batch_by_length(8)))
    with pytest.raises(UsageError, match=r"lengths=None\) takes the name of a column"):
        documents.batch_by_length(8, lengths=None)  # type: ignore[arg-type]
    longest = max(SIZES)
    with pytest.raises(UsageError, match=rf"has {longest} tokens, but a batch has at most {longest - 1}"):
        next(iter(batched(documents, max_tokens=longest - 1)))
    shorter = documents.map(lambda sample: {"tokens": sample["tokens"][:1]}).batch_by_length(8)
    with pytest.raises(UsageError, match=r"has 1 tokens, but .* according to the index"):
        list(shorter)


def test_documents_that_are_too_long_are_cut_or_dropped(documents: Dataset) -> None:
    cut = batched(documents, buckets=[10, 20], too_long="cut")
    assert sum((tokens_in(batch) for batch in cut), Counter()) == ALL_TOKENS
    assert cut.stats()["num_cut_documents"] > 0
    kept = {name for batch in batched(documents, buckets=[10, 20], too_long="drop") for name in batch["name"]}
    assert kept == {f"d{number}" for number, size in enumerate(SIZES) if 0 < size <= 20}


def test_states_of_other_batches_are_refused(documents: Dataset) -> None:
    state = batched(documents).state_dict()
    for other in (batched(documents, max_tokens=200), batched(documents, alike=4), batched(documents, buckets=[80])):
        with pytest.raises(StateError, match=r"this stream has batch_by_length\(\w+=") as found:
            other.load_state_dict(state)
        assert "give batch_by_length() the arguments of the saved run" in found.value.hint
    with pytest.raises(StateError, match=r"before batch_by_length\(\)"):
        batched(documents).load_state_dict(documents.shuffle(seed=1, window="8KiB", chunk="1KiB").state_dict())


def test_map_and_format_work_on_batches(documents: Dataset) -> None:
    torch = pytest.importorskip("torch")
    batch = next(iter(batched(documents).map(lambda batch: batch | {"twice": batch["tokens"] * 2}).format("torch")))
    assert isinstance(batch["tokens"], torch.Tensor)
    assert batch["attention_mask"].dtype == torch.bool


def test_batches_of_a_mixture(documents: Dataset, tmp_path: Path) -> None:
    samples = ({"tokens": [10**6 + number], "num_tokens": 1, "name": "one"} for number in range(30))
    shoal.pack.pack(samples, tmp_path / "more", format="jsonl", columns=["num_tokens"])
    sources = {"a": documents, "b": shoal.open(tmp_path / "more")}
    mixed = shoal.mix(sources, repeat={"a": 1, "b": 1}, seed=2).batch_by_length(max_tokens=MAX_TOKENS, block=64)
    found: Counter[int] = Counter()
    for rank in range(2):
        for batch in mixed.partition(rank=rank, world_size=2):
            found += tokens_in(batch)
    assert found == ALL_TOKENS + Counter(10**6 + number for number in range(30))


def test_the_longest_document_comes_first_unless_there_are_buckets(documents: Dataset) -> None:
    """As the guide says: within a bucket, documents keep the order of the epoch."""
    for batch in documents.shuffle(seed=2).batch_by_length(8):
        assert batch["lengths"].tolist() == sorted(batch["lengths"], reverse=True)
    lengths = [batch["lengths"].tolist() for batch in documents.shuffle(seed=2).batch_by_length(8, buckets=(512,))]
    assert any(each != sorted(each, reverse=True) for each in lengths)
