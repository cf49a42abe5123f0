"""Shuffled streaming of training data larger than any disk, exactly resumable at any sample.

The examples in docstrings run in one directory, and find these objects:

- ``ds`` is ``shoal.open("data")``: four tar shards of 200 texts about pets, with the fields ``txt`` and ``cls``. Cats
  have the ids 0 to 119, dogs 120 to 179, owls 180 to 199; ``cls`` is also a column of the index.
- ``docs`` is ``shoal.open("docs")``: 40 documents of 8 to 47 tokens, with the fields ``tokens`` and ``num_tokens``.
- ``mixed`` is ``shoal.mix({"web": shoal.open("web"), "code": shoal.open("code")}, weights={"web": 3, "code": 1})``: 90
  and 30 texts, with the field ``text``.
- ``live`` is ``shoal.from_iterable(samples, shared=True)``: six samples with the fields ``txt`` and ``cls``.
- ``loader`` is ``shoal.torch.DataLoader(ds.decode().shuffle(seed=0).batch(8))``, and in ``shoal.jax`` its loader.
"""

# Layout: one folder ("room") per question; a room imports only from the rows above it. tests/layers.py enforces this.
#
#   errors, hints, figures
#   order/       which sample comes next?              index/      where do samples lie?
#   storage/     where do bytes come from?
#   formats/     what does a shard hold?               quality/    how well is it mixed?
#   processes/   how do processes begin and end?       stats/      how is the run going?
#   indexing/    how is an index made?
#   reading/     which bytes are read when, in how much memory, despite which faults?
#   pipeline/    how are samples processed?
#   stream/      what does this rank get now?
#
# These rooms are the core. Around it, each can be taken away:
#
#   peers/       in which order do other loaders read?
#   verify/      is the stored data sound?             pack/       how are shards made?
#   live/        which samples come from a source without an end?
#   integrations/  which frameworks consume it?        testing/    how do users test their own code?
#   tools/       audits, plans and pages               watch/      how does a run look while it goes on?
#   cli/         how is it run from a shell?
#
# No module inside imports this file. It needs only numpy and the standard library; tests/test_layers.py enforces both.
#
# Names are imported on first use: their modules take twice as long to import as numpy, and a script should not pay for
# modules that it does not use.

from __future__ import annotations as _annotations

from typing import TYPE_CHECKING as _TYPE_CHECKING

from shoal import errors
from shoal.lazy_names import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from shoal import formats, measure, mixing, orders, pack
    from shoal import huggingface as huggingface
    from shoal import jax as jax
    from shoal import torch as torch
    from shoal.indexing.jobs.index_job import plan_index
    from shoal.live.live_dataset import LiveDataset
    from shoal.live.live_openers import follow, from_callable, from_iterable
    from shoal.order.states.merged_states import merge_states
    from shoal.stream.dataset import Dataset
    from shoal.stream.mixing.mix_datasets import mix
    from shoal.stream.open_dataset import open_dataset as open  # noqa: A004  # shoal.open() says what it does
    from shoal.stream.states.certificate import merge_certificates
    from shoal.verify.verify_job import plan_verify

__all__ = [
    "Dataset",
    "LiveDataset",
    "errors",
    "follow",
    "formats",
    "from_callable",
    "from_iterable",
    "measure",
    "merge_certificates",
    "merge_states",
    "mix",
    "mixing",
    "open",
    "orders",
    "pack",
    "plan_index",
    "plan_verify",
]  # and torch, jax and huggingface, which a star import must not load


__getattr__, __dir__ = _lazy_names(
    __name__,
    {
        **{
            f"shoal.{door}": ""
            for door in ("formats", "huggingface", "jax", "measure", "mixing", "orders", "pack", "torch")
        },
        "shoal.indexing.jobs.index_job": "plan_index",
        "shoal.live.live_dataset": "LiveDataset",
        "shoal.live.live_openers": "follow from_callable from_iterable",
        "shoal.order.states.merged_states": "merge_states",
        "shoal.stream.states.certificate": "merge_certificates",
        "shoal.stream.dataset": "Dataset",
        "shoal.stream.mixing.mix_datasets": "mix",
        "shoal.stream.open_dataset": "open=open_dataset",
        "shoal.verify.verify_job": "plan_verify",
        "shoal.version": "__version__",
    },
)
