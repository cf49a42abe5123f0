"""`shoal head` shows the samples that the dataset gives, and nothing that a terminal would obey."""

from __future__ import annotations

import base64
import io
import json
from collections import Counter
from pathlib import Path

import pytest
from tests.cli.calls import Calls, make_shards
from tests.samples import write_jsonl, write_tar
from tests.stream.made import write_tars

import shoal
from shoal.cli.main import main
from shoal.indexing import indexing_estimate
from shoal.testing import RangeServer


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return make_shards(tmp_path, monkeypatch)


@pytest.fixture
def calls(capsys: pytest.CaptureFixture[str]) -> Calls:
    return Calls(capsys)


def test_the_first_samples_of_storage(data: Path, calls: Calls) -> None:
    dataset = shoal.open(data)
    lines = calls.json_lines("head", data)
    assert [line["id"] for line in lines] == [0, 1, 2, 3, 4]
    for line in lines:
        sample = dataset[line["id"]]
        assert line["key"] == sample.pop("__key__")
        assert line["fields"] == {name: value.decode() for name, value in sample.items()}
        stored = (data / line["shard"]).read_bytes()[line["first_byte"] : line["end_byte"]]
        assert sample["txt"] in stored


def test_people_see_the_same(data: Path, calls: Calls) -> None:
    text = calls.text("head", data, "-n", 2)
    assert text == (
        "0  0000  in train-000000.tar [0, 2048)\n"
        "  txt  11 B  sample 0000\n"
        "  cls   1 B  0\n"
        "\n"
        "1  0001  in train-000000.tar [2048, 4096)\n"
        "  txt  11 B  sample 0001\n"
        "  cls   1 B  0\n"
    )


@pytest.mark.parametrize(
    ("words", "order", "epoch"),
    [
        (["--seed", "3"], {"seed": 3}, 0),
        (["--epoch", "2"], {}, 2),
        (["--order", "full", "--epoch", "1"], {"order": "full"}, 1),
        (["--window", "128KiB"], {"window": "128KiB"}, 0),
    ],
)
def test_the_first_samples_of_an_order(
    words: list[str], order: dict[str, object], epoch: int, data: Path, calls: Calls
) -> None:
    dataset = shoal.open(data).shuffle(**order)  # type: ignore[arg-type]
    lines = calls.json_lines("head", data, "-n", 20, *words)
    assert [line["id"] for line in lines] == dataset.ids(epoch, 0, 20).tolist()


def test_of_shards_without_an_index_only_the_first_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], calls: Calls
) -> None:
    """The first samples come at once, however long an index of all shards would take."""
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(indexing_estimate, "LONG_SECONDS", -1.0)
    directory = write_tars(tmp_path / "data", [0, 2, 0, 3, 1, *[5] * 20])
    with RangeServer(directory) as server:
        source = f"{server.url}/s-{{000..024}}.tar"
        for num_samples, num_shards in ((1, 3), (2, 3), (6, 7), (26, 15)):
            server.clear()
            capsys.readouterr()
            assert main(["head", source, "-n", str(num_samples), "--json"]) == 0
            out, err = capsys.readouterr()
            lines = [json.loads(line) for line in out.splitlines()]
            assert f"read only {num_shards} of 25 shards without an index" in err
            request = Counter(exchange.path for exchange in server.exchanges if exchange.path.endswith(".tar"))
            # Each is looked at, and three are read to estimate the time.
            assert sum(number > 1 for number in request.values()) <= num_shards + 3
            whole = shoal.open(directory)
            places = [whole.stream.spec.opened.index.place(number) for number in range(num_samples)]
            assert [line["id"] for line in lines] == list(range(num_samples))
            assert [line["key"] for line in lines] == [whole[number]["__key__"] for number in range(num_samples)]
            assert [(line["shard"], line["first_byte"], line["end_byte"]) for line in lines] == places
        assert len(calls.json_lines("head", source, "-n", 1000)) == 106


def test_samples_by_id_and_at_the_end(data: Path, calls: Calls) -> None:
    assert [line["id"] for line in calls.json_lines("head", data, "--ids", "199,5,100,5")] == [199, 5, 100, 5]
    assert len(calls.json_lines("head", data, "-n", 1000)) == 200
    assert calls.text("head", data, "-n", 0) == ""
    assert "sample ids are 0 to 199" in calls.refused("head", data, "--ids", "5,200")
    assert "--ids names samples" in calls.refused("head", data, "--ids", "5", "--seed", 1)


def test_a_rank_of_the_environment_makes_no_difference(
    data: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert [line["id"] for line in calls.json_lines("head", data, "-n", 3)] == [0, 1, 2]


def test_hostile_and_binary_samples(tmp_path: Path, calls: Calls, data: Path) -> None:
    del data
    payload = bytes(range(256)) * 40
    sample = {"__key__": b"k\x1b[2J", "txt": b"\x1b[31mred\n" + b"long " * 100, "jpg": b"any", "bin": payload}
    write_tar(tmp_path / "odd.tar", [sample])
    text = calls.text("head", tmp_path / "odd.tar")
    assert "\x1b" not in text
    assert max(map(len, text.splitlines())) <= 80
    lines = [line.split(maxsplit=3) for line in text.splitlines()[1:]]
    assert [line[:3] for line in lines] == [["txt", "509", "B"], ["jpg", "3", "B"], ["bin", "10.0", "KiB"]]
    assert lines[0][3].startswith("\\x1b[31mred\\nlong")
    assert [line[3] for line in lines[1:]] == ["(image)", "(binary)"]
    (said,) = calls.json_lines("head", tmp_path / "odd.tar")
    assert said["key"] == "k\x1b[2J"
    assert base64.b64decode(said["fields"]["bin"]["base64"]) == payload


def test_fields_of_json_lines(tmp_path: Path, calls: Calls, data: Path) -> None:
    del data
    path = write_jsonl(tmp_path / "docs.jsonl")
    (said,) = calls.json_lines("head", path, "--ids", "3")
    assert said["fields"] == json.loads(path.read_text().splitlines()[3])
    assert said["key"] is None
    assert "  id     int  3" in calls.text("head", path, "--ids", "3")


def test_decoding(tmp_path: Path, calls: Calls, data: Path) -> None:
    assert calls.json_lines("head", data, "-n", 1, "--decode")[0]["fields"] == {"txt": "sample 0000", "cls": 0}
    write_tar(tmp_path / "bad.tar", [{"__key__": b"a", "json": b"{"}])
    assert calls.text("head", tmp_path / "bad.tar", "--decode", code=1) == ""
    result = "bad.tar, byte 0: the field 'json' (1 bytes) of the sample with id 0 cannot be decoded: JSONDecodeError"
    assert result in calls.complaints
    assert "hint: without --decode the bytes of the sample are shown" in calls.complaints
    assert calls.json_lines("head", tmp_path / "bad.tar")[0]["fields"] == {"json": "{"}


def test_decoding_images(tmp_path: Path, calls: Calls, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del data
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (5, 3), "red").save(picture := io.BytesIO(), "png")
    write_tar(tmp_path / "a.tar", [{"__key__": b"a", "png": picture.getvalue(), "cls": b"7"}])
    assert "(image)" in calls.text("head", tmp_path / "a.tar", "--decode")
    assert "RGB image of 5 x 3" in calls.text("head", tmp_path / "a.tar", "--decode", "pil")
    assert "uint8 array of shape (3, 5, 3)" in calls.text("head", tmp_path / "a.tar", "--decode", "rgb8")
    (said,) = calls.json_lines("head", tmp_path / "a.tar", "--decode", "l8")
    assert said["fields"] == {"png": {"dtype": "uint8", "shape": [3, 5], "values": [[76] * 5] * 3}, "cls": 7}
    (said,) = calls.json_lines("head", tmp_path / "a.tar", "--decode", "pil")
    assert said["fields"]["png"] == {"image": {"mode": "RGB", "width": 5, "height": 3}}
    resized = calls.text("head", tmp_path / "a.tar", "--decode", "rgb8", "--image-size", "2x4")
    assert "uint8 array of shape (2, 4, 3)" in resized
    assert "RGB image of 7 x 7" in calls.text("head", tmp_path / "a.tar", "--decode", "pil", "--image-size", "7")
    assert "no decoder of images is named" in calls.refused("head", tmp_path / "a.tar", "--image-size", "7")
    for verb in ("head", "bench"):
        with pytest.raises(SystemExit, match="2"):
            calls.text(verb, tmp_path / "a.tar", "--decode", "rgb8", "--image-size", "7x")
        assert "'7x' is not a size in pixels" in capsys.readouterr().err
        with pytest.raises(SystemExit, match="2"):
            calls.text(verb, "--decode", tmp_path / "a.tar")
        assert "put the dataset before --decode" in capsys.readouterr().err


def test_a_page_with_the_same_samples(tmp_path: Path, calls: Calls, data: Path) -> None:
    page = tmp_path / "page.html"
    assert calls.text("head", data, "-n", 3, "--seed", 3, "--decode", "--page", page) == ""
    text = page.read_text()
    for number in shoal.open(data).shuffle(seed=3).ids(0, 0, 3).tolist():
        assert f"sample {number:04d}" in text
    assert "3 samples, the first in the order of epoch 0" in text
    assert "Made by <code>shoal head" in text
    assert "<script" not in text
    assert calls.text("head", data, "--ids", "7,199", "--html", page) == ""
    assert "sample 0199" in page.read_text()
    assert "--page writes a page" in calls.refused("head", data, "--page", page, "--json")


def test_a_page_of_hostile_samples(tmp_path: Path, calls: Calls, data: Path) -> None:
    del data
    sample = {"__key__": b"k<script>", "txt": b"<script>alert(1)</script>", "jpg": b"\xff\xd8\xff broken"}
    write_tar(tmp_path / "odd.tar", [sample])
    calls.text("head", tmp_path / "odd.tar", "--page", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "<script" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "image that cannot be shown" in text


def test_shards_without_samples(tmp_path: Path, calls: Calls, data: Path) -> None:
    del data
    (tmp_path / "blank.jsonl").write_text("\n")
    assert "without a single sample" in calls.refused("head", tmp_path / "blank.jsonl")


@pytest.mark.parametrize("words", [["-n", "-1"], ["--ids", "a"], ["--ids", "1", "-n", "2"], ["--order", "shuffled"]])
def test_words_that_make_no_sense(words: list[str], calls: Calls, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        calls.text("head", "data", *words)
    assert "usage: shoal head" in capsys.readouterr().err
