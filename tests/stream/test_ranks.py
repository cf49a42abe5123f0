from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
from tests.stream.made import batches_of

from shoal.errors import UsageError
from shoal.stream.dataset import Dataset
from shoal.stream.ranks import Ranks, rank_and_world_size


def test_what_is_given_wins_over_the_environment() -> None:
    assert rank_and_world_size(None, {}) == (0, 1)
    assert rank_and_world_size(None, {"RANK": "2", "WORLD_SIZE": "8", "LOCAL_RANK": "0"}) == (2, 8)
    assert rank_and_world_size((1, 3), {"RANK": "2", "WORLD_SIZE": "8"}) == (1, 3)
    assert rank_and_world_size((0, 1), {"RANK": "nonsense"}) == (0, 1)
    assert rank_and_world_size(None, {"RANK": "", "WORLD_SIZE": ""}) == (0, 1)
    assert rank_and_world_size(None, {"WORLD_SIZE": "1"}) == (0, 1)
    with pytest.raises(UsageError, match="rank must be an integer; got '0'"):
        rank_and_world_size(("0", "2"))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"RANK": "1"}, "RANK='1' and WORLD_SIZE=None .* must both be integers"),
        ({"WORLD_SIZE": "4"}, "RANK=None and WORLD_SIZE='4'"),
        ({"RANK": "", "WORLD_SIZE": "4"}, "RANK=None and WORLD_SIZE='4'"),
        ({"RANK": "a", "WORLD_SIZE": "4"}, "RANK='a'"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "0 to world_size - 1 = 3; got rank=4"),
        ({"RANK": "-1", "WORLD_SIZE": "4"}, "got rank=-1"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "world_size must be at least 1; got 0"),
    ],
)
def test_what_makes_no_rank_is_an_error(environment: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        rank_and_world_size(None, environment)


SLURM = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2"}
MPI = {"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}
TORCHRUN = {"RANK": "2", "WORLD_SIZE": "8"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (SLURM, (1, 2)),
        (MPI, (3, 4)),
        ({"PMI_RANK": "0", "PMI_SIZE": "5"}, (0, 5)),
        ({"MV2_COMM_WORLD_RANK": "4", "MV2_COMM_WORLD_SIZE": "5"}, (4, 5)),
        ({**SLURM, "PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),  # srun speaks both
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (0, 1)),
        ({"SLURM_NTASKS": "8"}, (0, 1)),  # a shell of an allocation
        ({"RANK": "5", "WORLD_SIZE": "8", **SLURM}, (5, 8)),  # a task for each machine, four processes on each
        ({**TORCHRUN, **SLURM, "TORCHELASTIC_RUN_ID": "1"}, (2, 8)),  # torchrun numbers machines its own way
    ],
)
def test_every_launcher_is_understood(environment: dict[str, str], expected: tuple[int, int]) -> None:
    assert rank_and_world_size(None, environment) == expected


@pytest.mark.parametrize(
    ("environment", "both"),
    [
        ({**TORCHRUN, **SLURM}, ["RANK, WORLD_SIZE) says rank 2 of 8", "SLURM_STEP_NUM_TASKS) says rank 1 of 2"]),
        ({"RANK": "0", "WORLD_SIZE": "1", **MPI}, ["rank 0 of 1", "rank 3 of 4"]),
        ({**SLURM, **MPI}, ["rank 1 of 2", "rank 3 of 4"]),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, ["SLURM_NTASKS=8", "not started by srun"]),
        ({"SLURM_STEP_NUM_TASKS": "8"}, ["SLURM_PROCID=None", "SLURM_STEP_NUM_TASKS='8'"]),
    ],
)
def test_what_disagrees_is_an_error_that_shows_both(environment: dict[str, str], both: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        rank_and_world_size(None, environment)
    assert all(text in str(caught.value) for text in [*both, ".partition(rank="])


def running(monkeypatch: pytest.MonkeyPatch, name: str, module: object) -> None:
    monkeypatch.setitem(sys.modules, name, module)


def torch_says(rank: int, world_size: int) -> object:
    return SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        get_rank=lambda: rank,
        get_world_size=lambda: world_size,
    )


def test_libraries_that_run_a_job_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    running(monkeypatch, "torch.distributed", torch_says(2, 8))
    assert rank_and_world_size(None, {}) == rank_and_world_size(None, TORCHRUN) == (2, 8)
    with pytest.raises(UsageError, match=r"torch.distributed says rank 2 of 8, but the environment .* rank 1 of 8"):
        rank_and_world_size(None, {"RANK": "1", "WORLD_SIZE": "8"})
    # Lightning's launcher sets the world size alone.
    assert rank_and_world_size(None, {"WORLD_SIZE": "4"}) == rank_and_world_size(None, {})
    jax = SimpleNamespace(
        distributed=SimpleNamespace(is_initialized=lambda: True), process_index=lambda: 1, process_count=lambda: 4
    )
    running(monkeypatch, "jax", jax)
    with pytest.raises(UsageError, match=r"torch.distributed says rank 2 of 8, but jax.distributed says rank 1 of 4"):
        rank_and_world_size(None, {})
    running(monkeypatch, "torch.distributed", SimpleNamespace(is_available=lambda: False))
    assert rank_and_world_size(None, {}) == (1, 4)
    running(monkeypatch, "jax", SimpleNamespace())
    context = SimpleNamespace(get_world_rank=lambda: 6, get_world_size=lambda: 7)
    running(monkeypatch, "ray.train", SimpleNamespace(get_context=lambda: context))
    assert rank_and_world_size(None, {}) == (6, 7)


def test_ranks_in_a_row_may_share_their_samples() -> None:
    parts = [Ranks.of_arguments(rank, 12, 4).resolve() for rank in range(12)]
    assert parts == [(rank // 4, 3) for rank in range(12)]
    for arguments, message in [
        ((0, 12, 5), "replicate=5 does not divide the 12 ranks"),
        ((0, 12, 0), "at least 1; got 0"),
        ((0, None, 2), "rank and world_size together"),
        ((0, 12, 1.5), "replicate must be an integer"),
    ]:
        with pytest.raises(UsageError, match=message):
            Ranks.of_arguments(*arguments)


def test_a_dataset_of_replicas(tars: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    ds = tars.shuffle("full", seed=1).batch(8)
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "4")
        replica = ds.partition(replicate=2)
        expected = ds.partition(rank=rank // 2, world_size=2)
        assert len(replica) == len(expected) == 13
        assert replica.batch_ids(3).tolist() == expected.batch_ids(3).tolist()
        assert batches_of(replica) == batches_of(expected)
