"""The orders of other libraries by name; a library may name several variants."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from shoal.order.protocol import Order
from shoal.peers.grain import GrainShuffle, GrainWindowShuffle
from shoal.peers.huggingface.huggingface_order import RELEASES, HuggingFace
from shoal.peers.litdata import LitData
from shoal.peers.streaming.streaming_order import Streaming
from shoal.peers.streaming.streaming_shuffles import ALGORITHMS
from shoal.peers.torch_samplers.torch_orders import TorchDistributed, TorchRandom
from shoal.peers.webdataset.webdataset_orders import WebDatasetDetshuffle, WebDatasetResampled, WebDatasetShuffle

_ORDERS = (
    GrainShuffle,
    GrainWindowShuffle,
    LitData,
    Streaming,
    TorchDistributed,
    TorchRandom,
    WebDatasetDetshuffle,
    WebDatasetResampled,
    WebDatasetShuffle,
)

PEER_ORDERS: Mapping[str, Callable[..., Order]] = {
    **{order.name: order for order in _ORDERS},
    **{f"hf-{kind}": functools.partial(HuggingFace, kind) for kind in RELEASES},
    **{name: functools.partial(Streaming, name) for name in ALGORITHMS},
}
