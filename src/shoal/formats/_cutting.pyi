from collections.abc import Callable
from typing import Any

from shoal.index.shard_scan import Buffer

def tar_sample(data: bytes, start: int, end: int, /) -> dict[str, Any] | None: ...
def tar_front(sample: dict[str, Any], data: bytes, position: int, end: int, /) -> int | None: ...
def mds_sample(
    columns: tuple[tuple[str, int, int | Callable[[bytes], Any] | None], ...],
    num_sizes: int,
    data: Buffer,
    start: int,
    end: int,
    /,
) -> dict[str, Any] | None: ...
def plain_example(
    data: bytes, floats: Callable[[bytes], Any], integers: Callable[[bytes], Any], /
) -> dict[str, Any] | None: ...
