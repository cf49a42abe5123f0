"""Conversations and gaps in streams: damage is skipped, shards keep lengths, and random cuts follow the sample."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pipeline.chats_of_tests import CHATML, write_model

import shoal
from shoal.errors import MaskWarning, ShardError, UsageError
from shoal.pipeline.decode_pool import choose_threads
from shoal.pipeline.stages.conversations.chat_tokens import chat_tokens_with

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

NUM_CHATS = 60
GAPS: dict[str, Any] = {"prefix": 901, "middle": 902, "suffix": 903}


def chat_of(number: int) -> dict[str, Any]:
    turns = [
        {"role": "user", "content": f"question {number}"},
        {"role": "assistant", "content": "answer " * (number % 7)},
    ]
    return {"messages": turns, "number": number}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model")


@pytest.fixture
def chats(tmp_path: Path) -> shoal.Dataset:
    shoal.pack.pack(map(chat_of, range(NUM_CHATS)), tmp_path / "chats", format="jsonl", shard_bytes="2KiB")
    return shoal.open(tmp_path / "chats")


@pytest.mark.parametrize("shards", ["jsonl", "mds", "parquet"])
def test_repacked_conversations_keep_tokens_masks_and_lengths(
    chats: shoal.Dataset, model: Path, tmp_path: Path, shards: str
) -> None:
    stream = chats.chat_tokens(model)
    shoal.pack.repack(stream, tmp_path / "stored", format=shards, columns=["num_tokens"], num_workers=1)
    stored = shoal.open(tmp_path / "stored")
    lengths = stored.index_column("num_tokens").tolist()
    ids = {int(sample["number"]): place for place, sample in enumerate(stored.decode())}
    assert len(ids) == NUM_CHATS
    for number in range(NUM_CHATS):
        made, kept = stream[number], stored.decode()[ids[number]]
        for name in ("tokens", "loss_mask"):
            assert np.array_equal(kept[name], made[name])
        assert lengths[ids[number]] == made["num_tokens"]
    # States of both name the same tokenizer and template.
    state = stream.shuffle(seed=0).state_dict()
    assert stored.shuffle(seed=0).state_dict()["tokenizers"] == state["tokenizers"]
    packed = stored.decode().pack_sequences(64, fields=["loss_mask"]).batch(4)
    num_learned = sum(int(batch["loss_mask"].sum()) for batch in packed)
    assert num_learned == sum(int(stream[number]["loss_mask"].sum()) for number in range(NUM_CHATS))


def test_another_repack_over_shards_of_another_template_is_another_job(
    chats: shoal.Dataset, model: Path, tmp_path: Path
) -> None:
    shoal.pack.repack(chats.chat_tokens(model), tmp_path / "stored", format="mds")
    with pytest.raises(UsageError):
        shoal.pack.repack(chats.chat_tokens(model, train_on="last"), tmp_path / "stored", format="mds")


def test_tokens_are_counted_and_refused_conversations_skipped(tmp_path: Path, model: Path) -> None:
    samples = [chat_of(number) for number in range(40)]
    samples[7]["messages"], samples[30]["messages"] = "no JSON", [{"from": "nobody", "value": "hi"}]
    shoal.pack.pack(samples, tmp_path / "chats", format="jsonl")
    ds = shoal.open(tmp_path / "chats").chat_tokens(model).batch(8)
    with pytest.raises(ShardError, match=r"byte \d+: the field 'messages' of the sample with id 7 cannot be decoded"):
        list(ds)
    skipping = ds.reading(on_error="skip")
    batches = list(skipping)
    stats = skipping.stats()
    assert stats["skipped_ids"] == [7, 30]
    assert sorted(number for batch in batches for number in batch["number"].tolist()) == [
        number for number in range(40) if number not in (7, 30)
    ]
    assert stats["num_tokens"] == sum(int(sum(batch["num_tokens"])) for batch in batches)


def test_sets_of_several_forms_in_a_mixture(tmp_path: Path, model: Path) -> None:
    sharegpt = [{"conversations": [{"from": "gpt", "value": "hi"}]} for _ in range(20)]
    shoal.pack.pack(map(chat_of, range(20)), tmp_path / "a", format="jsonl")
    shoal.pack.pack(sharegpt, tmp_path / "b", format="jsonl")
    sources = {name: shoal.open(tmp_path / name) for name in ("a", "b")}
    after = shoal.mix(sources, weights={"a": 1, "b": 1}, epoch_size=30).shuffle(seed=0).chat_tokens(model)
    before = {name: source.chat_tokens(model) for name, source in sources.items()}
    first = shoal.mix(before, weights={"a": 1, "b": 1}, epoch_size=30).shuffle(seed=0)
    how: dict[str, Any] = {"lengths": None, "fields": ["loss_mask"]}
    streams = [list(ds.pack_sequences(64, **how).batch(2)) for ds in (after, first)]
    assert len(streams[0]) == len(streams[1]) > 0
    for one, other in zip(*streams, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in ("tokens", "loss_mask"))


def test_a_mask_without_answers_is_warned_of(tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.pipeline.mask_totals.NUM_TOKENS_TO_WARN", 1000)
    questions = ({"messages": [{"role": "user", "content": "why " * 20}]} for _ in range(40))
    shoal.pack.pack(questions, tmp_path / "questions", format="jsonl")
    ds = shoal.open(tmp_path / "questions").chat_tokens(model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(ds.pack_sequences(64, lengths=None, fields=["loss_mask"]).batch(4))
    assert [each.category for each in caught if issubclass(each.category, MaskWarning)] == [MaskWarning]


def test_threads_are_chosen_for_a_chat_template(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    monkeypatch.setattr("shoal.pipeline.decode_pool.usable_processors", lambda: 16)
    chosen = choose_threads([chat_tokens_with(model, template=CHATML)], num_threads=None, limit_bytes=1)
    assert chosen.threaded is not None
    assert "the tokenizer works without the interpreter's lock" in chosen.words


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> shoal.Dataset:
    directory = tmp_path_factory.mktemp("documents") / "d"
    made = ({"tokens": np.arange(n * 100, n * 100 + n % 31, dtype=np.int32), "num_tokens": n % 31} for n in range(150))
    shoal.pack.pack(made, directory, format="mds", columns=["num_tokens"], shard_bytes="4KiB")
    return shoal.open(directory)


def tokens_of(ds: shoal.Dataset) -> dict[int, list[int]]:
    return {int(sample["__id__"]): sample["tokens"].tolist() for sample in ds}


def test_gaps_follow_seed_epoch_and_sample_alone(documents: shoal.Dataset) -> None:
    def gaps() -> shoal.Dataset:
        return documents.shuffle(seed=5).fill_in_middle(**GAPS, rate=0.8).with_ids()

    whole = gaps()
    first, second = tokens_of(whole), tokens_of(whole)
    on_ranks: dict[int, list[int]] = {}
    for rank in range(3):
        on_ranks |= tokens_of(gaps().partition(rank=rank, world_size=3))
    assert first == on_ranks
    assert first != second
    assert sum(first[number] != second[number] for number in first) > 60
    resumed = gaps()
    resumed.load_state_dict(gaps().state_at(100))
    rest = tokens_of(resumed)
    assert len(rest) == 50
    assert rest == {number: first[number] for number in rest}
    other = documents.shuffle(seed=6).with_ids()
    assert tokens_of(other.fill_in_middle(**GAPS, rate=0.8)) != first
    fixed = [ds.fill_in_middle(**GAPS, rate=0.8, seed=9) for ds in (other, documents.shuffle(seed=7).with_ids())]
    assert tokens_of(fixed[0]) == tokens_of(fixed[1])


def test_gaps_keep_the_lengths_for_packing(documents: shoal.Dataset) -> None:
    plain = documents.shuffle(seed=5).pack_sequences(64, strategy="best_fit").batch(4)
    gaps = documents.shuffle(seed=5).fill_in_middle(**GAPS, rate=1.0).pack_sequences(64, strategy="best_fit").batch(4)
    for one, other in zip(plain, gaps, strict=True):
        assert np.array_equal(one["segment_ids"], other["segment_ids"])
        assert not np.array_equal(one["tokens"], other["tokens"])
    longer = documents.shuffle(seed=5).fill_in_middle(**GAPS, rate=1.0, keep_length=False)
    with pytest.raises(UsageError, match="tokens"):
        list(longer.pack_sequences(64))
    packed = list(longer.pack_sequences(64, lengths=None).batch(4))
    num_tokens = sum(int((each["segment_ids"] > 0).sum()) for each in packed)
    sizes = documents.index_column("num_tokens")
    assert num_tokens == int(sizes.sum() + 3 * (sizes > 0).sum())


def test_pieces_of_a_cut_document_have_the_same_gaps(documents: shoal.Dataset) -> None:
    gaps = documents.shuffle(seed=5).fill_in_middle(**GAPS, rate=1.0)
    whole = tokens_of(gaps.with_ids())
    packed = gaps.pack_sequences(16).batch(1)
    packed.set_epoch(0)
    num_cut = 0
    for step, batch in enumerate(packed):
        told = packed.batch_segments(step)
        for row, segment, number, start, stop in zip(*told, strict=True):
            piece = batch["tokens"][row][batch["segment_ids"][row] == segment].tolist()
            assert piece == whole[int(number)][start:stop]
            num_cut += start > 0
    assert num_cut > 20
