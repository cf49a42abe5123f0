"""Choices of sources as other libraries make them, against their loops, and the laws of any choice."""

from __future__ import annotations

import hashlib
import pickle
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.examples import few_examples
from tests.order.peer_mixtures import DIGESTS, WITHOUT, in_storage_order, interleaved, mixed_ids, randomly_mixed

from shoal.errors import UsageError
from shoal.mixing import Concatenate, Interleave, RandomMix, RoundRobin
from shoal.peers.mixing import drawn_sources

STOPPING = st.sampled_from(["first_exhausted", "all_exhausted", WITHOUT])
SEEDS = st.integers(0, 2**64 - 1)


@pytest.fixture(autouse=True, params=[8, 1 << 18])
def _blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of a few draws as well, so that most epochs have many."""
    monkeypatch.setattr(drawn_sources, "BLOCK", request.param)


@st.composite
def mixtures(draw: st.DrawFn, kinds: tuple[type, ...] = (Interleave, Concatenate, RandomMix, RoundRobin)) -> Any:
    """A choice, and the samples of its sources."""
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))
    weights = draw(st.lists(st.integers(1, 9), min_size=len(lengths), max_size=len(lengths)))
    kind, longest = draw(st.sampled_from(kinds)), draw(st.booleans())
    if kind is Interleave:
        shares = [weight / sum(weights) for weight in weights] if draw(st.booleans()) else None
        return Interleave(shares, draw(STOPPING), whole_turns=longest), lengths
    if kind is RandomMix:
        weights = [weight - 1 for weight in weights] if max(weights) > 1 else weights
        return RandomMix(weights if draw(st.booleans()) else None, longest=longest), lengths
    return (Concatenate() if kind is Concatenate else RoundRobin(longest=longest)), lengths


@few_examples(25)
@given(mixtures(), SEEDS, st.integers(0, 3), st.data())
def test_a_seek_finds_what_a_scan_finds(mixture: Any, seed: int, epoch: int, data: st.DataObject) -> None:
    choice, lengths = mixture
    chosen = choice.of_epoch(lengths, seed, epoch)
    whole = chosen.sources(0, chosen.num_samples)
    assert len(whole) == chosen.num_samples
    start = data.draw(st.integers(0, chosen.num_samples), label="start")
    stop = data.draw(st.integers(start, chosen.num_samples), label="stop")
    other = pickle.loads(pickle.dumps(choice.of_epoch(lengths, seed, epoch)))
    assert other.sources(start, stop).tolist() == whole[start:stop].tolist()
    for position in (start, stop, chosen.num_samples):
        expected = np.bincount(whole[:position], minlength=len(lengths))
        assert chosen.counts(position).tolist() == expected.tolist()
        assert choice.of_epoch(lengths, seed, epoch).counts(position).tolist() == expected.tolist()
    for source in range(len(lengths)):
        places = np.flatnonzero(whole == source).tolist()
        other = choice.of_epoch(lengths, seed, epoch)
        assert [other.position_of(source, number) for number in range(len(places))] == places
        assert other.position_of(source, len(places)) is None


@few_examples(25)
@given(mixtures((Interleave,)), SEEDS)
def test_sources_are_interleaved_as_by_hugging_face(mixture: Any, seed: int) -> None:
    choice, lengths = mixture
    chosen = Interleave(choice.probabilities, choice.stopping).of_epoch(lengths, seed, 0)
    assert chosen.sources(0, chosen.num_samples).tolist() == interleaved(choice, lengths, seed)


@few_examples(25)
@given(mixtures((RandomMix,)), SEEDS)
def test_sources_are_mixed_as_by_webdataset(mixture: Any, seed: int) -> None:
    choice, lengths = mixture
    chosen = choice.of_epoch(lengths, seed, 0)
    assert chosen.sources(0, chosen.num_samples).tolist() == randomly_mixed(choice, lengths, seed)


def test_many_sources_of_small_shares_are_found() -> None:
    weights = np.arange(1, 3001) / np.arange(1, 3001).sum()
    chosen = Interleave(weights.tolist()).of_epoch([10**6] * 3000, 5, 0)
    expected = np.random.default_rng(5).choice(3000, size=4000, p=weights)
    assert chosen.sources(0, 4000).tolist() == expected.tolist()


@pytest.mark.parametrize(("choice", "lengths", "seed", "epoch", "expected"), DIGESTS, ids=str)
def test_ids_are_those_that_the_libraries_gave(
    choice: Any, lengths: list[int], seed: int, epoch: int, expected: str
) -> None:
    ids = mixed_ids(choice, in_storage_order(lengths), seed, epoch)
    assert hashlib.blake2b(ids.astype("<u8").tobytes(), digest_size=8).hexdigest() == expected


def test_later_epochs_draw_by_their_number_or_like_the_first() -> None:
    def drawn(choice: Any, seed: int, epoch: int) -> list[int]:
        chosen = choice.of_epoch([1000, 1000], seed, epoch)
        return list(chosen.sources(0, 900))

    new, same = Interleave([0.5, 0.5]), Interleave([0.5, 0.5], epochs="same")
    assert drawn(new, 1, 1) == drawn(new, 2, 1)
    assert drawn(new, 1, 0) != drawn(new, 2, 0)
    assert drawn(new, 1, 1) != drawn(new, 1, 2)
    assert drawn(same, 1, 0) == drawn(same, 1, 7) == drawn(new, 1, 0)
    assert (new.varies, same.varies) == (True, False)
    # Seeds that follow one another have no epochs in common.
    assert RandomMix.random_seed(5, 0) == 5
    assert drawn(RandomMix(), 5, 1) != drawn(RandomMix(), 6, 0)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Interleave(stopping="all"), "Interleave(stopping) is one of 'first_exhausted', 'all_exhausted'"),
        (lambda: Interleave(epochs="old"), "Interleave(epochs) is one of 'new', 'same'"),
        (lambda: Interleave([0.5, -0.5]), "a probability of at least 0 for each source; got [0.5, -0.5]"),
        (lambda: Interleave([0.5, float("nan")]), "a probability of at least 0"),
        (lambda: RandomMix(cast("Any", "ab")), "a probability of at least 0 for each source; got 'ab'"),
        (lambda: RandomMix([]), "a probability of at least 0"),
        (lambda: Interleave(world_size=0), "world_size is a number of ranks, from 1 to 2**24 - 1; got 0"),
        (lambda: Concatenate(world_size=cast("Any", 1.5)), "world_size must be an integer"),
        (lambda: Interleave([0.5]).settled(["a", "b"]), "Interleave has 1 probabilities for 2 sources"),
        (lambda: Interleave([0.5, 0.4]).settled(["a", "b"]), "must have a sum of 1; got 0.9"),
        (lambda: Interleave({"a": 0.5, "c": 0.5}).settled(["a", "b"]), "probabilities of 'a', 'c'; the sources are"),
        (lambda: Interleave([1, 0], WITHOUT).settled(["a", "b"]), "'b' has probability 0 and never ends"),
        (
            lambda: Interleave([1 - 1e-12, 1e-12], WITHOUT).of_epoch([9, 9], 0, 0),
            "waits for 9 samples of a source with probability 1e-12: an epoch takes about 9e+12 draws",
        ),
        (lambda: RandomMix([0, 0]).settled(["a", "b"]), "RandomMix(probs) needs a weight above zero"),
    ],
)
def test_what_fits_no_mixture_is_refused(make: Any, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        make()
    assert said in str(caught.value)


def test_probabilities_may_be_given_by_name() -> None:
    assert Interleave({"b": 0.3, "a": 0.7}).settled(["a", "b"]) == Interleave([0.7, 0.3])
    assert RandomMix({"b": 3, "a": 7}).settled(["a", "b"]).parameters == {"probs": [7.0, 3.0], "longest": False}
    many = Interleave([0.1] * 10)
    assert len(many.parameters["probabilities"]) == 16
    assert many.parameters != Interleave([0.05] * 2 + [0.1125] * 8).parameters
