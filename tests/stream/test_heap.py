"""Memory of batches that stays with the process: counted in page faults, by processes that do nothing else."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from shoal.stream.heap import keep_for_next

keep_for_next(int(sys.argv[1]))
value = bytes(100_000)

def batch():
    return [value[:-1] for _ in range(64)]  # each is a copy

kept = batch()
kept = batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    kept = batch()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / (20 * 64))
"""


def faults_for_each_value(num_bytes: int) -> float:
    ran = subprocess.run([sys.executable, "-c", PROGRAM, str(num_bytes)], capture_output=True, text=True, check=True)
    return float(ran.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators give memory back by other rules")
def test_what_a_batch_was_in_serves_the_next_one() -> None:
    assert faults_for_each_value(0) > 5  # of the 25 pages that a value has
    assert faults_for_each_value(64 * 100_000) < 0.5
