"""The measure of memory measures."""

from __future__ import annotations

import sys

import pytest
from tests.memory.pss import MIB, peak_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")

NOTHING = "import time; time.sleep(0.3)"
ALONE = "import time; held = b'x' * (80 << 20); time.sleep(0.3); del held; time.sleep(0.1); print('done')"
SHARED = """
import os, time
held = b"x" * (80 << 20)
child = os.fork()
time.sleep(0.4)
if not child:
    os._exit(0)
os.waitpid(child, 0)
"""
IN_CHILD = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ALONE!r}], check=True)"


def test_the_peak_is_seen_and_what_is_shared_counts_once() -> None:
    nothing = peak_of(NOTHING).peak_bytes
    assert 0 < nothing < 40 * MIB
    alone = peak_of(ALONE)
    assert alone.printed == "done\n"
    for peak in (alone, peak_of(SHARED), peak_of(IN_CHILD)):
        assert 75 * MIB < peak.peak_bytes - nothing < 120 * MIB


def test_a_process_that_fails_is_a_failure() -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        peak_of("1 / 0")
