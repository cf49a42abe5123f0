"""Runs over batches by length or by column, and packed sequences, killed by SIGKILL and resumed at other sizes."""

from __future__ import annotations

import json
import multiprocessing
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.integrations import train_lengths

import shoal

ONE_KILL = [(2, 1, 7), (1, 0, 0)]
TWO_KILLS = [(2, 1, 7), (3, 0, 6), (1, 2, 0)]


# Each leg is a world size, a number of workers, and the steps after which each rank is killed, or 0.
# A rank that forks its workers needs no fork server of its own, which would import torch.
@pytest.mark.parametrize(
    ("how", "legs", "method"),
    [
        pytest.param("best_fit", ONE_KILL, "fork", id="best_fit, one kill"),
        pytest.param("best_fit", TWO_KILLS, None, id="best_fit, two kills", marks=pytest.mark.drill),
        pytest.param("by column", ONE_KILL, "fork", id="by column, one kill"),
        pytest.param("by column", TWO_KILLS, None, id="by column, two kills", marks=pytest.mark.drill),
        pytest.param("within limits", ONE_KILL, "fork", id="within limits, one kill", marks=pytest.mark.drill),
        pytest.param("by length", TWO_KILLS, None, id="by length, two kills", marks=pytest.mark.integration),
    ],
)
@pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")
def test_a_run_that_is_killed_has_every_token_once(
    how: str, legs: list[tuple[int, int, int]], method: str | None, tmp_path: Path
) -> None:
    train_lengths.write(tmp_path)
    context: Any = multiprocessing.get_context("forkserver")
    for number, (world_size, num_workers, steps) in enumerate(legs):
        ranks = [
            context.Process(
                target=train_lengths.run,
                args=(tmp_path, how, number, rank, world_size, num_workers, steps, method if num_workers else None),
            )
            for rank in range(world_size)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(120)
        assert [process.exitcode for process in ranks] == [-signal.SIGKILL if steps else 0] * world_size
    saved = [json.loads(path.read_text()) for path in tmp_path.glob("saved-*.json")]
    assert len(saved) == sum(world_size for world_size, _, _ in legs)
    tokens = sorted(token for each in saved for token in each["tokens"])
    assert tokens == list(range(len(tokens)))
    assert len(tokens) == int(shoal.open(tmp_path / "data").index_column("num_tokens").sum())
    whole = shoal.merge_certificates([each["certificate"] for each in saved])
    train_lengths.dataset(tmp_path, how).check_certificate(whole)
