"""Writes the ids that other loaders emit: ``python make_ids.py NAME``, each NAME in an environment with that package.

    grain       pip install grain==0.2.18
    levanter    pip install jax jaxtyping numpy; src/levanter/data/_prp.py of github.com/marin-community/levanter at
                commit 9263f81 in the current directory (no release on PyPI has it)
    streaming   pip install --no-deps mosaicml-streaming==0.13.0; pip install 'numpy<2.2'
    litdata     pip install torch==2.13.0; pip install --no-deps litdata==0.2.76 lightning-utilities; pip install
                'numpy<2.2' filelock requests tifffile boto3 tqdm obstore
    datasets    pip install datasets==5.2.0
    webdataset  pip install webdataset==1.0.2

All ids are numbers of samples in storage order, stored as uint16. Each is made by the package's own code, called as its
documentation says; for levanter and streaming by the function that makes the order, without the loader around it.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import itertools
import sys
import tarfile
import tempfile
import types
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent


def save(name: str, **streams: Any) -> None:
    arrays: dict[str, Any] = {key: np.asarray(value).astype(np.uint16) for key, value in streams.items()}
    for key, value in streams.items():
        assert (arrays[key] == np.asarray(value)).all(), key
    np.savez_compressed(HERE / f"{name}.npz", **arrays)
    print(name, {key: value.shape for key, value in arrays.items()}, (HERE / f"{name}.npz").stat().st_size, "bytes")


def make_grain(num_samples: int = 1 << 15) -> None:
    grain = importlib.import_module("grain")

    epochs = {}
    for seed in (5, 6):
        dataset = grain.MapDataset.range(num_samples).shuffle(seed=seed).repeat(2)
        epochs[seed] = np.array([dataset[i] for i in range(2 * num_samples)]).reshape(2, -1)
    save("grain", seed5=epochs[5][1], seed6=epochs[6][0])


def make_levanter(num_samples: int = 1 << 16) -> None:
    jax = importlib.import_module("jax")

    spec = importlib.util.spec_from_file_location("levanter_prp", "_prp.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    permutation = module.Permutation.make("feistel", num_samples, jax.random.PRNGKey(0))
    save("levanter", ids=permutation(np.arange(num_samples)))


def make_streaming(num_shards: int = 32, shard_samples: int = 1000) -> None:
    # The package's __init__ imports every cloud's client; the order needs none.
    found = importlib.util.find_spec("streaming")
    assert found is not None
    for name, below in (("streaming", ""), ("streaming.base", "base")):
        module = types.ModuleType(name)
        module.__path__ = [str(Path(place) / below) for place in found.submodule_search_locations or ()]
        sys.modules[name] = module
    get_shuffle = importlib.import_module("streaming.base.shuffle").get_shuffle

    sizes = np.full(num_shards, shard_samples)
    # Of the seeds 0 to 11, five leave the last shards in storage order; seed 2 is one of them.
    tails = get_shuffle("py1br", sizes, 1, 2, 0, 8000)
    default = get_shuffle("py1e", sizes, 1, 0, 0, 4000)
    naive = {seed: get_shuffle("naive", sizes, 1, seed, epoch, 0) for seed, epoch in ((7, 1), (8, 0))}
    save("streaming", py1br=tails, py1e=default)
    save("streaming_mix", **two_streams())
    save("streaming_naive", seed7=naive[7][:16000], seed8=naive[8][:16000])


def two_streams(stream_samples: int = 8000) -> dict[str, Any]:
    """The ids of two streams of one mix, each numbered from 0: stratified batching of equal shares."""
    name = "streaming.base.batching.stratified"
    generate_work = importlib.import_module(name).generate_work_stratified_batching

    def resample(epoch: int, stream: int) -> Any:
        return np.full(stream_samples // 1000, 1000), np.arange(stream_samples) + stream * stream_samples

    dataset = types.SimpleNamespace(
        num_canonical_nodes=1, batch_size=64, streams=[types.SimpleNamespace(proportion=0.5)] * 2, shuffle=True,
        resample_streams=resample, partition_algo="relaxed", initial_physical_nodes=1, shuffle_block_size=4000,
        shuffle_algo="py1e", shuffle_seed=9176,
    )  # fmt: skip
    world = types.SimpleNamespace(num_nodes=1, ranks_per_node=1, workers_per_rank=1)
    ids = generate_work(dataset, world, 0, 0).reshape(-1)
    ids = ids[ids >= 0]
    return {"first": ids[ids < stream_samples], "second": ids[ids >= stream_samples] - stream_samples}


def identity(number: int) -> int:
    return number


def make_litdata(num_samples: int = 1 << 15) -> None:
    litdata = importlib.import_module("litdata")

    with tempfile.TemporaryDirectory() as folder:
        litdata.optimize(
            fn=identity, inputs=list(range(num_samples)), output_dir=folder, chunk_size=1024, num_workers=1
        )
        dataset = litdata.StreamingDataset(folder, shuffle=True, seed=42)
        loader = litdata.StreamingDataLoader(dataset, batch_size=64, num_workers=2)
        ids = np.concatenate([np.asarray(batch).reshape(-1) for batch in loader])
    save("litdata", ids=ids)


def rows_of(shards: list[int], shard_samples: int, first: int) -> Any:
    for shard in shards:
        yield from ({"id": first + shard * shard_samples + i} for i in range(shard_samples))


def make_datasets(num_shards: int = 20, shard_samples: int = 1000) -> None:
    datasets = importlib.import_module("datasets")

    def source(first: int, shards: int) -> Any:
        arguments = {"shards": list(range(shards)), "shard_samples": shard_samples, "first": first}
        return datasets.IterableDataset.from_generator(rows_of, gen_kwargs=arguments)

    shuffled = source(0, num_shards).shuffle(seed=0, buffer_size=1000)
    passes = [[row["id"] for row in shuffled] for _ in range(2)]  # no set_epoch(), as in most scripts
    mixes = {}
    for seed in (1, 2):
        mix = datasets.interleave_datasets(
            [source(0, 10), source(10_000, 10)], probabilities=[0.5, 0.5], seed=seed, stopping_strategy="all_exhausted"
        )
        mix.set_epoch(1)
        mixes[f"mix_seed{seed}"] = [row["id"] for row in itertools.islice(mix, 10_000)]
    save("datasets", passes=passes, **mixes)


def make_webdataset(num_shards: int = 20, shard_samples: int = 1000) -> None:
    webdataset = importlib.import_module("webdataset")

    with tempfile.TemporaryDirectory() as folder:
        for shard in range(num_shards):
            with tarfile.open(f"{folder}/{shard:02d}.tar", "w") as tar:
                for i in range(shard * shard_samples, (shard + 1) * shard_samples):
                    info = tarfile.TarInfo(f"{i:06d}.cls")
                    info.size = 6
                    tar.addfile(info, io.BytesIO(f"{i:06d}".encode()))
        shards = [f"{folder}/{shard:02d}.tar" for shard in range(num_shards)]
        dataset = webdataset.WebDataset(shards, shardshuffle=100, seed=0).shuffle(1000)
        epochs = [[int(sample["cls"]) for sample in dataset] for _ in range(2)]
    save("webdataset", epochs=epochs)


if __name__ == "__main__":
    globals()[f"make_{sys.argv[1]}"]()
