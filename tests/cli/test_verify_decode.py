"""`shoal verify --decode` names each sample with a field that does not decode."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.cli.calls import Calls

import shoal
from shoal.verify.verify_job import plan_verify

Image = pytest.importorskip("PIL.Image")

BAD = {3: "jpg", 7: "json", 11: "cls"}


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


def found(calls: Calls, *words: object) -> dict[str, Any]:
    """Return the report of a call that finds something wrong."""
    report: dict[str, Any] = json.loads(calls.text(*words, "--json", code=1))
    return report


def member(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))


def make_images(directory: Path) -> Path:
    """Write 16 samples in two shards; one has half a JPEG, one no JSON, one no number."""
    out = io.BytesIO()
    Image.new("RGB", (64, 64), (200, 100, 50)).save(out, "JPEG")
    jpeg = out.getvalue()
    directory.mkdir()
    for shard in range(2):
        with tarfile.open(directory / f"{shard}.tar", "w") as archive:
            for number in range(8 * shard, 8 * shard + 8):
                bad = BAD.get(number)
                member(archive, f"{number:03}.jpg", jpeg[:200] if bad == "jpg" else jpeg)
                member(archive, f"{number:03}.json", b"{" if bad == "json" else b'{"n": 1}')
                member(archive, f"{number:03}.cls", b"x" if bad == "cls" else b"5")
    return directory


@pytest.mark.parametrize("checksums", [False, True])
def test_each_sample_that_does_not_decode_is_named(tmp_path: Path, calls: Calls, checksums: bool) -> None:
    data = make_images(tmp_path / "data")
    calls.text("index", data, *(["--checksum"] if checksums else []))
    assert calls.json("verify", data)["num_damages"] == 0
    said = found(calls, "verify", data, "--decode")
    assert (said["num_decoded_samples"], said["num_undecodable_samples"], said["num_damaged_samples"]) == (16, 3, 3)
    assert [damage["kind"] for damage in said["damages"]] == ["undecodable"] * 3
    for damage, (number, field) in zip(said["damages"], BAD.items(), strict=True):
        assert (damage["samples"], damage["keys"]) == ([number], [f"{number:03}"])
        assert damage["shard"] == f"{number // 8}.tar"
        assert f"the field '{field}'" in damage["what"]
        assert damage["first_byte"] % 512 == 0
        shard = (data / damage["shard"]).read_bytes()
        assert shard[damage["first_byte"] :].startswith(f"{number:03}.jpg".encode())
    text = calls.text("verify", data, "--decode", code=1)
    assert "0.tar, byte 10752: undecodable: the field 'jpg' (200 bytes) cannot be decoded" in text
    assert "sample 3 (003)" in text


def test_sound_images_are_counted(tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.cli.test_verify_decode.BAD", {})
    data = make_images(tmp_path / "data")
    said = calls.json("verify", data, "--decode")
    assert (said["num_decoded_samples"], said["num_undecodable_samples"]) == (16, 0)
    assert "num_decoded_samples" not in calls.json("verify", data)


def test_every_field_of_a_sample_is_named(tmp_path: Path, calls: Calls) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in ("0.jpg", "0.json", "0.txt"):
            member(archive, name, b"\xff")
    (damage,) = found(calls, "verify", tmp_path / "a.tar", "--decode")["damages"]
    assert all(f"the field '{name}'" in damage["what"] for name in ("jpg", "json", "txt"))


def test_damaged_samples_are_not_decoded(tmp_path: Path, calls: Calls) -> None:
    data = make_images(tmp_path / "data")
    calls.text("index", data, "--checksum", "--extent-bytes", "1KiB")
    shard = bytearray((data / "0.tar").read_bytes())
    shard[600] ^= 1
    (data / "0.tar").write_bytes(shard)
    said = found(calls, "verify", data, "--decode")
    kinds = {damage["kind"] for damage in said["damages"]}
    assert kinds == {"checksum", "undecodable"}
    lost = [sample for damage in said["damages"] for sample in damage["samples"]]
    assert len(lost) == len({*lost})


def test_other_decoders_are_named(tmp_path: Path, calls: Calls) -> None:
    data = make_images(tmp_path / "data")
    assert "there is no decoder named 'pul'" in calls.refused("verify", data, "--decoder", "pul")
    said = found(calls, "verify", data, "--decoder", "pilraw")
    assert said["num_undecodable_samples"] == 3
    assert "--decode reads the shards" in calls.refused("verify", data, "--certificate", "x", "--decode")


def test_features_of_datasets_are_decoded(tmp_path: Path, calls: Calls) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    features = {"image": {"_type": "Image"}, "n": {"_type": "Value", "dtype": "int64"}}
    metadata = {"huggingface": json.dumps({"info": {"features": features}})}
    out = io.BytesIO()
    Image.new("L", (8, 8)).save(out, "PNG")
    rows = [{"bytes": data, "path": None} for data in (out.getvalue(), out.getvalue()[:40])]
    pq.write_table(pa.table({"image": rows, "n": [0, 1]}).replace_schema_metadata(metadata), tmp_path / "a.parquet")
    (damage,) = found(calls, "verify", tmp_path / "a.parquet", "--decode")["damages"]
    assert (damage["samples"], "the field 'image'" in damage["what"]) == ([1], True)


def test_a_job_decodes_as_one_machine_does(tmp_path: Path) -> None:
    data = make_images(tmp_path / "data")
    job = plan_verify(str(data), to=tmp_path / "parts", decode=[])
    for number in job.missing():
        job.run(number)
    report = job.finish()
    assert (report.num_decoded, [damage.samples for damage in report.damages]) == (16, [(3,), (7,), (11,)])
    assert shoal.plan_verify is plan_verify
