"""Every public method and property of a dataset, after every chain of verbs: right, or an error that says why."""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pipeline.tokenizers_of_tests import write_tokenizer

import shoal
from shoal.errors import StateError, UsageError
from shoal.mixing import MixedDataset
from shoal.stream.dataset import Dataset

pytestmark = [
    pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning"),
    pytest.mark.filterwarnings("ignore:samples of:UserWarning"),
]

NUM_WEB, NUM_CODE = 50, 30
WEIGHTS = {"web": 0.7, "code": 0.3}
FEW = 6  # batches that are looked at


def tokens_of(document: int) -> list[int]:
    """Tokens that say what they are: the id of the document in the mixture, and the place in it."""
    size = int(np.random.default_rng(document).integers(0, 30))
    return [document * 100 + place for place in range(size)]


def written(directory: Path, numbers: Iterable[int], **more: Any) -> Path:
    samples = (
        {"tokens": np.array(found := tokens_of(number), np.int64), "num_tokens": len(found), "label": number % 3,
         "text": f"document {number}", **more}
        for number in numbers
    )  # fmt: skip
    columns = ["num_tokens", "label"]
    shoal.pack.pack(samples, directory, format="mds", shard_bytes="8KiB", extent_bytes=512, columns=columns)
    return directory


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("every")
    written(home / "web", range(NUM_WEB), url="u")
    written(home / "code", range(NUM_WEB, NUM_WEB + NUM_CODE), lang="c")
    written(home / "more", range(NUM_WEB + NUM_CODE, NUM_WEB + NUM_CODE + 5), lang="c")
    scores = ({"text": f"document {number}", "score": number} for number in range(0, NUM_WEB, 3))
    shoal.pack.pack(scores, home / "scores", format="mds", columns=["text"])
    write_tokenizer(home / "tokenizer.json")
    return home


def mixture(home: Path, **how: Any) -> Dataset:
    sources = {name: shoal.open(home / name) for name in ("web", "code")}
    return shoal.mix(sources, **{"weights": WEIGHTS, **how})


SOURCES: dict[str, Callable[[Path], Dataset]] = {
    "dataset": lambda home: shoal.open(home / "web"),
    "mixture": mixture,
    "endless mixture": lambda home: mixture(home, ends="forever"),
    "mixture of equal fields": lambda home: mixture(home, missing="none", unit="tokens", length="num_tokens"),
    "mixture as another library": lambda home: mixture(
        home, weights=None, choice=shoal.mixing.Interleave(stopping="all_exhausted")
    ),
    "nested mixture": lambda home: shoal.mix({"inner": mixture(home), "more": shoal.open(home / "more")}),
}


def is_even(sample: Any) -> bool:
    return not isinstance(sample, dict) or int(sample.get("num_tokens", 0)) % 2 == 0


def same(sample: Any) -> Any:
    return sample


def twice(sample: Any) -> list[Any]:
    return [sample, sample]


Call = tuple[tuple[Any, ...], dict[str, Any]]


def call(*values: Any, **named: Any) -> Call:
    return values, named


# What methods are called with, where a value for each parameter must be given. A method that is not here is called
# without arguments; one that needs some fails `test_no_method_is_left_out`.
VERBS: dict[str, list[Call]] = {
    "shuffle": [call(seed=3, window="8KiB", chunk="1KiB"), call("full"), call("none")],
    "select": [call(range(0, 20, 2)), call(label=1)],
    "sample": [call(num_samples=40), call(by="label", balanced=True)],
    "take": [call(25)],
    "skip": [call(5)],
    "without": [call(positions=[(2, 5)]), call(steps=1)],
    "extended": [call()],
    "partition": [call(rank=1, world_size=2)],
    "map": [call(same)],
    "filter": [call(is_even), call(is_even, refill=True)],
    "flat_map": [call(twice, most=2)],
    "decode": [call()],
    "decode_frames": [call()],
    "join": [call("scores", on="text", how="left"), call("scores", on="text")],
    "tokenize": [call("tokenizer.json", field="text", to="tokens")],
    "chat_tokens": [call("tokenizer.json", template="{{ messages }}", train_on="all")],
    "fill_in_middle": [call(prefix=1, middle=2, suffix=3, rate=0)],  # tokens name their documents
    "rename": [call(words="tokens"), call(other="text")],
    "columns": [call("tokens", "num_tokens")],
    "to_tuple": [call("tokens")],
    "with_ids": [call()],
    "windows": [call(3, by="shard"), call(offsets={"label": [-1, 0]}, by="shard", pad="edge", stride=2)],
    "format": [call("numpy"), call("arrow"), call("torch"), call("python")],
    "batch": [
        call(4),
        call(global_batch_size=6, remainder="pad"),
        call(3, remainder="drop"),
        call(4, by="label", alike=2),
        call(2, 3, by="label", too_small="drop"),
        call(limits={"num_tokens": 90}, too_large="drop", block=16),
        call(4, balance="num_tokens", neighbours=2),
    ],
    "reading": [call(on_error="skip"), call(memory_limit="1MiB")],
    "pack_sequences": [call(16), call(16, lengths=None, block=8), call(20, strategy="best_fit", block=16)],
    "batch_by_length": [call(4), call(max_tokens=64)],
    "reweight": [call(at=12, weights={"web": 0.5, "code": 0.5}), call(at=2, in_steps=True, weights=WEIGHTS)],
}

ASKED: dict[str, list[Call]] = {
    "batch_ids": [call(0), call(1, epoch=1, rank=0, world_size=2)],
    "class_names": [call("label")],
    "counts": [call(7)],
    "batch_segments": [call(0), call(1, epoch=1, rank=0, world_size=2)],
    "ids": [call(0, 0, 9), call(1, 2, 5)],
    "index_column": [call("num_tokens")],
    "source_of": [call(range(12))],
    "split": [call({"train": 0.5, "val": 0.5})],
    "state_at": [call(3), call(0, epoch=2)],
    "weights_at": [call(7)],
    "quality": [call(batch=2), call(batch=2, key="label")],
    "set_epoch": [call(1)],
    "load_state_dict": [],  # by `test_states_and_certificates_hold_after_every_chain_of_verbs`
    "check_certificate": [],
    "__getitem__": [call(3), call(-1)],
}

WITH_TOKENIZERS = ("tokenize", "chat_tokens")  # whose file is in a directory of the test
SPECIAL = ("__getitem__", "__len__", "__repr__")
PUBLIC = sorted({name for name in dir(MixedDataset) if not name.startswith("_")} | {*SPECIAL})
METHODS = [name for name in PUBLIC if callable(getattr(MixedDataset, name))]


def needs_arguments(name: str) -> bool:
    parameters = list(inspect.signature(getattr(MixedDataset, name)).parameters.values())[1:]
    return any(each.default is each.empty and each.kind is not each.VAR_KEYWORD for each in parameters)


def test_no_method_is_left_out() -> None:
    assert [name for name in METHODS if needs_arguments(name) and name not in VERBS | ASKED] == []
    makes = [
        name for name in METHODS if "Self" in str(inspect.signature(getattr(MixedDataset, name)).return_annotation)
    ]
    assert [name for name in makes if name not in VERBS] == []
    assert [name for name in {**VERBS, **ASKED} if name not in PUBLIC] == []


LINKS = [(name, which) for name, calls in VERBS.items() for which in range(len(calls))]
chains = st.lists(st.sampled_from(LINKS), max_size=5)
PACKINGS = [("pack_sequences", 0), ("pack_sequences", 1), ("pack_sequences", 2), ("batch_by_length", 0)]
packed_chains = st.tuples(
    st.lists(st.sampled_from(LINKS), max_size=2),
    st.sampled_from(PACKINGS),
    st.lists(st.sampled_from(LINKS), max_size=3),
).map(lambda each: [*each[0], each[1], *each[2]])


def built(home: Path, source: str, links: list[tuple[str, int]]) -> Dataset:
    """The dataset after those verbs that do not refuse what came before them."""
    ds = SOURCES[source](home)
    for name, which in links:
        values, named = VERBS[name][which]
        if name in WITH_TOKENIZERS:
            values = (str(home / values[0]),)
        if name == "join":
            values = (shoal.open(home / values[0]),)
        if name == "reweight" and not isinstance(ds, MixedDataset):
            continue
        try:
            ds = getattr(ds, name)(*values, **named)
        except UsageError as error:
            check_words(error)
    return ds


def check_words(error: Exception) -> None:
    """Fail if an error speaks of the inside of shoal, not of what was asked."""
    text = str(error)
    assert not any(word in text for word in ("object has no attribute", "Resolved", "NoneType", "zip()")), text
    assert len(text) > 20, text


def outcome(function: Callable[[], Any], *expected: type[Exception]) -> Any:
    """What a call gives, or its error, which must be a `UsageError` or one of those that Python expects there."""
    errors: tuple[type[Exception], ...] = (UsageError, *expected)
    try:
        return function()
    except errors as error:
        check_words(error)
        return error


def asked(ds: Dataset, name: str) -> list[Any]:
    """What a public method or property gives, for each of the arguments to try."""
    if name in ("__repr__", "__len__"):
        return [outcome(lambda: repr(ds) if name == "__repr__" else len(ds), TypeError)]
    if name not in METHODS:
        return [outcome(lambda: getattr(ds, name))]
    if name not in VERBS | ASKED:
        expected = (ImportError,) if name == "to_hf" else ()
        return [outcome(getattr(ds, name), *expected, StateError)]
    calls = (VERBS | ASKED)[name]
    return [
        outcome(lambda values=values, named=named: getattr(ds, name)(*values, **named))  # type: ignore[misc]
        for values, named in calls
        if name not in WITH_TOKENIZERS
    ]


@settings(max_examples=60)
@given(source=st.sampled_from(sorted(SOURCES)), links=st.one_of(chains, packed_chains))
def test_every_method_after_every_chain_of_verbs(home: Path, source: str, links: list[tuple[str, int]]) -> None:
    ds = built(home, source, links)
    found: dict[str, Any] = {}
    for name in PUBLIC:
        if hasattr(type(ds), name):
            found[name] = asked(ds, name)
    check_facts(ds, found)


def check_facts(ds: Dataset, found: dict[str, Any]) -> None:
    """Compare what the methods said with one another, and with what is streamed."""
    packed = ds.stream.spec.rows.verb or None
    ds = type(ds)(ds.stream.spec)
    text, num_samples = found["__repr__"][0], found["num_samples"][0]
    assert isinstance(text, str), text
    if packed is not None:
        noun = ds.stream.spec.rows.noun
        assert noun in text or "endless" in text, text
        assert noun == "samples" or "samples of" not in text, text
    if isinstance(num_samples, int) and num_samples < 10**6:
        assert packed is not None or f"{num_samples:,} samples" in text, text
    if isinstance(ds, MixedDataset):
        check_mixture(found)
    if isinstance(ids := found["ids"][0], np.ndarray) and isinstance(ds.num_samples, int):
        assert packed is not None or len(ids) == min(9, ds.num_samples)
    streamed = outcome(lambda: list(itertools.islice(ds, FEW)))
    if isinstance(streamed, Exception):
        return
    length = found["__len__"][0]
    if isinstance(length, int):
        assert len(streamed) == min(FEW, length)
    check_batch_ids(ds, streamed)


def check_mixture(found: dict[str, Any]) -> None:
    names, counts, numbers = found["sources"][0], found["counts"][0], found["source_of"][0]
    weights = found["weights_at"][0]
    assert set(names) in ({"web", "code"}, {"inner", "more"}), names
    assert tuple(counts) == tuple(weights) == names
    assert sum(counts.values()) == 7
    assert abs(sum(weights.values()) - 1) < 1e-9
    assert numbers.shape == (12,)
    assert [counts[name] for name in names] == np.bincount(numbers[:7], minlength=len(names)).tolist()
    assert isinstance(found["exhausted_at"][0], dict)


def check_batch_ids(ds: Dataset, streamed: list[Any]) -> None:
    """Compare the documents that tokens say with those that `batch_ids` says, on this rank."""
    rank, _ = ds.stream.spec.ranks.resolve()
    for step, batch in enumerate(streamed):
        ids = outcome(lambda step=step: ds.batch_ids(step, rank=rank))  # type: ignore[misc]
        if ds.stream.spec.batching is None or not isinstance(batch, dict) or isinstance(ids, Exception):
            continue
        if "windows of" in repr(ds):
            continue  # whose ids are not those of documents
        if "tokens" not in batch or ds.stream.spec.has_filters or "tokenize" in repr(ds) or "chat_tokens" in repr(ds):
            continue
        tokens = np.concatenate([np.atleast_1d(np.asarray(each)) for each in batch["tokens"]])
        segments = batch.get("segment_ids", batch.get("attention_mask"))
        if segments is None and ds.stream.spec.rows.verb:
            continue  # columns() left out what tells tokens from padding
        if segments is not None:
            tokens = tokens[np.asarray(segments).ravel() > 0]
        assert set((tokens.astype(np.int64) // 100).tolist()) == {each for each in ids.tolist() if tokens_of(each)}


@settings(max_examples=40)
@given(
    source=st.sampled_from(sorted(SOURCES)),
    links=st.one_of(chains, packed_chains),
    stop=st.integers(0, 4),
)
def test_states_and_certificates_hold_after_every_chain_of_verbs(
    home: Path, source: str, links: list[tuple[str, int]], stop: int
) -> None:
    first, second = built(home, source, links), built(home, source, links)
    whole = outcome(lambda: list(itertools.islice(first, FEW)))
    if isinstance(whole, Exception):
        return
    again = built(home, source, links)
    for _ in zip(range(stop), again, strict=False):
        pass
    state = outcome(again.state_dict, StateError)
    if isinstance(state, Exception):
        return
    second.load_state_dict(json.loads(json.dumps(state)))
    if state["epoch"]:
        return
    rest = list(itertools.islice(second, FEW - stop))
    assert list(map(shown, rest)) == list(map(shown, whole[stop:]))
    if first.stream.spec.ranks.resolve()[1] == 1 and ends(first):
        for _ in (done := built(home, source, links)):
            pass
        spec = done.stream.spec
        leaves_out = (
            spec.has_filters or spec.batcher.counts_share or spec.reading.leaves_out
        )  # and so delivers less than there is
        outcome(lambda: done.check_certificate(done.certificate()), *[StateError] * leaves_out)


def ends(ds: Dataset) -> bool:
    return ds.stream.spec.num_samples < 10**6


def shown(batch: Any) -> str:
    return repr(batch.to_pydict() if hasattr(batch, "to_pydict") else batch)


def test_what_follows_packing_is_refused_before_it_means_something_else(home: Path) -> None:
    packed = mixture(home, missing="none").pack_sequences(16)
    for name, verb in {
        "shuffle": lambda ds: ds.shuffle(seed=0),
        "take": lambda ds: ds.take(3),
        "skip": lambda ds: ds.skip(3),
        "select": lambda ds: ds.select([1, 2]),
        "rename": lambda ds: ds.rename(words="tokens"),
        "columns": lambda ds: ds.columns("tokens"),
        "with_ids": lambda ds: ds.with_ids(),
    }.items():
        with pytest.raises(UsageError, match=rf"{name}\(\) works on documents, but was called after pack_sequences"):
            verb(packed)
    for name, verb in {"sample": lambda ds: ds.sample(by="label"), "split": lambda ds: ds.split({"a": 0.5})}.items():
        with pytest.raises(UsageError, match=rf"{name}\(\) works on documents, but was called after pack_sequences"):
            verb(shoal.open(home / "web").pack_sequences(16))
    with pytest.raises(UsageError, match=r"'a' has pack_sequences\(\)"):
        shoal.mix({"a": packed})
    num_sequences = packed.num_samples
    with pytest.raises(UsageError, match=f"epoch 0 has {num_sequences}"):
        packed.without(positions=[(0, num_sequences + 1)])
    with pytest.raises(UsageError, match="this mixture has no end"):
        mixture(home, ends="forever").pack_sequences(16)


def test_a_summary_counts_documents_not_samples(home: Path) -> None:
    web = shoal.open(home / "web")
    assert "50 documents of 2 mds shards, packed into sequences of 16 tokens" in repr(web.pack_sequences(16))
    assert "50 documents of 2 mds shards, batches by length" in repr(web.batch_by_length(4))
    assert "75 documents, " in repr(mixture(home).pack_sequences(16))


def test_a_part_of_an_endless_mixture_has_a_number_of_samples(home: Path) -> None:
    endless = mixture(home, ends="forever")
    assert repr(endless).endswith("of web, code, endless>")
    assert "of web, code, 25 samples" in repr(endless.take(25))


def test_sources_with_other_fields_are_packed_since_sequences_have_tokens_alone(home: Path) -> None:
    batches = list(mixture(home).shuffle(seed=0).pack_sequences(16).batch(4))
    assert {tuple(batch) for batch in batches} == {("tokens", "segment_ids", "position_ids")}
    with pytest.raises(UsageError, match="batches need all fields"):
        next(iter(mixture(home).batch_by_length(4)))


def test_a_change_of_weights_after_packing_counts_sequences(home: Path) -> None:
    packed = mixture(home, missing="none").shuffle(seed=0).pack_sequences(16).batch(4)
    weights = {"web": 0.1, "code": 0.9}
    changed = packed.reweight(at=3, in_steps=True, weights=weights)
    for step in range(3):
        assert changed.batch_ids(step).tolist() == packed.batch_ids(step).tolist()
    assert changed.batch_ids(3).tolist() != packed.batch_ids(3).tolist()
    as_they_come = mixture(home).pack_sequences(16, lengths=None).batch(4)
    with pytest.raises(
        UsageError,
        match=r"reweight\(in_steps=True\) counts batches, but only reading shows the samples",
    ):
        as_they_come.reweight(at=3, in_steps=True, weights=weights)


def test_lists_of_sample_ids_and_functions_that_collate_are_refused_for_sequences(home: Path) -> None:
    torch = pytest.importorskip("shoal.torch")
    packed = shoal.open(home / "web").pack_sequences(16)
    for sampler, ds in (
        (torch.Sampler, packed),
        (torch.BatchSampler, packed.batch(4)),
        (torch.BatchSampler, shoal.open(home / "web").batch_by_length(4)),
    ):
        with pytest.raises(UsageError, match="joins several samples"):
            sampler(ds)
    for each in (packed.batch(4), shoal.open(home / "web").pack_sequences(16, lengths=None).batch(4)):
        with pytest.raises(UsageError, match=r"makes the arrays itself"):
            next(iter(torch.DataLoader(each, collate_fn=list)))


def test_a_misspelt_name_is_told_with_the_one_that_was_meant(home: Path) -> None:
    ds: Any = shoal.open(home / "web")
    for owner, name, meant in (
        (ds, "pack_sequence", "pack_sequences"),
        (mixture(home), "weight_at", "weights_at"),
        (shoal.from_iterable([1]), "bacth", "batch"),
        (shoal, "from_iterables", "from_iterable"),
    ):
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'; did you mean '{meant}'"):
            getattr(owner, name)
    with pytest.raises(AttributeError, match=r"has no attribute '__array__'$"):
        ds.__array__  # noqa: B018
    assert not hasattr(ds, "_missing")


class Broken(Dataset):
    """A dataset with a property that fails."""

    @property
    def broken(self) -> int:
        """Fail by itself."""
        return self.stream.nothing  # type: ignore[attr-defined]


def test_a_property_that_fails_tells_its_own_error(home: Path) -> None:
    with pytest.raises(AttributeError, match="'Stream' object has no attribute 'nothing'"):
        Broken(shoal.open(home / "web").stream.spec).broken  # noqa: B018


@pytest.mark.parametrize("verb", ["pack_sequences", "batch_by_length"])
def test_raw_text_without_lengths_is_told_how_to_get_them(home: Path, verb: str) -> None:
    with pytest.raises(UsageError, match="the index has no column 'num_token'") as told:
        next(iter(getattr(shoal.open(home / "web"), verb)(8, lengths="num_token")))
    hint = told.value.hint
    assert hint.startswith("did you mean 'num_tokens'?")
    assert "`shoal pack --tokenize`" in hint
    assert ("lengths=None" in hint) == (verb == "pack_sequences")
    assert hint.index("--tokenize") < hint.index("--columns")
