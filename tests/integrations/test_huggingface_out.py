"""What `ds.to_hf()` hands to Hugging Face, asked as that library asks its sources."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterable
from typing import Any

import pytest

from shoal.errors import StateError, UsageError
from shoal.huggingface import from_hf, to_hf
from shoal.integrations.huggingface.to_datasets import Examples
from shoal.stream.dataset import Dataset

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


@pytest.fixture
def ds(tars: Dataset) -> Dataset:
    return tars.shuffle(seed=3).with_ids().columns("__id__")


def examples_of(ds: Dataset) -> Examples:
    return Examples(ds, ds.state_dict())


def ids_of(pairs: Iterable[tuple[int, Any]]) -> list[int]:
    return [sample["__id__"] for _, sample in pairs]


@pytest.mark.parametrize("epoch", [0, 3])
@pytest.mark.parametrize("taken", [0, 1, 100, 197])
def test_a_part_goes_on_where_its_state_says(epoch: int, taken: int, ds: Dataset) -> None:
    for ranks, workers in ((1, 1), (3, 1), (2, 2)):
        whole = []
        for rank, worker in itertools.product(range(ranks), range(workers)):
            part = examples_of(ds).shift_rngs(epoch).shard_data_sources(ranks, rank)
            part = part.shard_data_sources(workers, worker)
            state = part._init_state_dict()
            seen = ids_of(itertools.islice(part, taken))
            again = examples_of(ds).shift_rngs(epoch).shard_data_sources(ranks, rank)
            again = again.shard_data_sources(workers, worker)
            again.load_state_dict(json.loads(json.dumps(state)))
            seen += ids_of(again)
            assert seen == ds.ids(epoch)[rank + ranks * worker :: ranks * workers].tolist()
            whole += seen
        assert sorted(whole) == list(range(197))


def test_a_part_can_be_dealt_to_any_usual_number_of_ranks(ds: Dataset) -> None:
    source = examples_of(ds)
    for ranks in [*range(1, 17), 24, 32, 48, 64, 96, 128, 256, 512, 1024]:
        assert source.num_shards % ranks == 0
        assert len(source.split_shard_indices_by_worker(ranks, ranks - 1)) > 0


def test_a_state_of_another_part_or_dataset_is_refused(ds: Dataset) -> None:
    part = examples_of(ds).shard_data_sources(2, 1)
    list(itertools.islice(part, 5))
    for other in (examples_of(ds), examples_of(ds).shard_data_sources(2, 0), examples_of(ds).shard_data_sources(3, 1)):
        other.load_state_dict(part.state_dict())
        with pytest.raises(StateError, match=r"the state was saved with (num_parts=2|part=1); here"):
            next(iter(other))
    fewer = examples_of(ds.take(100)).shard_data_sources(2, 1)
    fewer.load_state_dict(part.state_dict())
    with pytest.raises(StateError, match="saved with no choice"):
        next(iter(fewer))


def test_a_buffer_on_top_is_refused_and_an_epoch_is_not(ds: Dataset) -> None:
    def shuffle(source: Examples) -> Examples:  # as the library's own method is called
        return source.shuffle_data_sources(None)

    source = examples_of(ds)
    assert source.shuffle_data_sources(None) is source
    with pytest.raises(UsageError, match=r"shuffle\(\) of Hugging Face datasets"):
        shuffle(source)


def test_an_epoch_before_that_of_the_dataset_is_refused(ds: Dataset) -> None:
    ds.load_state_dict(ds.state_at(50, epoch=2))
    assert ids_of(examples_of(ds).shift_rngs(2)) == ds.ids(2, 50).tolist()
    assert ids_of(examples_of(ds).shift_rngs(3)) == ds.ids(3).tolist()
    with pytest.raises(UsageError, match=r"already in epoch 2\n.*set_epoch\(2\)"):
        next(iter(examples_of(ds)))


def test_without_the_library_the_error_says_what_to_install(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    for ask in (ds.to_hf, lambda: to_hf(ds), lambda: from_hf([])):
        with pytest.raises(UsageError, match="pip install datasets"):
            ask()
    with pytest.raises(UsageError, match="yields batches"):
        ds.batch(8).to_hf()
    with pytest.raises(UsageError, match="yields tuples"):
        ds.to_tuple("__id__").to_hf()
    with pytest.raises(UsageError, match=r"split_dataset_by_node"):
        ds.partition(rank=0, world_size=2).to_hf()
    with pytest.raises(UsageError, match="takes a shoal dataset"):
        to_hf([])  # type: ignore[arg-type]


def test_without_jax_the_error_says_what_to_install(ds: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    from shoal.jax import DataLoader

    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(UsageError, match="pip install jax"):
        DataLoader(ds.batch(8))
