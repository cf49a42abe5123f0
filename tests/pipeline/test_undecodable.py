"""Fields that cannot be decoded: the error says shard, byte, sample, field, and what to do."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from tests.formats import writers

import shoal
from shoal.errors import ShardError, UsageError

pytestmark = pytest.mark.filterwarnings("ignore::shoal.errors.ShuffleWarning")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))


BAD = {"txt": b"\xff", "json": b"{", "cls": b"one", **dict.fromkeys(("npy", "npz", "jpg", "json.gz", "pkl"), b"no")}


def written(tmp_path: Path, field: str, bad: bytes) -> Path:
    """A tar whose second sample cannot be decoded, and where that begins."""
    good = {"txt": b"text", "json": b"{}", "cls": b"1"}.get(field)
    members = {"a.txt" if good is None else f"a.{field}": good or b"text", f"b.{field}": bad}
    path = tmp_path / "data" / "a.tar"
    path.parent.mkdir()
    path.write_bytes(writers.tar_of(members))
    return path


@pytest.mark.parametrize("field", BAD)
def test_what_shoal_cannot_decode_is_an_error_of_the_shard(field: str, tmp_path: Path) -> None:
    if field == "jpg":
        pytest.importorskip("PIL")
    path = written(tmp_path, field, BAD[field])
    specs = ("pil",) if field == "jpg" else ()
    ds = shoal.open(path).decode(*specs, allow_pickle=field == "pkl")
    for read in (
        lambda: list(ds),
        lambda: list(ds.batch(1)),
        lambda: ds[1],
        lambda: ds.as_map()[1],
    ):
        with pytest.raises(ShardError, match=rf"field '{field}' \(\d bytes?\) of the sample with id 1") as caught:
            read()
        assert (caught.value.shard, caught.value.byte) == ("a.tar", 1024)
        assert 'on_error="skip"' in caught.value.hint
        assert caught.value.__cause__ is not None


def test_errors_of_a_function_that_was_given_stay_what_they_are(tmp_path: Path) -> None:
    class OwnError(Exception):
        pass

    def fail(data: bytes) -> Any:
        raise OwnError(len(data))

    ds = shoal.open(written(tmp_path, "txt", b"more")).decode({"txt": fail})
    with pytest.raises(OwnError) as caught:
        ds[1]
    notes = " ".join(caught.value.__notes__)
    assert "the field 'txt' (4 bytes)" in notes
    assert "the sample with id 1, which begins at byte 1024 of a.tar" in notes


def test_undecodable_samples_are_left_out_and_listed_with_their_byte(tmp_path: Path) -> None:
    ds = shoal.open(written(tmp_path, "txt", b"\xff")).decode()
    quarantine = tmp_path / "bad.jsonl"
    skipping = ds.reading(on_error="skip", quarantine=quarantine)
    assert [sample["txt"] for sample in skipping] == ["text"]
    (line,) = map(json.loads, quarantine.read_text().splitlines())
    assert (line["id"], line["shard"], line["byte"]) == (1, "a.tar", 1024)
    assert "UnicodeDecodeError" in line["error"]


def test_damaged_pickles_in_columns_are_errors_of_the_shard(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for value, error, what in (
        (b"\x80\x04K", ShardError, "EOFError|UnpicklingError"),
        (pickle.dumps(7)[:-1], ShardError, "EOFError|UnpicklingError"),
        (b"cno_such_module_here\nname\n.", UsageError, "no_such_module_here"),
        (b"cos\nno_such_name\n.", ShardError, "AttributeError"),
    ):
        (data / "shard.00000.mds").write_bytes(writers.mds_of({"x": ("pkl", None)}, [[value]]))
        ds = shoal.open(data, format=shoal.formats.Mds(allow_pickle=True))
        with pytest.raises(error, match=what):
            list(ds)
