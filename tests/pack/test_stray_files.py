"""Files that do not belong to the data (Thumbs.db, a README) are counted, named, and left out if asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.cli.calls import Calls

import shoal
from shoal.errors import StorageError, UsageError


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """40 photos of two classes, and what a file manager and a person have put beside some."""
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    for animal in ("cat", "dog"):
        (tmp_path / "photos" / animal).mkdir(parents=True)
        for number in range(20):
            (tmp_path / "photos" / animal / f"{number:03d}.jpg").write_bytes(b"jpg of a " + animal.encode())
        (tmp_path / "photos" / animal / "Thumbs.db").write_bytes(b"thumbnails")
    (tmp_path / "photos" / "README").write_text("photos")
    return tmp_path / "photos"


def test_the_report_counts_fields_and_names_what_lacks_the_usual_ones(
    photos: Path, tmp_path: Path, calls: Calls
) -> None:
    said = calls.json("pack", photos, tmp_path / "packed")
    assert said["fields"] == {"jpg": 40, "db": 2}
    assert [each["name"] for each in said["skipped"]] == ["README"]
    assert said["usual_fields"] == ["jpg"]
    assert said["num_without_usual_fields"] == 2
    assert said["first_without_usual_fields"] == ["cat/Thumbs", "dog/Thumbs"]
    again = calls.json("pack", photos, tmp_path / "packed")  # all of it is there
    assert {name: again[name] for name in again if "fields" in name} == {
        name: said[name] for name in said if "fields" in name
    }
    text = calls.text("pack", photos, tmp_path / "again")
    assert "jpg 40, db 2" in text
    assert "note: 2 of 42 samples lack fields that most have (jpg): cat/Thumbs, dog/Thumbs" in calls.complaints
    assert "--require jpg" in calls.complaints


def test_info_counts_the_fields_of_what_was_packed(photos: Path, tmp_path: Path, calls: Calls) -> None:
    calls.json("pack", photos, tmp_path / "packed")
    said = calls.json("info", tmp_path / "packed")
    assert said["fields"]["counts"] == {"jpg": 40, "db": 2}
    assert said["fields"]["num_without_usual"] == 2
    assert "jpg 40, db 2; 2 samples lack jpg: cat/Thumbs, " in calls.text("info", tmp_path / "packed")


def test_what_is_required_is_asked_before_anything_is_written(photos: Path, tmp_path: Path, calls: Calls) -> None:
    complaint = calls.refused("pack", photos, tmp_path / "packed", "--require", "jpg")
    assert "3 of 43 inputs lack what --require asks for: 'README' (jpg), 'cat/Thumbs.db' (jpg), " in complaint
    assert "--on-error skip" in complaint
    assert not (tmp_path / "packed").exists()


def test_pictures_under_another_suffix_are_named_where_one_is_required(tmp_path: Path, calls: Calls) -> None:
    for name in ("cat/0.jpg", "cat/1.png", "dog/0.png", "dog/notes.txt"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(name.encode())
    complaint = calls.refused("pack", tmp_path / "in", tmp_path / "packed", "--require", "jpg")
    assert "3 of 4 inputs" in complaint
    assert "'jpg;png' takes either; --on-error skip leaves them out" in complaint
    assert "in Python" not in complaint
    complaint = calls.refused("pack", tmp_path / "in", tmp_path / "packed", "--require", "jpg;png")
    assert "takes either" not in complaint


def test_what_lacks_a_required_field_is_left_out_where_errors_are_skipped(
    photos: Path, tmp_path: Path, calls: Calls
) -> None:
    said = calls.json("pack", photos, tmp_path / "packed", "--require", "jpg,cls", "--on-error", "skip")
    assert (said["num_inputs"], said["num_samples"], said["num_skipped"]) == (43, 40, 3)
    assert said["skipped"][0] == {"name": "README", "reason": "it has no jpg"}
    assert said["fields"] == {"jpg": 40}
    ds = shoal.open(tmp_path / "packed")
    assert ds.classes == ("cat", "dog")
    assert all(sample.keys() == {"__key__", "jpg", "cls"} for sample in ds)
    again = calls.json("pack", photos, tmp_path / "packed", "--require", "jpg,cls", "--on-error", "skip")
    assert (again["num_inputs"], again["num_skipped"]) == (43, 3)
    assert len(shoal.open(tmp_path / "packed").stream.opened.index.metadata["skipped"]) == 3


@pytest.mark.parametrize("format_name", ["tar", "jsonl", "tfrecord"])
def test_in_python_and_in_every_format(photos: Path, tmp_path: Path, format_name: str) -> None:
    summary = shoal.pack.pack(
        photos, tmp_path / "packed", format=format_name, require=["png;jpg"], on_error="skip", num_workers=1
    )
    assert summary.num_samples == 40
    assert summary.skipped == tuple(
        (name, "it has no png;jpg") for name in ("README", "cat/Thumbs.db", "dog/Thumbs.db")
    )
    assert summary.fields is not None
    assert (summary.fields.counts, summary.fields.num_without_usual) == ({"jpg": 40}, 0)


def test_files_of_a_sample_are_looked_at_together(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number in range(5):
        (tmp_path / "data" / f"{number}.jpg").write_bytes(b"jpg")
        if number != 3:
            (tmp_path / "data" / f"{number}.json").write_bytes(b"{}")
    summary = shoal.pack.pack(tmp_path / "data", tmp_path / "all", grouped=True)
    assert summary.fields is not None
    assert summary.fields.counts == {"jpg": 5, "json": 4}
    assert (summary.fields.num_without_usual, summary.fields.first_without_usual) == (1, ("3",))
    kept = shoal.pack.pack(tmp_path / "data", tmp_path / "kept", grouped=True, require=["jpg", "json"], on_error="skip")
    assert (kept.num_samples, kept.skipped) == (4, (("3.jpg", "it has no json"),))
    with pytest.raises(UsageError, match="did you mean 'json'"):
        shoal.pack.pack(tmp_path / "data", tmp_path / "none", grouped=True, require=["jsno"], on_error="skip")
    with pytest.raises(UsageError, match="grouped=True"):
        shoal.pack.pack(tmp_path / "data", tmp_path / "none", require=["jpg", "json"], on_error="skip")


def test_repeats_and_skipped_files_are_counted_as_they_are_packed(photos: Path, tmp_path: Path) -> None:
    (photos / "README").unlink()
    (photos / "cat" / "000.jpg").unlink()
    (photos / "cat" / "000.jpg").symlink_to("/dev/null")
    summary = shoal.pack.pack(photos, tmp_path / "packed", oversample={"dog": 3}, on_error="skip", shuffle=True)
    assert summary.fields is not None
    assert summary.fields.counts == {"jpg": 19 + 60 + 1 - len(summary.skipped), "db": 4}
    assert sum(summary.fields.counts.values()) == summary.num_samples


def test_classes_may_be_required(photos: Path, tmp_path: Path) -> None:
    assert shoal.pack.pack(photos, tmp_path / "packed", require=["cls"], on_error="skip").num_samples == 42
    with pytest.raises(UsageError, match="no classes"):
        shoal.pack.pack(photos / "cat", tmp_path / "flat", require=["cls"], on_error="skip")


def test_samples_from_code_must_have_what_is_required(tmp_path: Path) -> None:
    samples: list[dict[str, Any]] = [{"text": "a", "label": 1}, {"text": "b"}]
    with pytest.raises(UsageError, match="sample 1 lacks required fields: label"):
        shoal.pack.pack(samples, tmp_path / "packed", format="jsonl", require=["text", "label"])


def test_rows_are_chosen_in_their_manifest(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "list.csv").write_text("path\nphotos/cat/001.jpg\n")
    with pytest.raises(UsageError, match="a manifest, but require= does not apply to it"):
        shoal.pack.pack(tmp_path / "list.csv", tmp_path / "packed", require=["jpg"])


@pytest.mark.parametrize("source", ["photos", "photos/**/*"])
def test_links_that_lead_nowhere_are_counted_with_their_targets(source: str, photos: Path, tmp_path: Path) -> None:
    (photos / "README").unlink()
    (photos / "cat" / "099.jpg").symlink_to("../gone/099.jpg")
    with pytest.raises(StorageError, match=r"cat/099\.jpg: it is a link to \.\./gone/099\.jpg, which does not exist"):
        shoal.pack.pack(tmp_path / source, tmp_path / "none")
    summary = shoal.pack.pack(tmp_path / source, tmp_path / "packed", on_error="skip")
    assert summary.num_samples == 42
    ((name, reason),) = summary.skipped
    assert name == "cat/099.jpg"
    assert "a link to ../gone/099.jpg" in reason


def test_links_of_folders_are_followed_or_named(photos: Path) -> None:
    (photos / "README").unlink()
    (photos / "cat" / "099.jpg").symlink_to("gone.jpg")
    for source in (photos, photos / "*" / "*.jpg", [photos / "cat", photos / "dog"]):
        with pytest.raises(StorageError, match=r"099\.jpg: it is a link to gone\.jpg, which does not exist"):
            shoal.open(source, format="folder")


def test_pictures_of_several_suffixes_lack_nothing_and_no_advice_removes_them(
    photos: Path, tmp_path: Path, calls: Calls
) -> None:
    for number in range(12):
        (photos / "cat" / f"{number:03d}.jpg").rename(photos / "cat" / f"{number:03d}.PNG")
    (photos / "cat" / "013.jpg").rename(photos / "cat" / "013.jpeg")
    said = calls.json("pack", photos, tmp_path / "packed")
    assert said["usual_fields"] == ["jpg;png;jpeg"]
    assert said["first_without_usual_fields"] == ["cat/Thumbs", "dog/Thumbs"]
    calls.text("pack", photos, tmp_path / "again")
    assert "jpg 27, png 12, jpeg 1 are one field with several names" in calls.complaints
    assert '.rename(image="jpg;png;jpeg")' in calls.complaints
    assert "--require 'jpg;png;jpeg' refuses such samples" in calls.complaints
    kept = calls.json("pack", photos, tmp_path / "kept", "--require", "jpg;png;jpeg", "--on-error", "skip")
    assert kept["num_samples"] == 40
    names = [sample.keys() for sample in shoal.open(tmp_path / "kept").rename(image="jpg;png;jpeg")]
    assert all("image" in each for each in names)


def test_pictures_of_one_sample_are_fields_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for number in range(5):
        for suffix in ("jpg", "png"):
            (tmp_path / "data" / f"{number}.{suffix}").write_bytes(b"data")
    (tmp_path / "data" / "9.jpg").write_bytes(b"data")
    fields = shoal.pack.pack(tmp_path / "data", tmp_path / "packed", grouped=True).fields
    assert fields is not None
    assert (fields.usual, fields.first_without_usual) == (("jpg", "png"), ("9",))


def test_a_column_that_no_sample_has_is_the_cause_also_where_errors_are_skipped(
    photos: Path, tmp_path: Path, calls: Calls
) -> None:
    (photos / "README").unlink()
    for more in ((), ("--on-error", "skip")):
        complaint = calls.refused("pack", photos, tmp_path / "packed", "--columns", "key", *more)
        assert "the column 'key' is 'key' of each sample, but the sample 'cat/000' has none there; " in complaint
        assert "its fields are __key__, jpg" in complaint
        assert "right inputs" not in complaint
        assert ("did you mean '__key__'?" in complaint) != bool(more)
        assert ("without --on-error skip" in complaint) == bool(more)
