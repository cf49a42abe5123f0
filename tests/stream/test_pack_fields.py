"""Labels, masks and other fields packed along with tokens: from any source, through workers, ranks and resumes."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import MaskWarning, UsageError
from shoal.pipeline import mask_totals
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")

NUM_DOCUMENTS, LENGTH, SEPARATOR = 300, 48, 10**6
FIELDS = {"labels": -100, "weights": 0.0, "rows": -1}


def size_of(number: int) -> int:
    return number * 37 % 71


def document_of(number: int) -> dict[str, Any]:
    """A document whose fields follow from its tokens."""
    tokens = [number * 100 + place for place in range(size_of(number))]
    return {
        "tokens": tokens,
        "labels": [token + 1 if token % 5 else -100 for token in tokens],
        "loss_mask": [token % 3 > 0 for token in tokens],
        "weights": [token / 2 for token in tokens],
        "rows": [[token, -token] for token in tokens],
        "num_tokens": len(tokens),
    }


def written(directory: Path, documents: Iterable[dict[str, Any]]) -> Dataset:
    sizes: Any = {"shard_bytes": "64KiB", "extent_bytes": 2048}
    shoal.pack.pack(documents, directory, format="jsonl", columns=["num_tokens"], **sizes)
    return shoal.open(directory)


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return written(tmp_path_factory.mktemp("documents") / "d", map(document_of, range(NUM_DOCUMENTS)))


def packed(documents: Dataset, **how: Any) -> Dataset:
    how = {"strategy": "best_fit", "block": 64, "fields": FIELDS, "separator": SEPARATOR, **how}
    return documents.shuffle(seed=1, window="32KiB", chunk="4KiB").pack_sequences(LENGTH, **how)


def check_fields(batch: dict[str, Any]) -> None:
    """Each value is what its token says; padding and separators have the padding of each field."""
    tokens = np.asarray(batch["tokens"])
    is_token = (np.asarray(batch["segment_ids"]) > 0) & (tokens != SEPARATOR)
    expected = {
        "labels": np.where(is_token & (tokens % 5 > 0), tokens + 1, -100),
        "weights": np.where(is_token, tokens / 2, 0.0),
        "rows": np.where(is_token[..., None], np.stack([tokens, -tokens], axis=-1), -1),
        "loss_mask": is_token & (tokens % 3 > 0),
    }
    for name in expected.keys() & batch.keys():
        assert np.array_equal(batch[name], expected[name]), name


@pytest.mark.parametrize("lengths", ["num_tokens", None])
@pytest.mark.parametrize("strategy", ["concat", "first_fit", "best_fit"])
def test_fields_follow_their_tokens_and_do_not_change_the_packing(
    documents: Dataset, strategy: str, lengths: str | None
) -> None:
    how: dict[str, Any] = {"strategy": strategy, "lengths": lengths, "block": 32}
    batches = list(packed(documents, extras=["loss_mask"], **how).batch(5))
    alone = list(packed(documents, fields=(), **how).batch(5))
    for batch, tokens in zip(batches, alone, strict=True):
        check_fields(batch)
        assert {*FIELDS, "loss_mask"} == batch.keys() - tokens.keys()
        for name, values in tokens.items():
            assert np.array_equal(batch[name], values)
            assert batch[name].dtype == values.dtype
    seen = np.concatenate([batch["tokens"][batch["segment_ids"] > 0] for batch in batches])
    whole = [token for number in range(NUM_DOCUMENTS) for token in (*document_of(number)["tokens"], SEPARATOR)]
    assert sorted(seen.tolist()) == sorted(whole)


def test_a_state_knows_no_fields(documents: Dataset) -> None:
    plain, labelled = packed(documents, fields=()).batch(4), packed(documents).batch(4)
    whole = [batch["tokens"].tolist() for batch in plain]
    assert plain.state_dict() == labelled.state_dict() or list(labelled)
    plain.set_epoch(0)
    for _ in zip(range(3), plain, strict=False):
        pass
    labelled.load_state_dict(plain.state_dict())
    rest = list(labelled)
    assert [batch["tokens"].tolist() for batch in rest] == whole[3:]
    for batch in rest:
        check_fields(batch)


def rows_of(batches: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Each sequence with all its fields, as text."""
    for batch in batches:
        columns = [np.asarray(batch[name]).tolist() for name in sorted(batch) if name != "__pad__"]
        repeated = np.asarray(batch.get("__pad__", np.zeros(len(columns[0]), dtype=bool))).tolist()
        for row, is_repeat in zip(zip(*columns, strict=True), repeated, strict=True):
            if not is_repeat:
                yield repr(row)


@pytest.mark.parametrize(("before", "then"), [((0, 1), (2, 1)), ((2, 1), (0, 3)), ((2, 2), (1, 3))])
def test_a_run_resumes_with_other_workers_and_ranks(
    documents: Dataset, before: tuple[int, int], then: tuple[int, int]
) -> None:
    torch = pytest.importorskip("shoal.torch", reason="torch is not installed", exc_type=ImportError)
    dataset = packed(documents, fields=[*FIELDS, "loss_mask"])
    whole = sorted(rows_of(dataset.batch(4)))

    def loaders(num_workers: int, world_size: int) -> list[Any]:
        batched = dataset.batch(4)
        ranks = (batched.partition(rank=rank, world_size=world_size) for rank in range(world_size))
        return [torch.DataLoader(rank, num_workers=num_workers) for rank in ranks]

    rows: list[str] = []
    first = loaders(*before)
    for loader in first:
        rows += rows_of(batch for _, batch in zip(range(3), loader, strict=False))
    state = first[0].state_dict()
    for loader in loaders(*then):
        loader.load_state_dict(state)
        rows += rows_of(loader)
    assert sorted(rows) == whole


def test_sources_of_a_mixture_may_lack_a_mask(documents: Dataset, tmp_path: Path) -> None:
    texts = ({name: document_of(n)[name] for name in ("tokens", "num_tokens")} for n in range(300, 400))
    sources = {"chats": documents, "texts": written(tmp_path / "texts", texts)}
    mix: Any = {"weights": {"chats": 1, "texts": 1}, "epoch_size": 200, "seed": 2}
    extras = ["loss_mask", "source_ids"]
    optional = shoal.mix(sources, **mix).pack_sequences(LENGTH, extras=extras, block=64).batch(4)
    given = shoal.mix(sources, **mix, missing={"loss_mask": 1, "labels": -100})
    batches = list(given.pack_sequences(LENGTH, fields=["loss_mask", "labels"], extras=extras, block=64).batch(4))
    for batch, other in zip(batches, optional, strict=True):
        tokens, segments = batch["tokens"], batch["segment_ids"]
        sources_of_tokens = np.take_along_axis(batch["source_ids"], segments, axis=1)
        is_chat = sources_of_tokens == 0
        assert np.array_equal(batch["loss_mask"], (segments > 0) & (~is_chat | (tokens % 3 > 0)))
        assert np.array_equal(batch["labels"], np.where(is_chat & (tokens % 5 > 0), tokens + 1, -100))
        assert np.array_equal(other["loss_mask"], batch["loss_mask"])
    with pytest.raises(UsageError, match=r"fields=\['labels'\]\): the sample with id \d+ has no such field") as error:
        list(shoal.mix(sources, **mix).pack_sequences(LENGTH, fields=["labels"], block=64).batch(4))
    assert "mix(missing={'labels': ...})" in error.value.hint


@pytest.mark.parametrize("lengths", ["num_tokens", None])
def test_documents_with_other_numbers_of_values_are_named(documents: Dataset, lengths: str | None) -> None:
    short = documents.map(lambda document: document | {"labels": document["labels"][1:]})
    says = r"'labels' of the sample with id \d+ has (\d+) values, but the document has (\d+) tokens in 'tokens'"
    with pytest.raises(UsageError, match=says):
        list(packed(short, lengths=lengths).batch(4))


def test_wrong_arguments_are_refused(documents: Dataset) -> None:
    wrong: Any
    for wrong, says in (
        (["segment_ids"], r"fields=\['segment_ids'\]\): sequences have a field of this name"),
        (["tokens"], r"fields=\['tokens'\]\): sequences have a field of this name"),
        ({"labels": "x"}, r"the padding of 'labels' must be a number; got 'x' of type str"),
        ({"labels": None}, r"the padding of 'labels' must be a number; got None"),
        ({"loss_mask": 1}, "the padding of 'loss_mask' must be 0"),
        ({1: 0}, "takes a text; got 1 of type int"),
        ([1], "takes a text; got 1 of type int"),
        (3, r"fields=\) takes a list; got 3"),
    ):
        with pytest.raises(UsageError, match=says):
            documents.pack_sequences(8, fields=wrong)
    with pytest.raises(UsageError, match=r"padding=0\.5 is not an integer"):
        list(documents.pack_sequences(8, fields={"labels": 0.5}))
    one = next(iter(documents.pack_sequences(8, fields="labels")))
    assert one.keys() - {"tokens", "segment_ids", "position_ids"} == {"labels"}


def test_tensors_and_single_sequences_have_the_fields(documents: Dataset) -> None:
    torch = pytest.importorskip("torch")
    batch = next(iter(packed(documents).batch(4).format("torch")))
    assert batch["rows"].shape == (4, LENGTH, 2)
    assert batch["labels"].dtype == torch.int64
    sequence = next(iter(packed(documents)))
    assert np.array_equal(sequence["rows"], batch["rows"][0])


def with_constant_mask(value: bool, document: dict[str, Any]) -> dict[str, Any]:
    return document | {"loss_mask": [value] * len(document["tokens"])}


@pytest.mark.parametrize(
    ("value", "lengths", "num_workers"),
    [
        *itertools.product([True, False], ["num_tokens", None], [None, 0]),
        (True, None, 2),
        (False, "num_tokens", 2),
        pytest.param(True, "num_tokens", 2, marks=pytest.mark.drill),
        pytest.param(False, None, 2, marks=pytest.mark.drill),
    ],
)
def test_a_constant_mask_is_warned_of_once(
    documents: Dataset, value: bool, lengths: str | None, num_workers: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mask_totals, "NUM_TOKENS_TO_WARN", 12_000)  # the documents have 10,450 tokens
    dataset = packed(documents.map(partial(with_constant_mask, value)), extras=["loss_mask"], lengths=lengths).batch(4)
    if num_workers is not None:
        torch = pytest.importorskip("shoal.torch", reason="torch is not installed", exc_type=ImportError)
        dataset = torch.DataLoader(dataset, num_workers=num_workers)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", MaskWarning)
        list(dataset)
        assert not [warning for warning in caught if warning.category is MaskWarning]
        for _ in range(3):
            list(dataset)
    messages = [str(warning.message) for warning in caught if warning.category is MaskWarning]
    assert len(messages) == 1
    assert messages[0].startswith("'loss_mask' of 12,")
    assert ("leaves out none of them" if value else "leaves out all of them") in messages[0]


def test_masks_of_some_tokens_are_not_warned_of(documents: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mask_totals, "NUM_TOKENS_TO_WARN", 1_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error", MaskWarning)
        list(packed(documents, extras=["loss_mask"]))
        list(documents.columns("tokens").pack_sequences(LENGTH, extras=["loss_mask"]))
