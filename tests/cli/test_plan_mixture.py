"""`shoal plan` of a mixture file: what a run of the mixture counts, and what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.cli.calls import Calls
from tests.cli.test_plan_what_if import as_json, parsed, without
from tests.stream.made import write_lines

import shoal
from shoal.cli.main import main
from shoal.cli.plan.requested_plan import requested_plan, what_if_rows
from shoal.mixing import MixedDataset
from shoal.testing import RangeServer

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")  # small windows, on purpose

pytest.importorskip("yaml")

SIZES = {"web": [4000] * 2, "code": [1500], "books": [300]}
SHUFFLE = "shuffle: {window: 200KB, chunk: 8KiB, seed: 2}\n"
CHANGES = "changes:\n  - {{at: {at}, weights: {{web: 0.8, code: 0.1, books: 0.1}}}}"
FEW = ("--global-batch", 24, "--latency", 0)


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


@pytest.fixture(scope="module")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small shards with an index of small extents beside them, so that they have several chunks."""
    home = tmp_path_factory.mktemp("indexed")
    for name, sizes in SIZES.items():
        write_lines(home / name, sizes)
        assert main(["index", str(home / name), "--extent-bytes", "4096"]) == 0
    return home


@pytest.fixture
def shards(indexed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the shards, in which a test writes its mixture."""
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    return Path(shutil.copytree(indexed, tmp_path / "shards"))


def blend(
    shards: Path, *, ends: str = "ends: all", shuffle: str = SHUFFLE, paths: Mapping[str, str] | None = None
) -> Path:
    """A mixture in which books come round several times."""
    weights, at = {"web": 0.5, "code": 0.3, "books": 0.2}, paths or {}
    sources = "".join(f"  {name}: {{path: '{at.get(name, name)}', weight: {weights[name]}}}\n" for name in weights)
    (shards / "blend.yaml").write_text(f"sources:\n{sources}seed: 1\n{ends}\n{shuffle}")
    return shards / "blend.yaml"


def opened(path: Path) -> MixedDataset:
    ds = shoal.open(path)
    assert isinstance(ds, MixedDataset)
    return ds


def run(ds: Any, world_size: int, batch: int = 24) -> dict[str, float]:
    """What all ranks of a run count in an epoch."""
    batched = ds.batch(global_batch_size=batch)
    result = {"num_reads": 0, "read_bytes": 0, "peak_held_bytes": 0}
    for rank in range(world_size):
        own = batched.partition(rank=rank, world_size=world_size)
        assert sum(len(each["id"]) for each in own)
        stats = own.stats()
        for name in ("num_reads", "read_bytes"):
            result[name] += stats[name]
        result["peak_held_bytes"] = max(result["peak_held_bytes"], stats["peak_held_bytes"])
    return dict(result)


@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.drill), 3])
def test_reads_of_a_planned_mixture_are_those_of_the_stream(calls: Calls, shards: Path, world_size: int) -> None:
    path = blend(shards)
    record = calls.json("plan", path, *FEW, "--ranks-per-node", world_size)
    counted = run(opened(path), world_size)
    assert record["is_simulated_exactly"]
    assert record["num_samples"] == opened(path).num_samples
    assert record["num_requests"] == counted["num_reads"]
    assert record["read_bytes"] == counted["read_bytes"]
    assert record["rank_held_bytes"] == pytest.approx(counted["peak_held_bytes"], rel=0.05)
    assert record["vr"]["24"] == pytest.approx(opened(path).quality(batch=24).vr[24])


@pytest.mark.parametrize("world_size", [pytest.param(1, marks=pytest.mark.drill), 2])
def test_requests_of_a_planned_mixture_are_in_the_log_of_the_server(
    calls: Calls, shards: Path, world_size: int
) -> None:
    with RangeServer(shards) as server:
        path = blend(shards, paths={name: server.url_of(f"{name}/shoal.index") for name in SIZES})
        record = calls.json("plan", path, "--global-batch", 24, "--ranks-per-node", world_size)
        ds = opened(path)
        before = len(server.exchanges)
        counted = run(ds, world_size)
        log = [each for each in server.exchanges[before:] if each.method == "GET" and ".jsonl" in each.path]
    gets = [each for each in log if each.num_bytes > 1]
    assert record["num_requests"] - record["num_looks"] == pytest.approx(len(gets), rel=0.05)
    assert record["num_looks"] == world_size * (len(log) - len(gets))  # ranks of one process look once
    assert record["read_bytes"] == counted["read_bytes"]


@pytest.mark.parametrize("changes", ["", CHANGES.format(at=21_000)])
def test_a_long_mixture_is_planned_from_its_beginning(
    calls: Calls, shards: Path, monkeypatch: pytest.MonkeyPatch, changes: str
) -> None:
    words = ["plan", blend(shards, ends=f"epoch_size: 140000\n{changes}"), *FEW, "--ranks-per-node", 2]
    exact = calls.json(*words)
    monkeypatch.setattr("shoal.tools.planning.mixed_reads._MOST_POSITIONS", 70_000)
    part = calls.json(*words)
    assert not part["is_simulated_exactly"]
    for name in ("num_requests", "read_bytes", "amplification"):
        assert part[name] == pytest.approx(exact[name], rel=0.1), name


def test_weights_that_change_late_in_a_long_mixture_are_refused(
    calls: Calls, shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = blend(shards, ends=f"epoch_size: 60000\n{CHANGES.format(at=27_000)}")
    assert calls.json("plan", path, *FEW)["is_simulated_exactly"]
    monkeypatch.setattr("shoal.tools.planning.mixed_reads._MOST_POSITIONS", 21_000)
    assert "weights change until position 27,000" in calls.refused("plan", path, *FEW)


def test_a_mixture_without_epochs_is_planned_until_every_source_has_come(calls: Calls, shards: Path) -> None:
    path = blend(shards, ends="ends: forever")
    record, until = calls.json("plan", path, *FEW), max(filter(None, opened(path).exhausted_at().values()))
    assert record["num_samples"] == until
    assert f"The mixture has no epochs: the plan is for {until:,} samples" in calls.text("plan", path, *FEW)


def test_a_mixture_of_mixtures_with_other_weights_later_is_planned(calls: Calls, shards: Path) -> None:
    path = blend(shards, ends="epoch_size: 9000\nchanges:\n  - {at: 3000, weights: {web: 0.1, code: 0.8, books: 0.1}}")
    inner = path.rename(shards / "inner.yaml")
    outer = shards / "outer.yaml"
    outer.write_text(
        f"sources:\n  inner: {{path: {inner.name}, weight: 3}}\n  more: {{path: books, weight: 1}}\n{SHUFFLE}"
    )
    record, counted = calls.json("plan", outer, *FEW), run(opened(outer), 1)
    assert (record["num_requests"], record["read_bytes"]) == (counted["num_reads"], counted["read_bytes"])


@pytest.mark.parametrize(
    "options",
    [
        ["--window", "300KB", "--chunk", "8KiB"],
        *(pytest.param(words, marks=pytest.mark.drill) for words in ([], ["--chunks", "5"], ["--window", "1MB"])),
    ],
)
def test_a_row_of_a_mixture_is_what_the_plan_says_when_asked_directly(
    calls: Calls, shards: Path, options: list[str]
) -> None:
    path = str(blend(shards, shuffle=""))
    words = [path, "--global-batch", "24", "--ranks-per-node", "2", "--memory", "8MiB", *options]
    arguments = parsed(words)
    rows = list(what_if_rows(arguments, requested_plan(arguments).plan))
    assert {"half the window", "twice the global batch", "twice the nodes"} <= {row.name for row in rows}
    for row in rows:
        without_order = without({"--order", "--window", "--chunk", "--chunks", "--num-canonical-nodes"}, words)
        given = row.text.split()
        assert calls.json("plan", *without(set(given[::2]), without_order), *given) == as_json(row.record), row.name


def test_the_file_decides_how_a_mixture_is_shuffled(calls: Calls, shards: Path) -> None:
    path = blend(shards)
    arguments = parsed([str(path), "--global-batch", "24"])
    names = [row.name for row in what_if_rows(arguments, requested_plan(arguments).plan)]
    assert names == ["half the global batch", "twice the global batch", "twice the nodes"]
    assert "asks for another order" in calls.refused("plan", path, "--window", "1MB")
    page = shards / "plan.html"
    said = calls.text("plan", path, *FEW, "--html", page)
    for text in (said, page.read_text()):
        assert "no other window or chunk is planned" in text
        assert "batch(global_batch_size=24)" in text


def test_what_is_not_planned_of_a_mixture(calls: Calls, shards: Path) -> None:
    path = blend(shards)
    assert "its sources repeat at different times" in calls.refused("plan", path, "--cache", "1GB")
    assert "`shoal mix FILE --pack-sequences" in calls.refused("plan", path, "--pack-sequences", 64)
    assert "--index names the index of one dataset" in calls.refused("plan", path, "--index", "grow")
    assert "give one of them" in calls.refused("plan", path, "--num-samples", 10)
    assert "do not exceed a global batch" in calls.refused("plan", path, "--global-batch", 100_000)
    full = blend(shards, shuffle="shuffle: {order: full}\n")
    assert "the source 'web': the order 'full' draws from all" in calls.refused("plan", full)


def test_chunk_sizes_of_a_mixture_are_those_that_all_sources_can_have(calls: Calls, shards: Path) -> None:
    words = ["plan", blend(shards, shuffle=""), *FEW, "--window", "200KB", "--chunk", "8KiB", "--chunk-sizes"]
    sizes = calls.json(*words)["chunk_sizes"]
    assert len(sizes) >= 2
    assert sizes[0]["chunk_bytes"] == pytest.approx(4096, rel=0.1)
    assert sizes[0]["near_vr"] < sizes[-1]["near_vr"]
    assert sizes[0]["num_requests"] > sizes[-1]["num_requests"]
    assert calls.json("plan", blend(shards), *FEW, "--chunk-sizes")["chunk_sizes"] == []  # the file has the order
