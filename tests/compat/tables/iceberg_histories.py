"""Random histories of tables of Iceberg: each snapshot has the rows that pyiceberg reads."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import DoubleType, LongType, StringType
from tests.compat.tables.random_rows import SCHEMA, rows
from tests.tables.handmade_iceberg import catalog_in, commit_deletes, deletion_vectors, position_deletes

_TRANSFORMS: tuple[tuple[str, Any], ...] = (
    ("day", IdentityTransform()), ("when", DayTransform()), ("id", BucketTransform(3)), ("text", TruncateTransform(1)),
    ("flag", IdentityTransform()), ("small", IdentityTransform()),
)  # fmt: skip
_NAMES = [name for name in SCHEMA.names if name != "map"]  # pyiceberg 0.12 makes missing maps empty


def written(root: Path, random: Random) -> tuple[Any, int]:
    """Write a table; return it, and the number of rows ever written."""
    root.mkdir()
    names = [name for name in _NAMES if name == "id" or random.random() < 0.8]
    # Of another format version, position deletes would need other manifests.
    table = catalog_in(root).create_table("ns.t", schema=rows(random, 0, names).schema)
    last, step = 0, 0
    for step in range(random.randrange(3, 10)):
        operation = (
            random.choice(["append", "delete", "spec", "schema", "positions", "overwrite"]) if step else "append"
        )
        if operation == "append":
            last += _append(table, random, last)
        elif operation == "delete":
            table.delete(f"{_name_of(table, 1)} < {random.randrange(last + 1)}")
        elif operation == "overwrite":
            name = _name_of(table, 1)
            table.overwrite(pa.table({name: pa.array([last], pa.int64())}), overwrite_filter=f"{name} > {last // 2}")
            last += 1
        elif operation == "spec":
            _other_partitions(table, random)
        elif operation == "schema":
            _other_columns(table, random, step)
        else:
            _delete_positions(table, random, step)
    return table, last


def snapshots(table: Any) -> dict[Any, pa.Table]:
    """The rows of each snapshot, and of the current one with the current schema (None), as the library reads them."""
    found = {one.snapshot_id: table.scan(snapshot_id=one.snapshot_id).to_arrow() for one in table.snapshots()}
    return {**found, None: table.scan().to_arrow()}


def _append(table: Any, random: Random, last: int) -> int:
    known = {field.field_id: field for field in table.schema().fields}
    first = next(iter(table.schemas().values()))
    data = rows(random, last, [field.name for field in first.fields if field.field_id in known])
    names = [known[field.field_id].name for field in first.fields if field.field_id in known]
    kept = [name for name in names if name == _name_of(table, 1) or random.random() < 0.9]
    data = data.rename_columns(names).select(kept)
    nested = [field.name for field in data.schema if pa.types.is_nested(field.type)]
    data = data.drop_columns(nested) if len(table.schemas()) > 1 else data
    wanted = schema_to_pyarrow(table.schema(), include_field_ids=False)
    data = data.cast(pa.schema([wanted.field(name) for name in data.column_names]))
    table.append(data)
    return int(data.num_rows)


def _name_of(table: Any, number: int) -> str:
    return str(table.schema().find_column_name(number))


def _other_partitions(table: Any, random: Random) -> None:
    have = {field.name for field in table.spec().fields}
    source, transform = random.choice(_TRANSFORMS)
    with table.update_spec() as spec:
        if have and random.random() < 0.5:
            spec.remove_field(random.choice(sorted(have)))
        elif source in table.schema().column_names and f"p-{source}" not in have:
            spec.add_field(source, transform, f"p-{source}")


def _other_columns(table: Any, random: Random, step: int) -> None:
    names = [field.name for field in table.schema().fields]
    used = {
        table.schema().find_column_name(field.source_id) for spec in table.specs().values() for field in spec.fields
    }
    free = [name for name in names if name not in used and name != _name_of(table, 1)]
    with table.update_schema() as schema:
        kind = random.choice(["rename", "add", "drop", "widen", "move", "nested"])
        if kind == "rename":
            schema.rename_column(random.choice(names), f"renamed {step}")
        elif kind == "add":
            schema.add_column(f"added {step}", random.choice([LongType(), StringType()]))
        elif kind == "drop" and free:
            schema.delete_column(random.choice(free))
        elif kind == "widen" and "score" in free:
            schema.update_column("score", DoubleType())
        elif kind == "move":
            schema.move_first(random.choice(names))
        elif kind == "nested" and "nested" in names:
            schema.add_column(("nested", f"new {step}"), StringType())


def _delete_positions(table: Any, random: Random, step: int) -> None:
    tasks = list(table.scan().plan_files())
    if len(table.specs()) > 1 or table.spec().fields or not tasks:
        return  # a file of deletes would belong to a partition
    task = random.choice(tasks)
    numbers = random.sample(range(task.file.record_count), random.randrange(1, task.file.record_count + 1))
    make = random.choice([position_deletes, deletion_vectors])
    commit_deletes(table, make(table, {task.file.file_path: sorted(numbers)}, f"deletes-{step}"))
