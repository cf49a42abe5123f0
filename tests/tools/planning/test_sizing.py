"""Sizes and costs of a cluster: answers that are known beforehand."""

from __future__ import annotations

import pytest

from shoal.tools.planning.sizing import Cluster, recommend, textbook, traffic


def test_the_textbook_question() -> None:
    """2e9 samples of 8 KB, 1 GB/s a connection, 20 ms a request, 64 GB of memory."""
    cluster = Cluster(latency_seconds=0.02, connection_bytes_per_second=1e9, memory_bytes=64e9)
    result = textbook(cluster, num_samples=2 * 10**9, sample_bytes=8000)
    assert cluster.latency_seconds / (cluster.latency_seconds + result.shard_bytes / 1e9) == pytest.approx(0.01)
    assert result.num_shards == pytest.approx(16e12 / 1.98e9, rel=1e-3)
    assert result.buffer_share == pytest.approx(0.004)


def test_windows_have_four_chunks_for_each_sample_of_a_batch() -> None:
    sizing = recommend(Cluster(num_nodes=2, global_batch=1024, memory_bytes=6.8 * 2**30), dataset_bytes=1e12)
    assert (sizing.chunks, sizing.num_canonical_nodes) == (5154, 64)  # at least 4096, and what else fits
    assert sizing.window_bytes <= 0.75 * 2 * 6.8 * 2**30
    assert 2 * sizing.chunk_bytes * 4096 > 0.75 * 2 * 6.8 * 2**30  # larger chunks do not fit


def test_little_memory_means_small_chunks_and_then_few() -> None:
    sizing = recommend(Cluster(global_batch=4096, memory_bytes=1.72 * 2**30), dataset_bytes=1e11)
    assert (sizing.chunk_bytes, sizing.chunks) == (256 << 10, 5167)
    sizing = recommend(Cluster(global_batch=4096, memory_bytes=2**28), dataset_bytes=1e9)
    assert (sizing.chunk_bytes, sizing.chunks) == (256 << 10, 766)  # 768 chunks, and a table of 3815
    sizing = recommend(Cluster(global_batch=4096, memory_bytes=2**28), dataset_bytes=1e9, least_chunk_bytes=1 << 20)
    assert (sizing.chunk_bytes, sizing.chunks) == (1 << 20, 191)


def test_small_chunks_of_a_large_dataset_have_a_large_table() -> None:
    """Of 10^12 bytes the table of 256 KiB chunks takes 305 MB: more than there is."""
    memory_bytes, dataset_bytes = 2**28, 1e12
    sizing = recommend(Cluster(global_batch=4096, memory_bytes=memory_bytes), dataset_bytes=dataset_bytes)
    assert sizing.chunk_bytes == 1 << 20
    assert 80 * dataset_bytes / sizing.chunk_bytes + sizing.window_bytes == pytest.approx(0.75 * memory_bytes, rel=0.01)
    # Each rank of a node has one.
    many = recommend(Cluster(ranks_per_node=8, memory_bytes=16 * 2**30), dataset_bytes=1e14)
    assert sizing.chunks < many.chunks
    assert 8 * 80 * 1e14 / many.chunk_bytes + many.window_bytes <= 0.75 * 16 * 2**30


def test_a_small_dataset_needs_no_more_chunks_than_it_has() -> None:
    assert recommend(Cluster(), dataset_bytes=20e6).chunks == 5


def test_steps_wait_where_the_network_is_too_slow() -> None:
    slow = Cluster(global_batch=100, step_seconds=0.1, node_bytes_per_second=5e7)
    result = traffic(slow, num_samples=10_000, num_requests=1000, read_bytes=1e9, first_requests=8)
    assert result.epoch_seconds == pytest.approx(20.0)
    assert result.waiting_share == pytest.approx(0.5)
    assert result.node_bytes_per_second == pytest.approx(5e7)
    assert result.requests_per_second == pytest.approx(50)


def test_concurrency_pays_for_latency() -> None:
    near, far = (
        traffic(
            Cluster(latency_seconds=latency), num_samples=10**6, num_requests=10**4, read_bytes=1e10, first_requests=8
        )
        for latency in (0.001, 0.1)
    )
    assert far.concurrency > 5 * near.concurrency
    assert far.epoch_seconds == pytest.approx(near.epoch_seconds) == pytest.approx(8.0)
    assert far.first_batch_seconds > near.first_batch_seconds


def test_money_is_requests_and_bytes() -> None:
    cluster = Cluster(request_price=0.0004 / 1000, byte_price=0.01 / 1e9)
    result = traffic(cluster, num_samples=100, num_requests=2_000_000, read_bytes=1e12, first_requests=1)
    assert result.epoch_price == pytest.approx(0.8 + 10.0)
