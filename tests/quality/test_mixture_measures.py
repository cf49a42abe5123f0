"""The measures of bench/mixtures.py, on deliveries small enough to count by hand."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest


@pytest.fixture(scope="module")
def measures() -> ModuleType:
    path = Path(__file__).parents[2] / "bench" / "mixture_peers" / "measures.py"
    spec = importlib.util.spec_from_file_location("mixture_measures", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return module


def of_source(*numbers: int) -> np.ndarray:
    return np.array([(0, number) for number in numbers])


def each(pairs: np.ndarray) -> np.ndarray:
    return np.arange(1, len(pairs) + 1)


def test_rounds_that_are_fresh_come_never_early(measures: ModuleType) -> None:
    pairs = of_source(0, 1, 2, 2, 0, 1)
    assert measures.early(pairs, each(pairs), [3]) == 0


def test_a_sample_before_the_others_came_is_early(measures: ModuleType) -> None:
    pairs = of_source(0, 0, 1, 2, 1, 1)
    assert measures.early(pairs, each(pairs), [3]) == 2


def test_what_comes_at_once_has_no_order(measures: ModuleType) -> None:
    pairs = of_source(0, 1, 0, 2, 1, 2)
    assert measures.early(pairs, each(pairs), [3]) == 1
    assert measures.early(pairs, np.array([2, 4, 6]), [3]) == 0
    assert measures.early(of_source(0, 0, 1), np.array([3]), [2]) == 0


def test_coverage_counts_distinct_samples_of_rounds(measures: ModuleType) -> None:
    pairs = of_source(0, 1, 0, 0, 1, 2)
    found = measures.rounds(pairs, each(pairs), [3], [0])
    assert found == {"1": 2 / 3, "2": 1.0, "same": 2 / 3}


def test_counts_are_compared_with_shares(measures: ModuleType) -> None:
    pairs = np.array([(0, 0), (0, 1), (1, 0), (0, 2)])
    found = measures.drift(pairs, np.array([0.5, 0.5]), np.array([1, 2, 3, 4]))
    assert (found["most"], found["end"], found["rare"]) == (1.0, 1.0, 0.5)


def test_ranks_are_merged_step_by_step(measures: ModuleType) -> None:
    epochs = np.array([0, 0])
    one = measures.Delivered(of_source(0, 1, 2, 3), np.array([2, 4]), epochs)
    other = measures.Delivered(of_source(10, 11, 12), np.array([2, 3]), np.array([0, 1]))
    pairs, ends = measures.merged([one, other])
    assert pairs[:, 1].tolist() == [0, 10, 1, 11, 2, 12, 3]
    assert ends.tolist() == [4, 7]
    assert measures.uneven_epochs([one, other])
    assert not measures.uneven_epochs([one, one])


def test_the_worst_share_is_that_of_any_rank(measures: ModuleType) -> None:
    even = measures.Delivered(np.array([(0, 0), (1, 0)]), np.array([2]), np.array([0]))
    alone = measures.Delivered(np.array([(0, 1), (0, 2)]), np.array([2]), np.array([0]))
    assert measures.skew([even, even], np.array([0.5, 0.5]))["all"] == 0
    assert measures.skew([even, alone], np.array([0.5, 0.5]))["all"] == 1


def test_a_resume_is_compared_with_the_run_that_went_on(measures: ModuleType) -> None:
    before, rest = of_source(0, 1), of_source(2, 3)
    ends = np.array([1, 2])
    assert measures.resumed(before, (rest, ends), (rest[::-1], ends), [4]) == {"compared": 2, "others": 0, "again": 0}
    replayed = of_source(1, 2)
    assert measures.resumed(before, (rest, ends), (replayed, ends), [4]) == {"compared": 2, "others": 1, "again": 1}
