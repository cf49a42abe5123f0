"""The orders of a shuffled dataset, each also usable alone over a plain array of samples per chunk.

>>> import numpy as np
>>> order = shoal.orders.Window(chunks=256, num_canonical_nodes=16).bind(np.full(10_000, 100), seed=0, epoch=0)
>>> ids = order.ids(500_000, 500_064)  # the 64 samples from position 500 000
>>> bool((order.positions(ids) == np.arange(500_000, 500_064)).all())
True
"""

from __future__ import annotations

from shoal.order.orders_without_window import Block, Buffer, Full, Sequential
from shoal.order.protocol import BoundOrder, Order
from shoal.order.window.order import Window
from shoal.peers.grain import GrainShuffle, GrainWindowShuffle
from shoal.peers.huggingface.huggingface_order import HuggingFace
from shoal.peers.litdata import LitData
from shoal.peers.streaming.streaming_order import Streaming
from shoal.peers.torch_samplers.torch_orders import TorchDistributed, TorchRandom
from shoal.peers.webdataset.webdataset_orders import WebDatasetDetshuffle, WebDatasetResampled, WebDatasetShuffle

__all__ = [
    "Block",
    "BoundOrder",
    "Buffer",
    "Full",
    "GrainShuffle",
    "GrainWindowShuffle",
    "HuggingFace",
    "LitData",
    "Order",
    "Sequential",
    "Streaming",
    "TorchDistributed",
    "TorchRandom",
    "WebDatasetDetshuffle",
    "WebDatasetResampled",
    "WebDatasetShuffle",
    "Window",
]
