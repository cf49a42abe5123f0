"""Memory of batches that stays with the process: counted in page faults, by processes that do nothing else."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from shoal.pipeline.batch_memory import keep_for_next

keep_for_next(int(sys.argv[1]))
value = bytes(100_000)

def batch():
    return [value[:-1] for _ in range(int(sys.argv[2]))]  # each is a copy

kept = batch()
kept = batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    kept = batch()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / (20 * int(sys.argv[2])))
"""


def faults_for_each_value(num_bytes: int, num_values: int) -> float:
    command = [sys.executable, "-c", PROGRAM, str(num_bytes), str(num_values)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


is_glibc = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others give memory back by other rules")


@is_glibc
@pytest.mark.parametrize("num_values", [64, 640])
def test_what_a_batch_was_in_serves_the_next_one(num_values: int) -> None:
    assert faults_for_each_value(num_values * 100_000, num_values) < 0.5


@is_glibc
def test_without_that_it_comes_anew_page_by_page() -> None:
    """Of a batch of a few MB: what else a process has freed while it began may have done as much for larger ones."""
    assert faults_for_each_value(0, 64) > 5  # of the 25 pages that a value has
