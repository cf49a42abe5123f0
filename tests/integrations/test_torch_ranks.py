"""Ranks that differ are found before they train; meshes say which ranks share samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist
from tests.stream.made import batches_of

import shoal.torch
from shoal.errors import UsageError
from shoal.pipeline.stages.context_slices import ContextSlice
from shoal.stream.dataset import Dataset
from shoal.stream.ranks import Ranks

fake_pg = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
mesh_of = pytest.importorskip("torch.distributed.device_mesh").init_device_mesh

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


@pytest.fixture
def as_rank() -> Any:
    """Make this process a rank of a job whose other ranks are silent."""

    def begin(rank: int, world_size: int) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", rank=rank, world_size=world_size, store=fake_pg.FakeStore())

    yield begin
    if dist.is_initialized():
        dist.destroy_process_group()


def test_a_running_process_group_says_the_rank(as_rank: Callable[[int, int], None], tars: Dataset) -> None:
    ds = tars.shuffle("full").batch(8)
    as_rank(2, 3)
    assert batches_of(ds) == batches_of(ds.partition(rank=2, world_size=3))


def test_a_mesh_says_which_ranks_share_samples(as_rank: Callable[[int, int], None], tars: Dataset) -> None:
    parts = []
    for rank in range(8):
        as_rank(rank, 8)
        mesh = mesh_of("cpu", (2, 2, 2), mesh_dim_names=("pod", "dp", "tp"))
        parts.append(
            tuple(
                shoal.torch.partition(tars.batch(4), mesh, dims).stream.spec.ranks.resolve()
                for dims in (["pod", "dp"], "dp", "tp", ["dp", "pod"])
            )
        )
        with pytest.raises(UsageError, match="'ddp'; the mesh has 'pod', 'dp', 'tp'"):
            shoal.torch.partition(tars, mesh, "ddp")
        with pytest.raises(UsageError, match="name them"):
            shoal.torch.partition(tars, mesh)
        line = mesh_of("cpu", (8,))
        assert shoal.torch.partition(tars, line).stream.spec.ranks.resolve() == (rank, 8)
    for rank, (both, inner, tensor, turned) in enumerate(parts):
        pod, dp, tp = rank // 4, rank // 2 % 2, rank % 2
        assert both == (2 * pod + dp, 4)
        assert inner == (dp, 2)
        assert tensor == (tp, 2)
        assert turned == (2 * dp + pod, 4)


def test_a_mesh_says_which_ranks_slice_the_same_sequences(as_rank: Callable[[int, int], None], tars: Dataset) -> None:
    for rank in range(8):
        as_rank(rank, 8)
        mesh = mesh_of("cpu", (2, 2, 2), mesh_dim_names=("dp", "cp", "tp"))
        ranks = shoal.torch.partition(tars, mesh, "dp", context="cp", context_slices="contiguous").stream.spec.ranks
        assert ranks.resolve() == (rank // 4, 2)
        assert ranks.slices == (ContextSlice(rank // 2 % 2, 2, "contiguous"),)
        assert ranks.slices == Ranks.of_arguments(rank, 8, 2, 2, "contiguous").slices
        for context in ("dp", "ddp"):
            with pytest.raises(UsageError, match=f"context='{context}' must be a dimension"):
                shoal.torch.partition(tars, mesh, "dp", context=context)


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch, as_rank: Callable[[int, int], None]) -> Any:
    """Let several datasets compare themselves as the ranks of one job."""

    def compare(datasets: list[Any]) -> None:
        told: list[Any] = []
        as_rank(0, len(datasets))
        monkeypatch.setattr(dist, "all_gather_object", lambda out, own, group: told.append(own))
        for ds in datasets:
            with pytest.raises(TypeError):  # nobody answered yet
                shoal.torch.compare_ranks(ds)
        for ds in datasets:
            monkeypatch.setattr(dist, "all_gather_object", lambda out, own, group: out.__setitem__(slice(None), told))
            shoal.torch.compare_ranks(ds)

    return compare


def ranks(ds: Dataset, world_size: int) -> list[Dataset]:
    return [ds.partition(rank=rank, world_size=world_size) for rank in range(world_size)]


def test_ranks_that_agree_pass(gathered: Callable[[list[Any]], None], tars: Dataset) -> None:
    ds = tars.shuffle(seed=1).batch(8)
    gathered(ranks(ds, 4))
    gathered([shoal.torch.DataLoader(part) for part in ranks(ds, 2)])
    gathered([part for part in ranks(ds, 2) for _ in range(3)])  # replicas


@pytest.mark.parametrize(
    ("change", "texts"),
    [
        (lambda tars: tars.shuffle(seed=2).batch(8), ["seed: 1 on ranks 0, 1, 3, but 2 on rank 2"]),
        (lambda tars: tars.shuffle("full", seed=1).batch(8), ["order: ", "'full'"]),
        (lambda tars: tars.take(100).shuffle(seed=1).batch(8), ["order: ", "stored"]),
        (lambda tars: tars.shuffle(seed=1).batch(9), ["global batch: 32 on ranks 0, 1, 3, but 36 on rank 2"]),
        (lambda tars: tars.shuffle(seed=1).batch(8, remainder="drop"), ["remainder: keep"]),
    ],
)
def test_a_rank_that_differs_is_named(
    change: Callable[[Dataset], Dataset], texts: list[str], gathered: Callable[[list[Any]], None], tars: Dataset
) -> None:
    parts = ranks(tars.shuffle(seed=1).batch(8), 4)
    parts[2] = change(tars).partition(rank=2, world_size=4)
    with pytest.raises(UsageError) as caught:
        gathered(parts)
    assert all(text in str(caught.value) for text in texts), str(caught.value)


def test_a_rank_that_resumed_alone_is_named(gathered: Callable[[list[Any]], None], tars: Dataset) -> None:
    parts = ranks(tars.shuffle(seed=1).batch(8), 3)
    parts[1].load_state_dict(parts[0].state_at(24, epoch=1))
    with pytest.raises(UsageError, match=r"epoch: 0 on ranks 0, 2, but 1 on rank 1; position: 0 on ranks 0, 2, but 24"):
        gathered(parts)


def test_parts_that_nobody_or_too_many_have(gathered: Callable[[list[Any]], None], tars: Dataset) -> None:
    ds = tars.shuffle(seed=1).batch(8)
    with pytest.raises(UsageError, match=r"in 3 parts; 0 belongs to ranks 0, 1, 2; no rank has \[1, 2\]"):
        gathered([ds.partition(rank=0, world_size=3)] * 3)
    with pytest.raises(UsageError, match=r"in 2 parts; 0 belongs to ranks 0, 1, 1 belongs to rank 2"):
        gathered([*ranks(ds, 2)[:1] * 2, ranks(ds, 2)[1]])


def test_without_a_process_group_there_is_nothing_to_compare(tars: Dataset) -> None:
    shoal.torch.compare_ranks(tars.batch(4))
