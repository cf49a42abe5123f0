"""Machines and jobs in one destination, step by step in any order, killed at any step: one dataset, or an error."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pack.contents import contents_of
from tests.pack.files import make_files
from tests.pack.interleaved import Machine, SteppedStore, run_interleaved

from shoal.errors import StorageError, UsageError
from shoal.index.index_file import decode
from shoal.pack import PackSummary, clean
from shoal.pack.inputs.input_sources import inputs_of
from shoal.pack.packing import plan_inputs
from shoal.pack.requests import PackRequest
from shoal.storage.memory_store import MemoryStore

FORMATS = ["tar", "mds"]
NUM_EXAMPLES = 25


@pytest.fixture
def inputs(tmp_path: Path) -> tuple[Any, PackRequest]:
    source = make_files(tmp_path / "in", classes={"a": 4, "b": 2})
    request = PackRequest("tar", 4_000, extent_bytes=2_000, columns=["length"], shuffle=True, seed=1, num_workers=1)
    return inputs_of(source, request), request


def orders_of_turns(num_machines: int) -> st.SearchStrategy[list[int]]:
    """Who is next, for some hundred steps: at random in bursts of up to some length, or any short list."""

    def at_random(seed: int, longest: int) -> list[int]:
        draws = np.random.default_rng(seed)
        bursts = [
            [int(draws.integers(num_machines))] * int(draws.integers(1, longest + 1)) for _ in range(300 // longest)
        ]
        return [turn for burst in bursts for turn in burst]

    seeds = st.builds(at_random, st.integers(0, 2**32), st.sampled_from([1, 5, 30]))
    return seeds | st.lists(st.integers(0, num_machines - 1), max_size=40)


def run_all(inputs: Any, url: str, request: PackRequest) -> PackSummary:
    """The work of one machine: it plans the job, runs what is missing, and finishes."""
    job = plan_inputs(inputs, url, request, shared=True).job
    for number in job.missing():
        job.run(number)
    return job.finish()


def check_dataset(url: str, calm: dict[int, dict[str, Any]], request: PackRequest) -> int | None:
    """The seed of the job that has committed, whose dataset must be whole; None if none has."""
    store = MemoryStore()
    if store.find(f"{url}/shoal.index") is None:
        return None
    index = decode(bytes(store.map(f"{url}/shoal.index")))
    for name, digest in zip(index.shard_names, index.metadata["digests"], strict=True):
        assert hashlib.sha256(store.map(f"{url}/{name}")).hexdigest()[:32] == digest
    left = contents_of(url)
    (seed,) = [seed for seed, expected in calm.items() if expected.items() <= left.items()]
    return seed


@pytest.mark.parametrize("name", FORMATS)
def test_one_wins_and_nothing_is_left(
    inputs: tuple[Any, PackRequest], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The law, for three machines of one or two jobs."""
    table, first = inputs
    requests = {seed: replace(first, seed=seed, format=name) for seed in (1, 2)}
    calm = {}
    for seed, request in requests.items():
        run_all(table, f"memory://calm-{name}/{seed}", request)
        calm[seed] = contents_of(f"memory://calm-{name}/{seed}")
    monkeypatch.setattr("shoal.pack.output.destination.open_store", lambda *_, **__: SteppedStore())
    homes = count()

    @settings(max_examples=NUM_EXAMPLES, deadline=None)
    @given(
        seeds=st.lists(st.sampled_from([1, 2]), min_size=2, max_size=3),
        deaths=st.lists(st.none() | st.integers(0, 120), min_size=3, max_size=3),
        turns=orders_of_turns(3),
    )
    def law(seeds: list[int], deaths: list[int | None], turns: list[int]) -> None:
        url = f"memory://interleaved-{name}/{next(homes)}"
        machines = [
            Machine(lambda seed=seed: run_all(table, url, requests[seed]), dies_at=dies_at)  # type: ignore[misc]
            for seed, dies_at in zip(seeds, deaths, strict=False)
        ]
        run_interleaved(machines, turns)
        won = check_dataset(url, calm, first)
        for machine, seed in zip(machines, seeds, strict=False):
            if machine.result is not None:
                assert won == seed  # who was told that all is done was told the truth
            elif machine.error is not None and machine.dies_at is None:
                assert isinstance(machine.error, UsageError | StorageError)
                assert len(set(seeds)) > 1, machine.error  # machines of one job do not get in each other's way
        if won is None:
            assert all(machine.dies_at is not None or machine.error is not None for machine in machines)
            try:
                run_all(table, url, requests[seeds[0]])
            except UsageError as error:
                assert "another packing was begun here" in error.message  # noqa: PT017
                clean(url, grace_seconds=0)
                run_all(table, url, requests[seeds[0]])
            assert contents_of(url) == calm[seeds[0]]
        else:
            if any(machine.dies_at is not None for machine in machines):
                clean(url, grace_seconds=0)
            assert contents_of(url) == calm[won]

    law()


@pytest.mark.parametrize("name", FORMATS)
def test_a_job_that_is_removed_while_it_runs_commits_nothing_that_is_not_whole(
    inputs: tuple[Any, PackRequest], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A grace period of 0 is for the dead; for a job that lives, the worst is an error."""
    table, first = inputs
    request = replace(first, format=name)
    run_all(table, f"memory://calm-removed-{name}/1", request)
    calm = {1: contents_of(f"memory://calm-removed-{name}/1")}
    monkeypatch.setattr("shoal.pack.output.destination.open_store", lambda *_, **__: SteppedStore())
    homes = count()

    @settings(max_examples=NUM_EXAMPLES, deadline=None)
    @given(first_steps=st.integers(0, 110), turns=orders_of_turns(2))
    def law(first_steps: int, turns: list[int]) -> None:
        url = f"memory://removed-{name}/{next(homes)}"
        machines = [
            Machine(lambda: run_all(table, url, request)),
            Machine(lambda: clean(url, grace_seconds=0)),
        ]
        machines[0].begin()
        for _ in range(first_steps):
            if not machines[0].is_over:
                machines[0].step()
        machines[1].begin()
        for turn in turns:
            if not machines[turn].is_over:
                machines[turn].step()
        for machine in machines:
            while not machine.is_over:
                machine.step()
        won = check_dataset(url, calm, request)
        assert machines[0].error is not None or won == 1

    law()


def test_who_skips_and_who_does_not_make_no_dataset_that_lacks_a_shard(
    tmp_path: Path, inputs: tuple[Any, PackRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job, run by one machine with ``on_error="skip"`` and by another without: neither removes a shard."""
    table, first = inputs
    (tmp_path / "in" / "b" / "000.txt").write_text("changed since it was listed")
    requests = {name: replace(first, on_error=name) for name in ("raise", "skip")}
    monkeypatch.setattr("shoal.pack.output.destination.open_store", lambda *_, **__: SteppedStore())
    homes = count()

    @settings(max_examples=NUM_EXAMPLES, deadline=None)
    @given(names=st.permutations(["raise", "skip"]), turns=orders_of_turns(2))
    def law(names: list[str], turns: list[int]) -> None:
        url = f"memory://skipped/{next(homes)}"
        machines = {name: Machine(lambda name=name: run_all(table, url, requests[name])) for name in names}  # type: ignore[misc]
        run_interleaved(list(machines.values()), turns)
        assert machines["raise"].error is not None
        assert machines["skip"].result is not None, machines["skip"].error
        index = decode(bytes(MemoryStore().map(f"{url}/shoal.index")))
        assert [name for name, _ in index.metadata["skipped"]] == ["b/000.txt"]
        for name, digest in zip(index.shard_names, index.metadata["digests"], strict=True):
            assert hashlib.sha256(MemoryStore().map(f"{url}/{name}")).hexdigest()[:32] == digest
        assert len(contents_of(url)) == index.num_shards + 1

    law()
