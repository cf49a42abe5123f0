"""`shoal verify` lists what is wrong, and says by its exit code whether anything is."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.cli.calls import Calls, make_shards

import shoal
from shoal.errors import IndexFileError
from shoal.indexing.index_files import load_index, save_index
from shoal.indexing.open_source import open_source
from shoal.reading.checks.record_checksums import RECORD_CRCS
from shoal.storage.files.local_store import LocalStore
from shoal.testing import RangeServer


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_shards(tmp_path, monkeypatch)


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


def damage(path: Path, byte: int) -> None:
    data = bytearray(path.read_bytes())
    data[byte] ^= 1
    path.write_bytes(data)


def test_sound(data: Path, calls: Calls) -> None:
    calls.text("index", data, "--checksum")
    said = calls.json("verify", data)
    assert (said["num_damages"], said["damages"], said["num_samples"]) == (0, [], 200)
    assert said["num_extents_by_checksum"] > 0
    assert said["num_extents_by_parsing"] == 0
    assert "damages" in calls.text("verify", data)


def test_an_index_of_this_machine_will_do(data: Path, calls: Calls) -> None:
    said = calls.json("verify", data)
    assert (said["index"], said["num_damages"]) == (None, 0)
    assert said["num_extents_by_parsing"] > 0
    damage(data / "train-000001.tar", 512)
    assert calls.text("verify", data) != ""  # what is indexed anew is sound as it lies


def test_damage_by_shard_byte_and_key(data: Path, calls: Calls) -> None:
    calls.text("index", data, "--checksum", "--extent-bytes", "2KiB")
    damage(data / "train-000001.tar", 512)
    text = calls.text("verify", data, code=1)
    line = "checksum: the bytes differ from the indexed bytes, by their checksum; sample 50 (0050)"
    assert f"train-000001.tar, byte 0: {line}" in text
    result = json.loads(calls.text("verify", data, "--json", code=1))
    (one,) = result["damages"]
    assert (one["shard"], one["first_byte"], one["samples"], one["keys"]) == ("train-000001.tar", 0, [50], ["0050"])
    assert (result["num_damaged_samples"], result["index_is_wrong"]) == (1, False)
    assert "shards are damaged too" in calls.refused("verify", data, "--repair-index")


def test_a_wrong_index_is_repaired(data: Path, calls: Calls) -> None:
    calls.text("index", data, "--checksum")
    (data / "train-000000.tar").rename(data / "train-000007.tar")
    result = json.loads(calls.text("verify", data, "--json", code=1))
    assert {(d["kind"], d["shard"]) for d in result["damages"]} == {
        ("missing", "train-000000.tar"),
        ("unknown", "train-000007.tar"),
    }
    (data / "train-000007.tar").rename(data / "train-000000.tar")
    (data / "shoal.index").write_bytes(b"nothing of the kind")
    assert calls.text("verify", data, code=1).rstrip().splitlines()[-1].startswith("the index: index: ")
    said = calls.json("verify", data, "--repair-index")
    assert (said["index_repaired"], said["index_is_wrong"], said["num_samples"]) == (True, True, 200)
    assert calls.json("verify", data)["num_damages"] == 0


def test_a_label_that_changed_is_noticed_and_not_repaired_away(data: Path, calls: Calls) -> None:
    calls.text("index", data, "--checksum")
    path, store = str(data / "shoal.index"), LocalStore()
    index = load_index(path, store=store)
    labels = np.arange(200, dtype=np.int64)
    save_index(replace(index, columns={"label": labels, RECORD_CRCS: labels.astype(np.uint32)}), path, store=store)
    whole = Path(path).read_bytes()
    damage(Path(path), whole.index(labels.tobytes()) + 80)
    with pytest.raises(IndexFileError, match="have the CRC-32"):
        shoal.open(data, index=path)
    result = json.loads(calls.text("verify", data, "--json", code=1))
    assert [d["kind"] for d in result["damages"]] == ["index"]
    said = calls.refused("verify", data, "--repair-index")
    assert "it has the columns label, and it is unknown which of their values are right" in said
    save_index(replace(index, columns={RECORD_CRCS: labels.astype(np.uint32)}), path, store=store)
    damage(Path(path), len(Path(path).read_bytes()) - 1)
    assert calls.json("verify", data, "--repair-index")["index_repaired"]
    repaired = load_index(path, store=store)
    assert set(repaired.columns) == {RECORD_CRCS}
    assert repaired.columns[RECORD_CRCS].tolist() != labels.tolist(), "they are taken anew"
    assert calls.json("verify", data)["num_damages"] == 0


def test_what_cannot_be_found_out(tmp_path: Path, calls: Calls) -> None:
    assert "nothing" in calls.refused("verify", tmp_path / "nothing")


def deliver(data: Path, folder: Path, *, order: str = "window", world_size: int = 2) -> list[Path]:
    """The certificates of the ranks of a run over one epoch, in files."""
    folder.mkdir(exist_ok=True)
    paths = []
    for rank in range(world_size):
        ds = shoal.open(data).shuffle(order, seed=5).batch(16).partition(rank=rank, world_size=world_size)
        for _ in ds:
            pass
        paths.append(folder / f"{rank}.json")
        paths[-1].write_text(json.dumps(ds.certificate()))
    return paths


@pytest.mark.parametrize("order", ["none", "full", "window", "block", "buffer"])
def test_a_run_delivered_what_was_due(data: Path, calls: Calls, tmp_path: Path, order: str) -> None:
    first, second = deliver(data, tmp_path / "run", order=order)
    said = calls.json("verify", data, "--certificate", first, "--certificate", second)
    assert (said["as_due"], said["num_delivered"], said["differences"]) == (True, 200, [])
    assert said["epochs"][0]["end"] == 200
    assert said["covered"] == "epoch 0: all of 200 samples"
    alone = json.loads(calls.text("verify", data, "--certificate", first, "--json", code=1))
    (difference,) = alone["differences"]
    assert difference.startswith("epoch 0, positions [0, 200): ")
    assert difference.endswith("fewer than expected")


def test_certificates_that_cannot_be_compared(data: Path, calls: Calls, tmp_path: Path) -> None:
    first, second = deliver(data, tmp_path / "run")
    words = ("--certificate", first, "--certificate", second)
    assert "but --certificate reads none" in calls.refused("verify", data, *words, "--repair-index")
    ds = shoal.open(data).take(50).batch(10)
    list(ds)
    (tmp_path / "some.json").write_text(json.dumps(ds.certificate()))
    assert "only its script knows" in calls.refused("verify", data, "--certificate", tmp_path / "some.json")
    (tmp_path / "none.json").write_text("[")
    assert "not a certificate" in calls.refused("verify", data, "--certificate", tmp_path / "none.json")
    calls.text("index", data, "--checksum")
    assert "checksums of none; this index has checksums of extents" in calls.refused("verify", data, *words)


def test_over_http_the_shards_are_those_of_the_index(data: Path, calls: Calls) -> None:
    calls.text("index", data, "--checksum")
    with RangeServer(data) as server:
        for url in (f"{server.url}/", f"{server.url}/shoal.index"):
            said = calls.json("verify", url)
            assert (said["num_shards"], said["num_samples"], said["damages"]) == (4, 200, [])
    (data / "train-000002.tar").unlink()
    with RangeServer(data) as server:
        said = json.loads(calls.text("verify", f"{server.url}/", "--json", code=1))
    assert [(one["kind"], one["shard"]) for one in said["damages"]] == [("missing", "train-000002.tar")]


@pytest.mark.parametrize("index", ["whole", "unreadable"])
def test_an_index_is_not_replaced_by_one_of_some_of_its_shards(calls: Calls, data: Path, index: str) -> None:
    calls.text("index", data)
    path = data / "shoal.index"
    if index == "unreadable":
        path.write_bytes(b"no index")
    before = path.read_bytes()
    for shard in data.glob("*.tar"):
        os.utime(shard, ns=(0, 10**18))
    said = calls.refused("verify", str(data / "train-00000[01].tar"), "--repair-index")
    assert "shards" in said
    assert path.read_bytes() == before
    some = data.parent / "some.index"
    calls.text("verify", str(data / "train-00000[01].tar"), "--repair-index", "--output", some)
    assert calls.json("info", str(data / "train-00000[01].tar"), "--index", some)["num_shards"] == 2
    assert "--repair-index" in calls.refused("verify", data, "--output", some)


def test_an_index_made_with_options_is_verified_with_them(tmp_path: Path, calls: Calls) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.csv").write_text("a;b\n" + "".join(f'{row};"x\ny"\n' for row in range(50)))
    shards = str(tmp_path / "data" / "a.csv")
    opened = open_source(shards, format=shoal.formats.Delimited(delimiter=";"))
    save_index(opened.index, str(tmp_path / "data"), store=LocalStore())
    assert calls.json("verify", shards)["num_damages"] == 0
