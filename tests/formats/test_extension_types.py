"""Extension types of Arrow mean the same in every process, with any imports."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import ShardError
from shoal.pack.packing import pack

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

READER = Path(__file__).with_name("read_tensors.py")
READS_MISSING_LISTS = int(pa.__version__.split(".")[0]) >= 26  # older ones can do it for Arrow, not for Parquet
TENSORS = np.arange(48, dtype=np.float32).reshape(8, 2, 3)
LISTS = TENSORS.reshape(8, 6).tolist()


def field(name: str, kind: Any, extension: str, data: bytes | str) -> Any:
    """Return a field of an extension type that no class is registered for."""
    return pa.field(name, kind, metadata={"ARROW:extension:name": extension, "ARROW:extension:metadata": data})


def columns() -> dict[str, tuple[Any, Any]]:
    """Return fields and arrays: (2, 3) of float32 as each library stores it, and other types."""
    float32 = pa.float32()
    floats = pa.list_(float32)
    arrow = pa.fixed_shape_tensor(float32, (2, 3))
    turned = pa.fixed_shape_tensor(float32, (3, 2), permutation=[1, 0])
    bits = pa.fixed_shape_tensor(pa.bool_(), (2, 3)) if hasattr(pa, "bool8") else arrow
    is_odd = pa.array((TENSORS.reshape(8, 6) % 2 == 1).tolist(), pa.list_(pa.bool_(), 6))
    gaps = [row if number % 4 else None for number, row in enumerate(LISTS)]
    variable = pa.struct([("data", floats), ("shape", pa.list_(pa.int64()))])
    in_order = TENSORS.transpose(0, 2, 1).reshape(8, 6).tolist()
    fields = {
        "arrow": (pa.field("arrow", arrow), pa.array(LISTS, arrow.storage_type)),
        "turned": (pa.field("turned", turned), pa.array(in_order, turned.storage_type)),
        "gaps": (pa.field("gaps", arrow), pa.array(gaps, arrow.storage_type)),
        "ray": (field("ray", floats, "ray.data.arrow_tensor", "[2, 3]"), pa.array(LISTS, floats)),
        "pickled": (
            field("pickled", pa.large_list(float32), "ray.data.arrow_tensor_v2", pickle.dumps((2, 3))),
            pa.array(gaps, pa.large_list(float32)),
        ),
        "hf": (
            field(
                "hf",
                pa.list_(floats),
                "datasets.features.features.Array2DExtensionType",
                json.dumps([[2, 3], "float32"]),
            ),
            pa.array(TENSORS.tolist(), pa.list_(floats)),
        ),
        "bits": (pa.field("bits", bits), is_odd if bits is not arrow else pa.array(LISTS, arrow.storage_type)),
        "variable": (
            field("variable", variable, "ray.data.arrow_variable_shaped_tensor", "2"),
            pa.array([{"data": row, "shape": [2, 3]} for row in LISTS], variable),
        ),
        "point": (field("point", pa.int32(), "somebody.point", "x"), pa.array(range(8), pa.int32())),
        "uuid": (pa.field("uuid", pa.uuid()), pa.array([bytes([row] * 16) for row in range(8)], pa.binary(16))),
        "inside": (
            pa.field("inside", pa.struct([field("tensor", floats, "ray.data.arrow_tensor", "[2, 3]")])),
            pa.array([{"tensor": row} for row in LISTS], pa.struct([("tensor", floats)])),
        ),
    }
    return {name: (one, as_extension(one, array)) for name, (one, array) in fields.items()}


def as_extension(one: Any, array: Any) -> Any:
    is_extension = isinstance(one.type, pa.BaseExtensionType)
    return pa.ExtensionArray.from_storage(one.type, array) if is_extension else array


def table() -> Any:
    fields, arrays = zip(*columns().values(), strict=True)
    return pa.table(list(arrays), schema=pa.schema(list(fields)))


def written(directory: Path, rows: Any) -> list[Path]:
    """Write a table as Parquet, as a stream, and as a file of Arrow; 4 rows in each piece."""
    paths = [directory / name for name in ("a.parquet", "a.arrow", "a.arrows")]
    pq.write_table(rows, paths[0], row_group_size=4)
    for path, new in zip(paths[1:], (pa.ipc.new_file, pa.ipc.new_stream), strict=True):
        with new(path, rows.schema) as writer:
            writer.write_table(rows, max_chunksize=4)
    return paths


def run(*arguments: Any) -> Any:
    done = subprocess.run(
        [sys.executable, READER, *map(str, arguments)], check=True, capture_output=True, text=True, timeout=300
    )
    return json.loads(done.stdout.replace("element: ", "item: "))  # as Parquet names what lists hold


def test_a_tensor_has_one_shape_in_every_format_whatever_is_registered(tmp_path: Path) -> None:
    paths = written(tmp_path, table())
    if not READS_MISSING_LISTS:
        with pytest.raises(ShardError, match=r"install pyarrow 26"):
            shoal.open(str(paths.pop(0)))[0]
    plain = run("plain", "here", *paths)
    for shard in plain.values():
        (dtype, shape, values), number = shard["sample"]["arrow"], TENSORS[1].tolist()
        assert (dtype, shape, values) == ("float32", [2, 3], number)
        for name in ("turned", "ray", "hf"):
            assert shard["sample"][name] == shard["sample"]["arrow"]
        assert shard["child"] == shard["numpy"]
        for output in ("numpy", "None"):
            for batch, first in zip(shard[output], (0, 4), strict=True):
                for name in ("arrow", "turned", "ray", "hf"):
                    assert batch[name] == ["float32", [4, 2, 3], TENSORS[first : first + 4].tolist()]
                assert batch["bits"][:2] == ["bool", [4, 2, 3]]
                assert batch["gaps"][0] == "None"
                assert batch["gaps"] == batch["pickled"]
                assert batch["gaps"][1] == ["float32", [2, 3], TENSORS[first + 1].tolist()]
        for batch, first in zip(shard["arrow"], (0, 4), strict=True):
            for name in ("arrow", "turned", "ray", "hf"):
                kind, values = batch[name]
                assert np.shape(values) == (4, 2, 3)
                assert values == TENSORS[first : first + 4].tolist()
                assert kind.startswith("fixed_size_list<")
                assert kind.endswith("[2]")
        assert shard["sample"]["point"] == "np.int32(1)"
        assert shard["sample"]["uuid"] == repr(bytes([1] * 16))
        assert "shape" in shard["sample"]["variable"]
    one, *others = plain.values()
    assert all(other == one for other in others)
    assert run("registered", "here", *paths) == plain


@pytest.mark.drill
@pytest.mark.timeout(600)
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_give_the_same_tensors(tmp_path: Path, start: str) -> None:
    pytest.importorskip("torch")
    path = written(tmp_path, table().select(["arrow", "ray", "hf", "gaps", "point"]))[0]
    registered = run("registered", start, path)[str(path)]
    here = run("plain", "here", path)[str(path)]
    for batch, same in zip(registered["torch"], here["numpy"], strict=True):
        assert [batch[name] for name in ("arrow", "ray", "hf")] == [same["arrow"]] * 3


@pytest.mark.parametrize("name", ["arrow", "gaps", "turned", "ray", "pickled", "hf", "bits"])
def test_tensors_stay_tensors_when_they_are_packed_again(tmp_path: Path, name: str) -> None:
    if name in ("gaps", "pickled") and not READS_MISSING_LISTS:
        pytest.skip("this pyarrow cannot keep missing tensors in Parquet")
    path = written(tmp_path, table().select([name]))[0]
    ds = shoal.open(str(path))
    for target in ("parquet", "arrow"):
        out = tmp_path / target
        pack(ds, out, format=target)
        again = shoal.open(str(out))
        for row in range(8):
            one, other = ds[row][name], again[row][name]
            assert type(one) is type(other)
            assert np.array_equal(one, other)
            assert getattr(one, "dtype", None) == getattr(other, "dtype", None)


def test_a_tensor_without_a_readable_shape_is_an_error_that_names_it(tmp_path: Path) -> None:
    for data in (b"[2, 'x']", pickle.dumps(io.BytesIO), b"[2, 3.5]"):
        broken = field("broken", pa.list_(pa.float32()), "ray.data.arrow_tensor", data)
        rows = pa.table([pa.array(LISTS, pa.list_(pa.float32()))], schema=pa.schema([broken]))
        path = written(tmp_path, rows)[0]
        with pytest.raises(ShardError, match=r"column 'broken'.*ray\.data\.arrow_tensor.*shape cannot be read"):
            shoal.open(str(path))[0]


def test_rows_that_do_not_fit_the_shape_are_an_error(tmp_path: Path) -> None:
    ray = field("ray", pa.list_(pa.float32()), "ray.data.arrow_tensor", "[2, 3]")
    rows = pa.table([pa.array([[1.0] * 6, [1.0] * 5], pa.list_(pa.float32()))], schema=pa.schema([ray]))
    path = written(tmp_path, rows)[0]
    with pytest.raises(ShardError, match=r"column 'ray'.*shape \(2, 3\)"):
        shoal.open(str(path))[0]


def test_fixed_size_lists_in_each_other_are_arrays(tmp_path: Path) -> None:
    kind = pa.list_(pa.list_(pa.int16(), 3), 2)
    rows = pa.table({"x": pa.array(TENSORS.astype(int).tolist(), kind)})
    for path in written(tmp_path, rows):
        batch = next(iter(shoal.open(str(path)).batch(8)))
        assert batch["x"].dtype == np.int16
        assert np.array_equal(batch["x"], TENSORS)
