"""`ds.show()` shows the next samples of an order without moving it, whatever they hold, and escapes all of it."""

from __future__ import annotations

import io
import json
import wave
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.samples import write_jsonl, write_tar, write_tar_shards
from tests.stream.made import write_tars

import shoal
from shoal.errors import UsageError
from shoal.testing import RangeServer
from shoal.tools.samples.contact_sheet import ContactSheet

HOSTILE = "<script>alert(1)</script>\"'&"


class Elements(HTMLParser):
    """The elements of HTML with their attributes, and all text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data

    def values(self, name: str) -> list[str]:
        return [value for each, value in self.attributes if each == name]


def sheet_of(dataset: Any, n: int = 16) -> ContactSheet:
    sheet = dataset.show(n)
    assert isinstance(sheet, ContactSheet)
    check_harmless(sheet._repr_html_())
    check_harmless(sheet.page(made_by="a test"))
    return sheet


def check_harmless(html: str) -> None:
    """No script, no address of another place, and no handler of events."""
    elements = Elements(html)
    assert "script" not in elements.names
    assert not [name for name, _ in elements.attributes if name.startswith("on")]
    assert all(url.startswith("data:") for name in ("src", "href") for url in elements.values(name))
    assert "http" not in "".join(elements.values("style"))


def ids_of(sheet: ContactSheet) -> list[int]:
    return [sample.sample_id for sample in sheet.samples]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    write_tar_shards(tmp_path / "data")
    return tmp_path / "data"


def opened(data: Path) -> shoal.Dataset:
    return shoal.open(data).shuffle(seed=3).decode()


def test_the_next_samples_come_in_the_order_and_the_position_stays(data: Path) -> None:
    ds = opened(data)
    assert ids_of(sheet_of(ds)) == ds.ids(0, 0, 16).tolist()
    batched = ds.batch(10)
    iterator = iter(batched)
    first = [next(iterator), next(iterator)]
    assert len(first) == 2
    before = batched.state_dict()
    sheet = sheet_of(batched, 7)
    assert batched.state_dict() == before
    assert ids_of(sheet) == ds.ids(0, 20, 27).tolist()
    assert next(iterator)["txt"][0] == sheet.samples[0].fields["txt"]
    assert batched.stats()["num_samples"] == 30


def test_a_loaded_position_and_the_end_of_an_epoch(data: Path) -> None:
    ds = opened(data)
    ds.load_state_dict(ds.state_at(195, epoch=2))
    assert ids_of(sheet_of(ds)) == ds.ids(2, 195).tolist()
    assert "position 195 of epoch 2" in str(ds.show(1))
    assert [len(ds.show(n)) for n in (0, 1)] == [0, 1]  # type: ignore[arg-type]
    assert "no sample" in str(ds.show(0))
    with pytest.raises(UsageError, match="show"):
        ds.show(-1)


def test_filters_and_functions_apply_as_in_the_stream(data: Path) -> None:
    ds = opened(data).filter(lambda sample: sample["cls"] == 2).map(lambda sample: {**sample, "more": 7})
    shown = sheet_of(ds, 5)
    expected = [sample["txt"] for sample, _ in zip(ds, range(5), strict=False)]
    assert [sample.fields["txt"] for sample in shown.samples] == expected
    assert all(sample.fields["more"] == 7 for sample in shown.samples)
    assert not len(sheet_of(opened(data).filter(lambda sample: False), 5))


def test_batches_that_ranks_fill_and_ranks_that_get_single_samples(data: Path) -> None:
    filled = opened(data).filter(lambda sample: sample["cls"] != 1, refill=True).batch(8)
    iterator = iter(filled)
    next(iterator)
    before = filled.state_dict()
    shown = [sample.fields["txt"] for sample in sheet_of(filled, 8).samples]
    assert filled.state_dict() == before
    assert next(iterator)["txt"] == shown
    ranks = opened(data).partition(rank=1, world_size=4).batch(5)
    next(iter(ranks))
    assert ids_of(sheet_of(ranks, 5)) == opened(data).ids(0, 20, 25).tolist()
    single = opened(data).partition(rank=1, world_size=2).filter(lambda sample: True)
    next(iter(single))  # no position fits all ranks: the sheet begins at the start of the epoch
    assert ids_of(sheet_of(single, 5)) == opened(data).ids(0, 0, 5).tolist()


def test_samples_that_are_left_out_or_chosen(data: Path) -> None:
    assert ids_of(sheet_of(opened(data).without(positions=[(0, 10)]), 5)) == opened(data).ids(0, 10, 15).tolist()
    assert len(sheet_of(opened(data).take(3), 16)) == 3
    assert ids_of(sheet_of(shoal.open(data).select([7, 3, 5]))) == [3, 5, 7]
    for order in ("full", "block", "buffer", "none"):
        ds = shoal.open(data).shuffle(order)
        assert ids_of(sheet_of(ds, 9)) == ds.ids(0, 0, 9).tolist()


def test_text_for_a_terminal(data: Path) -> None:
    text = str(shoal.open(data).show(2))
    assert text == repr(shoal.open(data).show(2))
    assert text.splitlines() == [
        "the next 2 samples at position 0 of epoch 0",
        "",
        "0  0000  in train-000000.tar [0, 2048)",
        "  txt  11 B  sample 0000",
        "  cls   1 B  0",
        "",
        "1  0001  in train-000000.tar [2048, 4096)",
        "  txt  11 B  sample 0001",
        "  cls   1 B  0",
    ]


def test_everything_of_the_data_is_escaped(tmp_path: Path) -> None:
    sample = {"__key__": HOSTILE.replace("/", "").replace(".", "").encode(), "txt": HOSTILE.encode() * 3}
    write_tar(tmp_path / "odd<script>.tar", [sample])
    sheet = sheet_of(shoal.open(tmp_path / "odd<script>.tar").map(lambda sample: {**sample, "<script>": "\x1b[2J"}))
    assert "\x1b" not in str(sheet)
    assert "\x1b" not in sheet._repr_html_()
    assert HOSTILE in Elements(sheet._repr_html_()).text
    path = tmp_path / "page.html"
    sheet.write(path)
    assert path.read_text() == sheet.page(made_by="ds.show(1)")
    check_harmless(path.read_text())


def test_names_of_classes(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    for name in ("cat", "<script>dog"):
        (tmp_path / "images" / name).mkdir(parents=True)
        image.new("RGB", (8, 8), "red").save(tmp_path / "images" / name / "0.png")
    sheet = sheet_of(shoal.open(tmp_path / "images", format="folder"))
    assert sorted(sample.class_name for sample in sheet.samples) == ["<script>dog", "cat"]
    assert "Class cat" in Elements(sheet._repr_html_()).text
    assert "(cat)" in str(sheet)


def test_pictures_stored_and_decoded(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    files = {}
    for suffix, mode in (("jpg", "RGB"), ("png", "RGBA"), ("gif", "P")):
        image.new(mode, (640, 400)).save(file := io.BytesIO(), {"jpg": "JPEG"}.get(suffix, suffix.upper()))
        files[suffix] = file.getvalue()
    samples = [{"__key__": f"{n}".encode(), suffix: data} for n, (suffix, data) in enumerate(files.items())]
    write_tar(tmp_path / "a.tar", samples)
    ds = shoal.open(tmp_path / "a.tar")
    urls = Elements(sheet_of(ds)._repr_html_()).values("src")
    assert [url.partition(";")[0] for url in urls] == ["data:image/jpeg", "data:image/png", "data:image/jpeg"]
    assert max(map(len, urls)) < 4000
    for decoder in ("pil", "rgb8", "rgb", "l8", "rgba8"):
        assert len(Elements(sheet_of(ds.decode(decoder))._repr_html_()).values("src")) == 3
    torch = pytest.importorskip("torch")
    assert torch is not None
    assert len(Elements(sheet_of(ds.decode("torchrgb"))._repr_html_()).values("src")) == 3


def test_a_damaged_picture_and_a_damaged_sample(tmp_path: Path) -> None:
    samples = [{"__key__": b"a", "jpg": b"\xff\xd8\xff broken"}, {"__key__": b"b", "json": b"{"}]
    write_tar(tmp_path / "a.tar", samples)
    sheet = sheet_of(shoal.open(tmp_path / "a.tar"))
    assert "image that cannot be shown" in Elements(sheet._repr_html_()).text
    sheet = sheet_of(shoal.open(tmp_path / "a.tar").decode())
    assert "JSONDecodeError" in str(sheet)
    assert "JSONDecodeError" in Elements(sheet._repr_html_()).text


def test_sounds_play_if_they_are_short(tmp_path: Path) -> None:
    def recorded(seconds: float) -> bytes:
        with wave.open(file := io.BytesIO(), "wb") as writer:
            writer.setnchannels(1)
            writer.setsampwidth(2)
            writer.setframerate(8000)
            writer.writeframes(bytes(round(seconds * 16000)))
        return file.getvalue()

    write_tar(tmp_path / "a.tar", [{"__key__": f"{n}".encode(), "wav": recorded(n)} for n in (1, 60)])
    elements = Elements(sheet_of(shoal.open(tmp_path / "a.tar"))._repr_html_())
    assert [url[:24] for url in elements.values("src")] == ["data:audio/wav;base64,Uk"]
    assert "1.0 s at 8,000 Hz, mono" in elements.text
    assert "1:00 min at 8,000 Hz, mono" in elements.text
    pytest.importorskip("soundfile")
    elements = Elements(sheet_of(shoal.open(tmp_path / "a.tar").decode("audio"))._repr_html_())
    assert elements.names.count("svg") == 2
    assert elements.names.count("audio") == 1


def test_arrays_tokens_rows_and_tuples(tmp_path: Path, data: Path) -> None:
    fields = {
        "tokens": np.arange(300, dtype=np.uint16),
        "matrix": np.full((77, 768), 5.5, dtype=np.float32),
        "nothing": None,
        "nested": {"<b>": [1, 2]},
        "picture": np.zeros((3, 16, 24), dtype=np.float32) - 2,
        "mask": np.ones((16, 16), dtype=bool),
        "flat": np.full((8, 8, 1), np.nan),
    }
    sheet = sheet_of(shoal.open(data).map(lambda _: fields), 1)
    elements = Elements(sheet._repr_html_())
    assert "uint16 array of shape (300,): 0 1 2 3" in elements.text
    assert "float32 array of shape (77, 768)" in elements.text
    assert len(elements.values("src")) == 3
    assert "uint16 array of shape (300,): 0 1" in str(sheet)
    sheet = sheet_of(shoal.open(data).decode().to_tuple("txt", "cls"), 1)
    assert dict(sheet.samples[0].fields) == {"0": "sample 0000", "1": 0}
    sheet = sheet_of(shoal.open(data).map(lambda sample: sample["txt"]), 1)
    assert dict(sheet.samples[0].fields) == {"sample": b"sample 0000"}
    rows = sheet_of(shoal.open(write_jsonl(tmp_path / "docs.jsonl")), 3)
    assert [sample.fields["id"] for sample in rows.samples] == [0, 1, 2]


def test_arrays_without_pillow(monkeypatch: pytest.MonkeyPatch, data: Path) -> None:
    def refuse(what: str) -> Any:
        raise UsageError(what, hint="pip install it")

    monkeypatch.setattr("shoal.tools.samples.thumbnails.pillow", refuse)
    monkeypatch.setattr("shoal.tools.samples.thumbnails.open_image", refuse)
    pixels = np.arange(500 * 400 * 3, dtype=np.uint8).reshape(500, 400, 3)
    sheet = sheet_of(
        shoal.open(data).map(lambda _: {"a": pixels, "b": b"\xff\xd8\xff", "c": b"\xff\xd8\xff" * 99999}), 1
    )
    elements = Elements(sheet._repr_html_())
    assert [url[:16] for url in elements.values("src")] == ["data:image/png;b", "data:image/jpeg;"]
    assert "c: image, 293.0 KiB; to see it, pip install it" in " ".join(elements.text.split())


def test_videos_tensors_and_views(data: Path) -> None:
    frames = np.zeros((9, 48, 64, 3), np.uint8)
    fields = {
        "mp4": (frames, 25.0),
        "empty": (frames[:0], 25.0),
        "pair": (np.zeros(3), b"x"),
        "view": memoryview(b"text"),
    }
    sheet = sheet_of(shoal.open(data).map(lambda _: fields), 1)
    elements = Elements(sheet._repr_html_())
    assert len(elements.values("src")) == 1
    assert "mp4: the middle of 9 frames of 64 by 48 pixels, 25 a second" in elements.text
    assert "view: text" in elements.text
    assert '["float64 array of shape (3,)", "1 bytes"]' in elements.text
    torch = pytest.importorskip("torch")
    fields = {"video": (torch.zeros((9, 3, 48, 64), dtype=torch.uint8), 25.0), "tokens": torch.arange(5)}
    elements = Elements(sheet_of(shoal.open(data).map(lambda _: fields), 1)._repr_html_())
    assert len(elements.values("src")) == 1
    assert "torch.int64 array of shape (5,): 0 1 2 3 4" in elements.text


def test_a_mixture_names_the_sources(data: Path, tmp_path: Path) -> None:
    sources = {"tars": shoal.open(data), "docs": shoal.open(write_jsonl(tmp_path / "docs.jsonl"))}
    mixture = shoal.mix(sources, weights={"tars": 1, "docs": 1}).shuffle(seed=1)
    before = mixture.state_dict()
    sheet = sheet_of(mixture)
    assert ids_of(sheet) == mixture.ids(0, 0, 16).tolist()
    assert {sample.source for sample in sheet.samples} == {"tars", "docs"}
    assert all("__source__" not in sample.fields for sample in sheet.samples)
    assert mixture.state_dict() == before
    assert len(sheet_of(shoal.mix(sources, ends="forever"), 3)) == 3


def test_documents_of_sequences(tmp_path: Path) -> None:
    lines = [json.dumps({"tokens": list(range(1 + n % 7))}) for n in range(60)]
    (tmp_path / "docs.jsonl").write_text("\n".join(lines))
    ds = shoal.open(tmp_path / "docs.jsonl", index_columns=["tokens:len"]).shuffle(seed=2)
    packed = ds.map(lambda s: {"tokens": np.array(s["tokens"])}).pack_sequences(16, lengths="tokens:len").batch(2)
    assert ids_of(sheet_of(packed, 2)) == packed.ids(0, 0, 1).tolist()[:2]
    next(iterator := iter(packed))
    before = packed.state_dict()
    shown = ids_of(sheet_of(packed, 4))
    assert shown == list(dict.fromkeys(packed.ids(0, 2, 6).tolist()))[:4]
    assert packed.state_dict() == before
    assert next(iterator) is not None


def test_a_growing_dataset_indexes_only_the_first_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    directory = write_tars(tmp_path / "data", [20] * 40)
    with RangeServer(directory) as server:
        ds = shoal.open(f"{server.url}/s-{{000..039}}.tar", index="grow").shuffle(seed=1, window="128KiB")
        server.clear()
        assert "0 of 8 segments indexed" in ds._repr_html_()
        assert "40 tar shards" in ds.resolved._repr_html_() + ds.batch(2)._repr_html_()
        assert not server.exchanges
        before = ds.state_dict()
        sheet = sheet_of(ds, 4)
        assert ds.state_dict() == before
        assert ids_of(sheet) == ds.ids(0, 0, 4).tolist()


def test_live_streams_that_can_give_their_samples_again(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "docs.jsonl")
    followed = shoal.follow(str(tmp_path))
    numbers = shoal.from_iterable(lambda: iter(range(200)), replay=True).map(lambda number: {"id": number})
    streams: list[Any] = [followed, numbers, numbers.shuffle(seed=1, buffer=9).batch(3)]
    for live in streams:
        iterator = iter(live)
        next(iterator)
        before = live.state_dict()
        shown = [sample.fields["id"] for sample in sheet_of(live, 7).samples]
        assert live.state_dict() == before
        following = np.concatenate([np.atleast_1d(next(iterator)["id"]) for _ in range(7)])
        assert following[:7].tolist() == shown
    assert len(sheet_of(shoal.from_iterable(range(5)))) == 5
    assert len(sheet_of(shoal.follow(str(tmp_path)), 999)) == 200


def test_other_live_streams_say_what_to_do_instead() -> None:
    for live in (shoal.from_iterable(iter(range(5))), shoal.from_callable(lambda: 1)):
        with pytest.raises(UsageError, match="gives each sample once") as refused:
            live.show()
        assert "islice" in refused.value.hint
