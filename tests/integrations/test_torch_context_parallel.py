"""Slices of sequences through worker processes: those of the calling process, pinned to a group's rank."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from tests.stream.test_context_parallel import check_slices
from tests.stream.test_pack_fields import document_of, packed, written

from shoal.stream.dataset import Dataset
from shoal.torch import DataLoader

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning", "ignore::shoal.errors.MaskWarning")


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return written(tmp_path_factory.mktemp("documents") / "d", map(document_of, range(90)))


def arrays_of(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(values) for name, values in batch.items()}


@pytest.mark.parametrize("lengths", ["num_tokens", None])
def test_workers_slice_sequences(documents: Dataset, lengths: str | None) -> None:
    ds = packed(documents, lengths=lengths, block=16, extras=["cu_seqlens"]).batch(
        4, steps="apart" if lengths is None else None
    )
    for part in range(2):
        whole = list(ds.partition(rank=part, world_size=2))
        sliced = []
        for number in range(2):
            rank = ds.partition(rank=2 * part + number, world_size=4, context_parallel=2)
            begun = DataLoader(rank, num_workers=2)
            batches = [arrays_of(batch) for batch in itertools.islice(begun, 3)]
            rest = DataLoader(rank.map(dict), num_workers=0)
            rest.load_state_dict(json.loads(json.dumps(begun.state_dict())))
            sliced.append(batches + [arrays_of(batch) for batch in rest])
        check_slices(whole, sliced)
