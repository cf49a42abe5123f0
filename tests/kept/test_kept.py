"""Files of released versions: the code of today reads each, and continues where the release stopped."""

from __future__ import annotations

import copy
import gc
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.kept.datasets import COUNTS, TABLES, digests_of, sample, set_times, write_datasets, write_inputs
from tests.kept.streams import MAKERS, MERGED, SIZE, after, lines, numbered, numbers_of, shuffled
from tests.kept.write import PACK

import shoal
from shoal.cli.main import main
from shoal.errors import IndexFileError, StateError, UsageError
from shoal.formats.format_registry import format_named
from shoal.index.index_file import decode
from shoal.live.live_state import sealed as sealed_live
from shoal.order.state_dict import sealed

KEPT = Path(__file__).parent
VERSIONS = sorted(path.name for path in KEPT.iterdir() if path.name[0].isdigit())

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


@dataclass(frozen=True)
class Kept:
    """The set of one release, and a copy of its datasets with their indexes."""

    directory: Path
    data: Path

    def read(self, kind: str, name: str) -> dict[str, Any]:
        """Return the record ``name`` of a kind of files."""
        return dict(json.loads((self.directory / kind / f"{name}.json").read_text(encoding="utf-8")))


def files_of(kind: str, suffix: str = "json") -> list[Any]:
    """The names of the files of one kind, in all releases."""
    return [
        pytest.param((version, path.stem), id=f"{version}-{path.stem}")
        for version in VERSIONS
        for path in sorted((KEPT / version / kind).glob(f"*.{suffix}"))
    ]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Kept]]:
    made = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHOAL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        for version in VERSIONS:
            directory, data = KEPT / version, tmp_path_factory.mktemp("kept") / "data"
            shutil.copytree(directory / "shards", data)
            write_datasets(data)
            for path in (directory / "indexes").iterdir():
                shutil.copyfile(path, data / path.stem / "shoal.index")
            for path in (directory / "mixtures").iterdir():
                shutil.copyfile(path, data / path.name)
            made[version] = Kept(directory, data)
        yield made
    gc.collect()


def made_stream(kept: Kept, kind: str) -> Any:
    """The stream of a kind, as the user of the release made it; skips the test if a library is missing."""
    if kind.startswith("torch-"):
        pytest.importorskip("torch", reason="torch is not installed")
    if kind.startswith("mixture-file-"):
        pytest.importorskip("yaml", reason="PyYAML is not installed")
    if kind.removeprefix("format-") in TABLES:
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    return MAKERS[kind](kept.data)


def test_there_are_sets_of_releases() -> None:
    assert "0.1.0" in VERSIONS


@pytest.mark.parametrize("version", VERSIONS)
def test_the_shards_are_the_shards_of_then(sets: dict[str, Kept], version: str) -> None:
    known = json.loads((KEPT / version / "shards.json").read_text(encoding="utf-8"))
    assert {name: digest for name, digest in digests_of(sets[version].data).items() if name in known} == known


@pytest.mark.parametrize("version", VERSIONS)
def test_a_set_is_small_and_names_no_machine(version: str) -> None:
    files = [path for path in (KEPT / version).rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 300_000
    assert not [path for path in files if b"/tmp" in path.read_bytes() or b"/home" in path.read_bytes()]


@pytest.mark.parametrize("file", files_of("indexes", "index"))
def test_an_index_gives_every_sample(
    sets: dict[str, Kept], file: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    version, name = file
    if name in TABLES:
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    data = sets[version].data / name
    index = decode((data / "shoal.index").read_bytes())
    assert index.shard_bytes.tolist() == [(data / shard).stat().st_size for shard in index.shard_names]
    start = 1000 * (name == "other")
    with monkeypatch.context() as patch:  # neither opening nor reading scans a shard
        patch.setattr(type(format_named(index.format)), "scan", None)
        ds = shoal.open(data)
        assert ds.state_dict()["index"] == index.fingerprint
        assert [numbered(each)["n"] for each in ds] == [start + number for number in range(sum(COUNTS))]
    column = "label" if name == "tar" else "class"
    assert [*map(int, ds.index_column(column))] == [sample(number)["class"] for number in range(sum(COUNTS))]
    assert main(["verify", str(data)]) == 0


@pytest.mark.parametrize("file", files_of("states"))
def test_a_state_continues(sets: dict[str, Kept], file: tuple[str, str]) -> None:
    version, kind = file
    record = sets[version].read("states", kind)
    if kind.endswith("-merged"):
        make = MERGED[kind.removesuffix("-merged")]
        ranks = [make(sets[version].data, rank, len(record["ranks"])) for rank in range(len(record["ranks"]))]
        assert shoal.merge_states(record["ranks"]) == record["state"]
        for stream in ranks:
            stream.load_state_dict(record["state"])
        assert [after(stream) for stream in ranks] == record["after"]
        return
    stream = made_stream(sets[version], kind)
    assert [numbers_of(batch) for batch, _ in zip(stream, record["before"], strict=False)] == record["before"]
    again = made_stream(sets[version], kind)
    again.load_state_dict(record["state"])
    assert after(again) == record["after"]


@pytest.mark.parametrize("file", files_of("certificates"))
def test_a_certificate_is_merged_and_verified(sets: dict[str, Kept], file: tuple[str, str]) -> None:
    version, kind = file
    record = sets[version].read("certificates", kind)
    assert shoal.merge_certificates(record["ranks"]) == record["merged"]
    stream = made_stream(sets[version], kind)
    assert "epoch 0" in stream.check_certificate(record["merged"])
    forged = copy.deepcopy(record["merged"])
    forged["epochs"]["0"]["sum"] = "0" * 16
    with pytest.raises(StateError):
        stream.check_certificate(forged)


@pytest.mark.parametrize("version", VERSIONS)
def test_an_unfinished_packing_is_finished(sets: dict[str, Kept], version: str, tmp_path: Path) -> None:
    kept = sets[version].directory / "packing"
    shutil.copytree(kept / "unfinished", tmp_path / "out")
    set_times(tmp_path / "out")
    finished = {path.name: path.stat() for path in (tmp_path / "out").glob("*.jsonl")}
    words = ["pack", str(write_inputs(tmp_path / "inputs")), str(tmp_path / "out")]
    assert main([*words, *PACK, "--prefix", "other"]) == 2  # another packing must not continue this one
    assert main([*words, *PACK]) == 0
    record = json.loads((kept / "finished.json").read_text(encoding="utf-8"))
    digests = digests_of(tmp_path / "out")
    assert {name: digest for name, digest in digests.items() if name != "shoal.index"} == record["shards"]
    assert {name: (tmp_path / "out" / name).stat().st_mtime for name in finished} == {
        name: stat.st_mtime for name, stat in finished.items()
    }
    assert shoal.open(tmp_path / "out").num_samples == record["num_samples"]


FUTURE = {"order-window": "version", "live-followed": "live"}


@pytest.mark.parametrize(("kind", "field"), FUTURE.items())
def test_a_state_of_a_later_version_is_refused(sets: dict[str, Kept], kind: str, field: str) -> None:
    kept = sets[VERSIONS[-1]]
    state = kept.read("states", kind)["state"]
    later = {**state, field: state[field] + 1}
    later = sealed_live(later) if "live" in later else sealed(later)
    with pytest.raises(StateError, match=rf"version {later[field]}; (?s:.)*newer version of shoal: upgrade shoal"):
        MAKERS[kind](kept.data).load_state_dict(later)


def test_a_state_of_a_later_order_is_refused(sets: dict[str, Kept]) -> None:
    kept = sets[VERSIONS[-1]]
    state = kept.read("states", "order-window")["state"]
    later = sealed({**state, "order": {**state["order"], "version": state["order"]["version"] + 1}})
    with pytest.raises(StateError, match="version"):
        shuffled(kept.data).batch(SIZE).load_state_dict(later)


def test_a_certificate_of_a_later_version_is_refused(sets: dict[str, Kept]) -> None:
    kept = sets[VERSIONS[-1]]
    merged = kept.read("certificates", "order-window")["merged"]
    later = {**merged, "version": merged["version"] + 1}
    for use in (lines(kept.data).check_certificate, lambda given: shoal.merge_certificates([given])):
        with pytest.raises(StateError, match="newer version of shoal: upgrade shoal"):
            use(later)


def test_an_index_of_a_later_version_is_refused(sets: dict[str, Kept], tmp_path: Path) -> None:
    kept = sets[VERSIONS[-1]]
    shutil.copytree(kept.data / "jsonl", tmp_path / "jsonl")
    path = tmp_path / "jsonl" / "shoal.index"
    path.write_bytes(path.read_bytes().replace(b'"version":"1"', b'"version":"2"', 1))
    with pytest.raises(
        IndexFileError, match=r"version '2', but this version of shoal reads version 1(?s:.)*update shoal"
    ):
        shoal.open(path)
    assert main(["info", str(path)]) != 0


def test_an_unfinished_packing_of_a_later_version_is_left_alone(sets: dict[str, Kept], tmp_path: Path) -> None:
    shutil.copytree(sets[VERSIONS[-1]].directory / "packing" / "unfinished", tmp_path / "out")
    plan = tmp_path / "out" / ".shoal-pack" / "plan.json"
    record = json.loads(plan.read_text(encoding="utf-8"))
    plan.write_text(
        json.dumps({"plan": "0" * 32, "asked": {**record["asked"], "a later setting": 1}}), encoding="utf-8"
    )
    inputs, before = write_inputs(tmp_path / "inputs"), digests_of(tmp_path / "out")
    with pytest.raises(UsageError, match="another packing was begun here"):
        shoal.pack.pack(inputs, tmp_path / "out", format="jsonl", shuffle=True, seed=5, shard_bytes=2000, num_workers=1)
    assert digests_of(tmp_path / "out") == {
        **before,
        ".shoal-pack/lock": digests_of(tmp_path / "out")[".shoal-pack/lock"],
    }
