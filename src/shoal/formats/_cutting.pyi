from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shoal.index.shard_scan import Buffer

_Columns: TypeAlias = tuple[tuple[str, int, int | Callable[[bytes], Any] | None], ...]

def tar_sample(data: bytes, start: int, end: int, /) -> dict[str, Any] | None: ...
def tar_samples(
    held: dict[int, tuple[Any, ...]],
    ids: list[int],
    units: list[int],
    last: list[bool] | None,
    at: int,
    stop: int,
    /,
) -> list[dict[str, Any]]: ...
def tar_front(sample: dict[str, Any], data: bytes, position: int, end: int, /) -> int | None: ...
def mds_sample(columns: _Columns, num_sizes: int, data: Buffer, start: int, end: int, /) -> dict[str, Any] | None: ...
def mds_samples(
    columns: _Columns,
    num_sizes: int,
    held: dict[int, tuple[Any, ...]],
    ids: list[int],
    units: list[int],
    last: list[bool] | None,
    at: int,
    stop: int,
    /,
) -> list[dict[str, Any]]: ...
def plain_example(
    data: bytes, floats: Callable[[bytes], Any], integers: Callable[[bytes], Any], /
) -> dict[str, Any] | None: ...
def next_records(
    held: dict[int, tuple[Any, ...]],
    ids: list[int],
    units: list[int],
    last: list[bool] | None,
    at: int,
    stop: int,
    /,
) -> list[bytes]: ...
def transposed(samples: Any, /) -> dict[str, list[Any]] | None: ...
def values_of_rows(
    units: list[Any], which: NDArray[np.int64], rows: NDArray[np.int64], is_text: bool, /
) -> list[Any] | None: ...
def take_rows(source: Any, first: int, stride: int, rows: NDArray[np.int64], out: Any, /) -> bool: ...
