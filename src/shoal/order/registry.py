"""Orders by the names used in `Dataset.shuffle` and in states."""

from __future__ import annotations

from collections.abc import Mapping

from shoal.order.block_and_buffer import Block, Buffer
from shoal.order.sequential_and_full import Full, Sequential
from shoal.order.window.order import Window

ORDERS: Mapping[str, type[Block | Buffer | Full | Sequential | Window]] = {
    order.name: order for order in (Sequential, Full, Window, Block, Buffer)
}
