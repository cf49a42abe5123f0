"""Random histories of tables of Delta Lake: each version has the rows that deltalake reads."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from tests.compat.tables.random_rows import SCHEMA, rows
from tests.tables.handmade_delta import HandmadeDelta, field, struct_of


def written(root: Path, random: Random) -> int:
    """Write a table by the library's own operations; return the number of rows ever written."""
    names = [name for name in SCHEMA.names if name == "id" or random.random() < 0.8]
    partitions = [name for name in ("day", "flag", "small") if name in names and random.random() < 0.3]
    table, last = rows(random, 0, names), 0
    write_deltalake(str(root), table, partition_by=partitions or None)
    last += table.num_rows
    for _ in range(random.randrange(2, 9)):
        operation = random.choice(
            ["append", "append", "delete", "update", "merge", "compact", "z_order", "more", "checkpoint"]
        )
        delta = DeltaTable(str(root))
        chosen = f"id % {random.randrange(2, 7)} = {random.randrange(2)}"
        if operation in ("append", "more"):
            have = [name for name in SCHEMA.names if name in pa.schema(delta.schema().to_arrow()).names]
            more = [name for name in SCHEMA.names if name in have or (operation == "more" and random.random() < 0.3)]
            added = rows(random, last, more)
            write_deltalake(str(root), added, mode="append", schema_mode="merge")
            last += added.num_rows
        elif operation == "delete":
            delta.delete(chosen)
        elif operation == "update":
            delta.update(updates={"id": "id + 100000"}, predicate=chosen)
        elif operation == "merge":
            source = pa.table({"id": pa.array([1, last], pa.int64())})
            merge = delta.merge(source, "t.id = s.id", source_alias="s", target_alias="t")
            merge.when_matched_delete().when_not_matched_insert({"id": "s.id"}).execute()
            last += 1
        elif operation == "compact":
            delta.optimize.compact()
        elif operation == "z_order":
            delta.optimize.z_order(["id"])
        else:
            delta.create_checkpoint()
    return last


def handmade(root: Path, random: Random) -> int:
    """Write a table with deletion vectors and renamed columns by hand; return the number of rows ever written."""
    mode = random.choice(["name", "id"])
    table = HandmadeDelta(root, "columnMapping", "deletionVectors", mode=mode)
    names = ["id", "text", "x", "y"]
    shown = dict(zip(names, names, strict=True))
    files: dict[str, tuple[int, dict[str, Any] | None, set[int]]] = {}
    last = 0

    def typed(name: str, kind: pa.DataType) -> pa.Field:
        return pa.field(f"c-{name}", kind, metadata={"PARQUET:field_id": str(names.index(name) + 1)})

    def schema() -> dict[str, Any]:
        inside = [field(shown["x"], "long", "c-x", 3), field(shown["y"], "string", "c-y", 4)]
        random.shuffle(inside)
        outside = [field(shown["id"], "long", "c-id", 1), field(shown["text"], "string", "c-text", 2)]
        return table.schema(*outside, field("s", struct_of(*inside), "c-s", 9))

    for step in range(random.randrange(3, 9)):
        actions: list[dict[str, Any]] = [schema()] if not step else []
        if not step or random.random() < 0.4:
            num_rows = random.randrange(1, 80)
            inside = pa.struct([typed("x", pa.int32()), typed("y", pa.string())])
            kinds = [typed("id", pa.int64()), typed("text", pa.string())]
            kinds.append(pa.field("c-s", inside, metadata={"PARQUET:field_id": "9"}))
            made = [
                {"c-id": last + number, "c-text": random.choice([None, str(number)]),
                 "c-s": random.choice([None, {"c-x": number, "c-y": random.choice([None, "y"])}])}
                for number in range(num_rows)
            ]  # fmt: skip
            name = f"{step}.parquet"
            data = pa.Table.from_pylist(made, pa.schema(kinds))
            actions.append(table.file(name, data, row_group_size=random.choice([7, 1000])))
            files[name] = (num_rows, None, set())
            last += num_rows
        elif random.random() < 0.7:
            name = random.choice(list(files))
            num_rows, vector, deleted = files[name]
            deleted = deleted | set(random.sample(range(num_rows), random.randrange(1, num_rows + 1)))
            made_vector = (table.inline_vector if random.random() < 0.5 else table.vector_in_file)(sorted(deleted))
            actions += [table.remove(name, vector), table.add(name, num_rows, vector=made_vector)]
            files[name] = (num_rows, made_vector, deleted)
        else:
            shown[random.choice(names)] = f"renamed {step}"
            actions.append(schema())
        table.commit(*actions)
    return last


def versions(root: Path) -> dict[int, pa.Table]:
    """The rows of each version, as the library reads them."""
    newest = DeltaTable(str(root)).version()
    return {version: pa.table(DeltaTable(str(root), version=version).scan()) for version in range(newest + 1)}
