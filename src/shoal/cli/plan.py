"""`shoal plan`: what a cluster should read, and what that costs; from an index, or from three numbers."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.cli import output
from shoal.cli.numbers import at_least_one
from shoal.cli.order_options import add_order_arguments, asked_order, given_order_options
from shoal.cli.source_options import add_json_argument, add_source_arguments, open_with_samples
from shoal.errors import UsageError
from shoal.measure.prediction import ChunkLayout, predicted_variance_ratio
from shoal.order.block import Block
from shoal.order.partition import Partition
from shoal.order.resolution import parse_bytes
from shoal.order.window import Window
from shoal.plan.ahead import ahead_limit_bytes
from shoal.plan.cluster import simulate_reads
from shoal.plan.sizing import Cluster, recommend, textbook, traffic
from shoal.stream.arrangement import Arrangement, OrderRequest

__all__ = ["add_arguments", "run"]

_MOST_CHUNKS = 1 << 22  # that are laid out where there is no index; more of them change nothing but the time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the verb's arguments."""
    parser.epilog = (
        "Reads are simulated, not estimated, where an epoch has up to 2 million samples, and simulated on thinned "
        "chunks where it has more. Bandwidths are bytes per second: 1.25GB is a 10 Gbit network."
    )
    add_source_arguments(parser, is_optional=True)
    data = parser.add_argument_group("data", "instead of SOURCE")
    data.add_argument("--num-samples", type=_number, metavar="N", help="samples: 2e9")
    data.add_argument("--sample-bytes", metavar="BYTES", help="of a sample, on average: 8KB")
    data.add_argument("--rho", type=float, metavar="R", default=1.0, help="correlation inside chunks (1, the worst)")
    cluster = parser.add_argument_group("cluster")
    cluster.add_argument("--nodes", type=at_least_one, metavar="P", default=1, help="machines (1)")
    cluster.add_argument("--ranks-per-node", type=at_least_one, metavar="R", default=1, help="processes on each (1)")
    cluster.add_argument("--global-batch", type=at_least_one, metavar="G", default=256, help="samples of a step (256)")
    cluster.add_argument("--memory", metavar="BYTES", default="8GiB", help="for the stream, on each node (8GiB)")
    cluster.add_argument("--latency", type=float, metavar="SECONDS", default=0.03, help="of a request (0.03)")
    cluster.add_argument("--connection-bandwidth", metavar="BYTES", default="90MB", help="of a connection (90MB)")
    cluster.add_argument("--node-bandwidth", metavar="BYTES", default="1.25GB", help="of a node (1.25GB)")
    cluster.add_argument("--step-seconds", type=float, metavar="T", help="of a step (default: as fast as data come)")
    cluster.add_argument("--get-price", type=float, metavar="X", default=0.0, help="of 1000 requests (0)")
    cluster.add_argument("--gigabyte-price", type=float, metavar="X", default=0.0, help="of 10^9 bytes (0)")
    add_order_arguments(parser, default="without any of these, what is recommended")
    add_json_argument(parser)


@dataclass(frozen=True, slots=True, eq=False)
class _Data:
    """What is to be read: all of it, and its chunks or a model of them with fewer."""

    num_samples: int
    num_bytes: float
    num_chunks: int
    chunk_samples: NDArray[np.int64]
    chunk_bytes: NDArray[np.int64]
    order: Window | Block
    call: str


def run(arguments: argparse.Namespace) -> int:
    """Say what is recommended, or what the given order means."""
    cluster = _cluster(arguments)
    data = _data(arguments, cluster)
    partition = Partition(cluster.global_batch, cluster.world_size)
    if data.num_samples <= cluster.global_batch:
        msg = f"{data.num_samples:,} samples are no more than a global batch of {cluster.global_batch:,}"
        raise UsageError(msg)
    reads = simulate_reads(data.order, data.chunk_samples, data.chunk_bytes, partition)
    scale = data.num_chunks / len(data.chunk_samples)
    num_reads, read_bytes = reads.num_reads * scale, reads.num_bytes * scale
    chunk_bytes = data.num_bytes / data.num_chunks
    layout = ChunkLayout.of(data.chunk_samples)
    sizes = [size for size in (cluster.global_batch, 4 * cluster.global_batch) if size < layout.num_samples]
    costs = traffic(
        cluster,
        num_samples=data.num_samples,
        num_reads=num_reads,
        read_bytes=read_bytes,
        first_chunks=reads.first_chunks,
    )
    window_bytes, largest = int(data.order.chunks * chunk_bytes), int(data.chunk_bytes.max())
    ahead = ahead_limit_bytes(window_bytes, largest, is_far=arguments.latency > 0.0)
    # What is in use and what is read ahead; never more than there is for a rank.
    held = min(reads.held_chunks * chunk_bytes + ahead, read_bytes / cluster.world_size)
    sequential = textbook(cluster, num_samples=data.num_samples, sample_bytes=data.num_bytes / data.num_samples)
    record = {
        "num_samples": data.num_samples,
        "dataset_bytes": data.num_bytes,
        "world_size": cluster.world_size,
        "chunk_bytes": chunk_bytes,
        "window_chunks": data.order.chunks,
        "window_bytes": data.order.chunks * chunk_bytes,
        "num_canonical_nodes": data.order.resolved_nodes if isinstance(data.order, Window) else 1,
        "call": data.call,
        "vr": {size: predicted_variance_ratio(data.order, layout, size, rho=arguments.rho) for size in sizes},
        "rank_memory_bytes": held,
        "node_memory_bytes": held * cluster.ranks_per_node,
        "num_requests": round(num_reads),
        "read_bytes": read_bytes,
        "amplification": reads.amplification,
        "is_simulated_exactly": reads.is_exact and scale == 1.0,
        "concurrency": costs.concurrency,
        "node_requests_per_second": costs.requests_per_second,
        "node_traffic_bytes_per_second": costs.node_bytes_per_second,
        "first_batch_seconds": costs.first_batch_seconds,
        "epoch_seconds": costs.epoch_seconds,
        "waiting_share": costs.waiting_share,
        "epoch_price": costs.epoch_price,
        "sequential": {name: getattr(sequential, name) for name in sequential.__slots__},
    }
    if arguments.json:
        output.emit(record, as_json=True)
    else:
        _show(record, cluster)
    return 0


def _cluster(arguments: argparse.Namespace) -> Cluster:
    for name in ("latency", "step_seconds", "get_price", "gigabyte_price"):
        value = getattr(arguments, name)
        if value is not None and not (math.isfinite(value) and value >= 0.0 and (value or name != "step_seconds")):
            msg = f"--{name.replace('_', '-')} must not be negative, and a step takes some time; got {value}"
            raise UsageError(msg)
    if arguments.global_batch < arguments.nodes * arguments.ranks_per_node:
        msg = f"a global batch of {arguments.global_batch} has no sample for each of "
        msg += f"{arguments.nodes * arguments.ranks_per_node} ranks"
        raise UsageError(msg, hint="--global-batch counts over all ranks")
    return Cluster(
        num_nodes=arguments.nodes,
        ranks_per_node=arguments.ranks_per_node,
        global_batch=arguments.global_batch,
        memory_bytes=parse_bytes(arguments.memory, "--memory"),
        latency_seconds=arguments.latency,
        connection_bytes_per_second=parse_bytes(arguments.connection_bandwidth, "--connection-bandwidth"),
        node_bytes_per_second=parse_bytes(arguments.node_bandwidth, "--node-bandwidth"),
        step_seconds=arguments.step_seconds,
        request_price=arguments.get_price / 1000,
        byte_price=arguments.gigabyte_price / 1e9,
    )


def _data(arguments: argparse.Namespace, cluster: Cluster) -> _Data:
    if bool(arguments.source) == (arguments.num_samples is not None):
        msg = "a plan is made of SOURCE, or of --num-samples with --sample-bytes; give one of them"
        raise UsageError(msg)
    return _of_source(arguments, cluster) if arguments.source else _of_numbers(arguments, cluster)


def _of_source(arguments: argparse.Namespace, cluster: Cluster) -> _Data:
    request = asked_order(arguments)
    index = open_with_samples(arguments).index
    num_bytes = int((index.extent_end_byte - index.extent_first_byte).sum())
    if not given_order_options(arguments):
        extent_bytes = -(-num_bytes // index.num_extents)
        sizing = recommend(cluster, dataset_bytes=num_bytes, least_chunk_bytes=extent_bytes)
        request = OrderRequest(window=sizing.window_bytes, chunk=sizing.chunk_bytes)
    arrangement = Arrangement(index, request)
    chunks = arrangement.chunks
    return _Data(
        num_samples=index.num_samples,
        num_bytes=num_bytes,
        num_chunks=len(chunks),
        chunk_samples=chunks.num_samples,
        chunk_bytes=chunks.end_byte - chunks.first_byte,
        order=_windowed(arrangement.order),
        call=str(arrangement),
    )


def _of_numbers(arguments: argparse.Namespace, cluster: Cluster) -> _Data:
    if arguments.sample_bytes is None:
        msg = "--num-samples needs --sample-bytes"
        raise UsageError(msg, hint="--sample-bytes 8KB")
    sample_bytes = parse_bytes(arguments.sample_bytes, "--sample-bytes")
    num_samples = arguments.num_samples
    num_bytes = float(num_samples * sample_bytes)
    sizing = recommend(cluster, dataset_bytes=num_bytes, least_chunk_bytes=max(1 << 18, sample_bytes))
    chunk_bytes = sizing.chunk_bytes if arguments.chunk is None else parse_bytes(arguments.chunk, "--chunk")
    each = max(1, chunk_bytes // sample_bytes)
    num_chunks = -(-num_samples // each)
    order: Any = Window(sizing.chunks, sizing.num_canonical_nodes)
    if arguments.window is not None:
        alive = min(max(2, parse_bytes(arguments.window, "--window") // chunk_bytes), max(2, num_chunks))
        order = Window(alive, arguments.num_canonical_nodes)
    elif arguments.order is not None or arguments.chunks is not None:
        order = asked_order(arguments).order
    laid_out = min(num_chunks, max(_MOST_CHUNKS, 8 * _windowed(order).chunks))
    return _Data(
        num_samples=num_samples,
        num_bytes=num_bytes,
        num_chunks=num_chunks,
        chunk_samples=np.full(laid_out, each),
        chunk_bytes=np.full(laid_out, each * sample_bytes),
        order=_windowed(order),
        call=f'shuffle(window="{_windowed(order).chunks * each * sample_bytes}", chunk="{each * sample_bytes}")',
    )


def _windowed(order: Any) -> Window | Block:
    if not isinstance(order, Window | Block):
        name = "this order" if order is None else f"the order {order.name!r}"
        msg = f"{name} does not keep to some chunks at a time, so its reads are not planned"
        raise UsageError(msg, hint="--order window or block; --order full reads each sample by itself")
    return order


def _number(text: str) -> int:
    try:
        number = int(float(text)) if "e" in text.lower() else int(text)
    except (ValueError, OverflowError):
        number = 0
    if number < 1:
        msg = f"a positive number is wanted here, not {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return number


def _show(record: dict[str, Any], cluster: Cluster) -> None:
    facts = {name: value for name, value in record.items() if name not in {"vr", "sequential", "call"}}
    facts["is_simulated_exactly"] = "exactly" if facts.pop("is_simulated_exactly") else "on thinned chunks"
    facts["reads simulated"] = facts.pop("is_simulated_exactly")
    facts["waiting for data"] = f"{facts.pop('waiting_share'):.1%}"
    if not facts["epoch_price"]:
        del facts["epoch_price"]
    output.emit(facts)
    output.say()
    for size, ratio in record["vr"].items():
        output.say(f"batches of {size:,}: VR {ratio:.2f} (1 is a perfect shuffle)")
    output.say()
    output.say(f"ds.{record['call']}")
    found = record["sequential"]
    output.say()
    output.say(
        f"Shards read whole, one after the other: at least {found['shard_bytes'] / 1e9:.3g} GB each for 1 % overhead, "
        f"{found['num_shards']:,} of them;"
    )
    output.say(
        f"a buffer in {cluster.memory_bytes / 1e9:.4g} GB holds {found['buffer_samples']:,} samples, "
        f"{found['buffer_share']:.3%} of all."
    )
