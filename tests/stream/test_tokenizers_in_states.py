"""States name the tokenizer that makes the tokens, and a resume with another one is refused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from tests.pipeline.tokenizers_of_tests import write_tokenizer
from tests.samples import write_jsonl
from tokenizers import Tokenizer

import shoal
from shoal.errors import StateError, UsageError
from shoal.order.state_dict import sealed
from shoal.pack import repack
from shoal.stream.ranks import check_agreement

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "texts" / "docs.jsonl")


@pytest.fixture
def tokenizers(tmp_path: Path) -> tuple[Path, Path]:
    return write_tokenizer(tmp_path / "first.json"), write_tokenizer(tmp_path / "other.json", vocab_size=280)


def tokenized(texts: Path, tokenizer: Any) -> shoal.Dataset:
    return shoal.open(texts).shuffle(seed=0).tokenize(tokenizer)


def packed(texts: Path, tokenizer: Any) -> shoal.Dataset:
    return tokenized(texts, tokenizer).pack_sequences(64, lengths=None, block=8).batch(2, steps="apart")


@pytest.mark.parametrize("make", [tokenized, packed])
def test_a_resume_with_another_tokenizer_is_refused(texts: Path, tokenizers: tuple[Path, Path], make: Any) -> None:
    run = make(texts, tokenizers[0])
    iterator = iter(run)
    next(iterator)
    state = json.loads(json.dumps(run.state_dict()))
    assert [len(each) for each in state["tokenizers"][""]] == [16]
    assert iterator.state_dict() == state
    again = make(texts, tokenizers[0])
    again.load_state_dict(state)
    assert str(next(iter(again))) == str(next(iterator))
    with pytest.raises(StateError, match=r"the tokenizer changed: .* with the tokenizer [0-9a-f]{16}; .* [0-9a-f]{16}"):
        make(texts, tokenizers[1]).load_state_dict(state)


def test_a_tokenizer_that_is_replaced_between_kill_and_resume_is_noticed(
    texts: Path, tokenizers: tuple[Path, Path], tmp_path: Path
) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(tokenizers[0].read_bytes())
    state = packed(texts, path).state_dict()
    path.write_bytes(tokenizers[1].read_bytes())
    with pytest.raises(StateError, match="the tokenizer changed"):
        packed(texts, path).load_state_dict(state)


def test_a_file_and_the_object_of_it_are_the_same_tokenizer(texts: Path, tokenizers: tuple[Path, Path]) -> None:
    state = tokenized(texts, tokenizers[0]).state_dict()
    one = Tokenizer.from_file(str(tokenizers[0]))
    one.enable_truncation(7)
    tokenized(texts, one).load_state_dict(state)
    with pytest.raises(StateError, match="the tokenizer changed"):
        tokenized(texts, Tokenizer.from_file(str(tokenizers[1]))).load_state_dict(state)


def test_states_without_a_tokenizer_and_streams_without_one_fit(texts: Path, tokenizers: tuple[Path, Path]) -> None:
    with_tokens, plain = tokenized(texts, tokenizers[0]), shoal.open(texts).shuffle(seed=0)
    state = with_tokens.state_at(30)
    before = sealed({name: value for name, value in state.items() if name not in ("tokenizers", "check")})
    assert before == plain.state_at(30)
    for ds, saved in [(with_tokens, before), (plain, state)]:
        ds.load_state_dict(saved)
        assert ds.state_dict()["position"] == 30


def test_sources_of_a_mixture_have_their_own_tokenizers(texts: Path, tokenizers: tuple[Path, Path]) -> None:
    def mixed(first: Path, second: Path) -> shoal.Dataset:
        sources = [shoal.open(texts).tokenize(each) for each in (first, second)]
        return shoal.mix({"a": sources[0], "b": sources[1]}).shuffle(seed=0)

    both = mixed(*tokenizers).state_dict()
    assert {name: len(each) for name, each in both["tokenizers"].items()} == {"a": 1, "b": 1}
    mixed(*tokenizers).load_state_dict(both)
    alike = mixed(tokenizers[0], tokenizers[0])
    for resumed, state in [(alike, both), (mixed(*tokenizers), alike.state_dict())]:
        with pytest.raises(StateError, match="the tokenizer of the source 'b' changed"):
            resumed.load_state_dict(state)


def test_tokenizers_that_sources_swap_between_kill_and_resume_are_noticed(
    texts: Path, tokenizers: tuple[Path, Path]
) -> None:
    def mixed(*order: Path) -> shoal.Dataset:
        web, code, more = (shoal.open(texts).tokenize(each) for each in order)
        inner = shoal.mix({"web": web, "code": code})
        return shoal.mix({"inner": inner, "more": more}).shuffle(seed=0).pack_sequences(64, lengths=None).batch(2)

    first, other = tokenizers
    run = mixed(first, other, first)
    next(iter(run))
    state = json.loads(json.dumps(run.state_dict()))
    one, two = (state["tokenizers"][name][0] for name in ("inner/web", "inner/code"))
    mixed(first, other, first).load_state_dict(state)
    swapped = (
        rf"{one} of 'inner/web', {two} of 'inner/code'; this stream has {two} of 'inner/web', {one} of 'inner/code'"
    )
    with pytest.raises(
        StateError, match=f"the tokenizer of the sources 'inner/web' and 'inner/code' changed: .*{swapped}"
    ):
        mixed(other, first, first).load_state_dict(state)
    with pytest.raises(StateError, match="the tokenizer of the sources 'inner/code' and 'more' changed"):
        mixed(first, first, other).load_state_dict(state)


def test_a_tokenizer_behind_a_mixture_is_that_of_each_source(texts: Path, tokenizers: tuple[Path, Path]) -> None:
    def mixed(tokenizer: Path) -> shoal.Dataset:
        return shoal.mix({"a": shoal.open(texts), "b": shoal.open(texts)}).shuffle(seed=0).tokenize(tokenizer)

    state = mixed(tokenizers[0]).state_dict()
    assert state["tokenizers"]["a"] == state["tokenizers"]["b"]
    with pytest.raises(StateError, match="the tokenizer of the sources 'a' and 'b' changed"):
        mixed(tokenizers[1]).load_state_dict(state)


def test_a_source_with_another_tokenizer_may_be_added(texts: Path, tokenizers: tuple[Path, Path]) -> None:
    first, other = (shoal.open(texts).tokenize(each) for each in tokenizers)
    run = shoal.mix({"a": first}).shuffle(seed=0)
    state = run.state_at(10)
    run.reweight(at=10, weights={"a": 1, "b": 1}, add={"b": other}).load_state_dict(state)
    changed = shoal.mix({"a": other}).shuffle(seed=0)
    with pytest.raises(StateError, match="the tokenizer of the source 'a' changed"):
        changed.reweight(at=10, weights={"a": 1, "b": 1}, add={"b": other}).load_state_dict(state)


def test_shards_of_tokens_say_that_the_tokenizer_changed(
    texts: Path, tokenizers: tuple[Path, Path], tmp_path: Path
) -> None:
    for name, tokenizer in zip(("old", "new"), tokenizers, strict=True):
        repack(texts, tmp_path / name / "tokens", format="parquet", tokenize=tokenizer)
    old, new = (shoal.open(tmp_path / name / "tokens").shuffle(seed=0).pack_sequences(64) for name in ("old", "new"))
    state = old.state_at(1)
    assert state["tokenizers"] == tokenized(texts, tokenizers[0]).state_dict()["tokenizers"]
    with pytest.raises(StateError, match="the tokenizer changed"):
        new.load_state_dict(state)
    repack(tmp_path / "old" / "tokens", tmp_path / "again", format="parquet")
    assert shoal.open(tmp_path / "again").state_dict()["tokenizers"] == state["tokenizers"]


def test_a_loader_and_a_sampler_name_the_tokenizer(texts: Path, tokenizers: tuple[Path, Path]) -> None:
    torch = pytest.importorskip("shoal.torch")
    ds = tokenized(texts, tokenizers[0]).format("python").batch(4)
    expected = ds.state_dict()["tokenizers"]
    assert torch.BatchSampler(ds).state_dict(2)["tokenizers"] == expected
    loader = torch.DataLoader(ds, collate_fn=list)
    list(itertools.islice(loader, 1))
    assert loader.state_dict()["tokenizers"] == expected


def test_ranks_with_other_tokenizers_do_not_agree(texts: Path, tokenizers: tuple[Path, Path]) -> None:
    ranks = [packed(texts, each).partition(rank=rank, world_size=2) for rank, each in enumerate(tokenizers)]
    with pytest.raises(UsageError, match=r"tokenizer: [0-9a-f]{16} on rank 0, but [0-9a-f]{16} on rank 1"):
        check_agreement([rank.stream.iterator_spec().settings() for rank in ranks])
    plain = [shoal.open(texts).shuffle(seed=0).batch(2).partition(rank=rank, world_size=2) for rank in range(2)]
    mixed = [plain[0], plain[1].map(len), tokenized(texts, tokenizers[0]).batch(2).partition(rank=1, world_size=2)]
    with pytest.raises(UsageError, match=r"tokenizer: none on rank 0, but [0-9a-f]{16} on rank 1"):
        check_agreement([mixed[number].stream.iterator_spec().settings() for number in (0, 2)])
    check_agreement([mixed[number].stream.iterator_spec().settings() for number in (0, 1)])
