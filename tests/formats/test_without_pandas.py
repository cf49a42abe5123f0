"""Reading numbers out of tables imports no pandas where it is installed: a third of a second, and 33 MiB a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shoal.formats.tables.arrow_columns import numbers_of

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

KINDS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
SCRIPT = """
import sys, warnings
import shoal
warnings.simplefilter("ignore")
ds = shoal.open(sys.argv[1]).shuffle(seed=0)
assert sum(1 for _ in ds) == 100
assert sum(len(batch["number"]) for batch in ds.batch(10)) == 100
print("pandas" in sys.modules)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_those_of_pyarrow(kind: str) -> None:
    array = pa.array(np.arange(100).astype(kind))
    for part in (array, array[3:], array[5:9], array[:0], pa.chunked_array([array, array])):
        found, expected = numbers_of(part), part.to_numpy(zero_copy_only=False)
        assert found.dtype == expected.dtype
        assert found.tolist() == expected.tolist()
        assert isinstance(part, pa.ChunkedArray) or not found.flags.writeable


def test_others_are_those_of_pyarrow() -> None:
    for array in (pa.array([True, False]), pa.array([1, 2], pa.timestamp("s")), pa.array([1], pa.date32())):
        assert numbers_of(array).tolist() == array.to_numpy(zero_copy_only=False).tolist()


def test_tables_of_numbers_and_texts_are_read_without_pandas(tmp_path: Path) -> None:
    values = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(600.0)), 6)
    lists = pa.array([[number] * (number % 3) for number in range(100)])
    table = pa.table({"number": np.arange(100), "values": values, "lists": lists, "text": ["x"] * 100})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=20)
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "a.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr
