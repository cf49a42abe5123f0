"""Fields from bytes to what they mean: names, values and types of WebDataset's decoders."""

from __future__ import annotations

import ast
import gzip
import io
import json
import pickle
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shoal
from shoal.errors import UsageError
from shoal.formats.decoding import decoders
from shoal.formats.decoding.decoders import decoder_for, decoders_of, known_decoders
from shoal.formats.decoding.images import open_image

SOURCES = Path(shoal.__file__).parent / "formats"


def decoded(field: str, data: bytes, spec: str | None = None, *, allow_pickle: bool = False) -> Any:
    known = decoders_of(None, allow_pickle=allow_pickle) | (decoders_of(spec) if spec else {})
    decode = decoder_for(field, known)
    return data if decode is None else decode(data)


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def picture(mode: str = "RGB", kind: str = "PNG") -> tuple[bytes, np.ndarray]:
    image = pytest.importorskip("PIL.Image")
    pixels = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4) * 10
    shown = {"RGB": pixels[:, :, :3], "L": pixels[:, :, 0], "RGBA": pixels}[mode]
    out = io.BytesIO()
    image.fromarray(shown).save(out, kind)
    return out.getvalue(), shown


@pytest.mark.parametrize(
    ("field", "data", "value"),
    [
        ("txt", "é".encode(), "é"),
        ("a.transcript", b"x", "x"),
        ("cls", b"12\n", 12),
        ("x.cls2", b"-3", -3),
        ("inx", b"4", 4),
        ("json", b'{"a": [1, null]}', {"a": [1, None]}),
        ("a.b.jsn", b"[2]", [2]),
        ("JSON", b"[3]", [3]),
        ("mp", b"\x82\xa1a\x01\x02\xc4\x01\x00", {"a": 1, 2: b"\x00"}),
        ("cbor", b"\xa1\x61a\x82\x01\xf6", {"a": [1, None]}),
        ("json.gz", gzip.compress(b"[4]", mtime=0), [4]),
        ("txt.gz", gzip.compress(b"a", mtime=0) + gzip.compress(b"b", mtime=0), "ab"),
        ("gz", gzip.compress(b"[4]", mtime=0), gzip.compress(b"[4]", mtime=0)),
        ("mp4", b"video", b"video"),
        ("flac", b"audio", b"audio"),
        ("pkl", pickle.dumps(1), pickle.dumps(1)),
        ("pth", b"anything", b"anything"),
        ("unheard", b"?", b"?"),
    ],
)
def test_fields_by_suffix(field: str, data: bytes, value: Any) -> None:
    for name, library in (("mp", "msgpack"), ("cbor", "cbor2")):
        if field == name:
            pytest.importorskip(library)
    got = decoded(field, data)
    assert got == value
    assert type(got) is type(value)


def test_arrays() -> None:
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    assert np.array_equal(decoded("npy", npy(array)), array)
    out = io.BytesIO()
    np.savez(out, a=array, b=np.float32(2))
    found = decoded("x.npz", out.getvalue())
    assert list(found) == ["a", "b"]
    assert found["a"].dtype == np.int16
    assert found["b"] == 2


@pytest.mark.parametrize(
    "array",
    [
        np.float16(2),
        np.asfortranarray(np.arange(6, dtype=">i4").reshape(2, 3)),
        np.zeros((0, 3), np.complex64),
        np.array(["a", "\u00e9b"]),
        np.array([(1, 2.5)], dtype=[("x", "<i2"), ("y", "<f8")]),
        np.array([(1, 2.5)], dtype=[("\u4e2d", "<i2"), ("y", "<f8")]),  # which is of version 3
        np.array(["2026-01-01"], "M8[D]"),
    ],
)
@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
def test_arrays_are_those_that_numpy_loads(array: Any) -> None:
    data = npy(array)
    found, wanted = decoded("npy", data), np.load(io.BytesIO(data))
    assert (found.dtype, found.shape, found.tobytes()) == (wanted.dtype, wanted.shape, wanted.tobytes())
    assert found.flags.writeable
    assert found.flags.f_contiguous == wanted.flags.f_contiguous


@pytest.mark.parametrize("kind", ["<f8", "|S0", "<U0"])
@pytest.mark.parametrize("shape", [(10**10,), (10**30,), (10**5, 10**6), (-1,), (2**62, 4)])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_array_that_lies_of_its_shape_is_damage_and_takes_no_memory(
    kind: str, shape: tuple[int, ...], version: int
) -> None:
    header = repr({"descr": kind, "fortran_order": False, "shape": shape}).encode().ljust(117) + b"\n"
    data = b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(2 if version == 1 else 4, "little") + header
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("a.npy", data)
    tracemalloc.start()
    for field, content in (("npy", data), ("npz", out.getvalue())):
        with pytest.raises(ValueError):
            decoded(field, content)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_zip_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.BytesIO()
    np.savez_compressed(out, a=np.zeros(1 << 17), b=np.zeros(1 << 17))
    assert len(decoded("npz", out.getvalue())["b"]) == 1 << 17
    monkeypatch.setattr(decoders, "_LIMIT_BYTES", 2 << 20)
    with pytest.raises(ValueError, match="more than 2097152 bytes once decompressed"):
        decoded("npz", out.getvalue())


def test_pickles_are_read_only_where_allowed() -> None:
    assert decoded("pkl", pickle.dumps({1, 2}), allow_pickle=True) == {1, 2}
    objects = npy(np.array([{}, None], dtype=object))
    out = io.BytesIO()
    np.savez(out, a=np.array([{}], dtype=object))
    for field, data in (("npy", objects), ("npz", out.getvalue())):
        with pytest.raises(UsageError, match="an array of objects can run any code when it is read") as caught:
            decoded(field, data)
        assert "decode(..., allow_pickle=True)" in caught.value.hint
        decoded(field, data, allow_pickle=True)


def test_files_of_torch() -> None:
    torch = pytest.importorskip("torch")
    out = io.BytesIO()
    torch.save({"x": torch.arange(3)}, out)
    assert decoded("pth", out.getvalue()) == out.getvalue()
    assert decoded("pth", out.getvalue(), allow_pickle=True)["x"].tolist() == [0, 1, 2]


def test_pickles_are_loaded_in_one_place() -> None:
    """Whatever else reads shards has nothing that could run what is in them."""
    loaders = []
    for path in SOURCES.rglob("*.py"):
        names = {alias.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import)
                 for alias in node.names}  # fmt: skip
        loaders += [path.name] * bool(names & {"pickle", "marshal", "shelve", "dill", "cloudpickle"})
    assert loaders == ["pickles.py"]


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
@pytest.mark.parametrize("bands", ["l", "rgb", "rgba"])
def test_images_are_those_of_pillow_in_every_form(mode: str, bands: str) -> None:
    data, _ = picture(mode)
    image = pytest.importorskip("PIL.Image").open(io.BytesIO(data)).convert(bands.upper())
    expected = np.asarray(image)
    assert decoded("png", data, f"pil{bands}").tobytes() == image.tobytes()
    array = decoded("seg.png", data, f"{bands}8")
    assert array.dtype == np.uint8
    assert np.array_equal(array, expected)
    array = decoded("PNG", data, bands)
    assert array.dtype == np.float32
    assert np.array_equal(array, expected.astype(np.float32) / 255)


def test_pictures_are_rgb_unless_asked_for_as_they_are() -> None:
    data, shown = picture("L")
    assert decoded("png", data, "pil").mode == "RGB"
    raw = decoded("png", data, "pilraw")
    assert raw.mode == "L"
    assert np.array_equal(np.asarray(raw), shown)


def test_tensors_have_their_bands_first() -> None:
    torch = pytest.importorskip("torch")
    data, shown = picture()
    tensor = decoded("png", data, "torchrgb8")
    assert tensor.dtype == torch.uint8
    assert tensor.shape == (3, 2, 3)
    assert np.array_equal(tensor.numpy(), shown.transpose(2, 0, 1))
    for name in ("torch", "torchrgb"):
        assert torch.equal(decoded("png", data, name), tensor.float() / 255)
    assert decoded("png", data, "torchl").shape == (2, 3)


def test_what_a_program_would_have_to_draw_is_refused() -> None:
    """Pillow draws PostScript by Ghostscript, whatever the file is called."""
    pytest.importorskip("PIL")
    with pytest.raises(OSError, match="cannot identify"):
        open_image(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n")


@pytest.mark.parametrize(("library", "field"), [("msgpack", "mp"), ("cbor2", "cbor")])
def test_what_is_not_installed_is_named(library: str, field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(UsageError, match=f"need {library}, which is not installed") as caught:
        decoded(field, b"\x01")
    assert caught.value.hint == f"pip install {library} (or 'shoal[formats]')"


def test_images_need_pillow_and_tensors_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UsageError, match=r"decode\('torchrgb'\) needs (torch|Pillow), which is not installed"):
        decoders_of("torchrgb")
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UsageError, match=r"decode\('rgb8'\) needs Pillow") as caught:
        decoders_of("rgb8")
    assert "shoal[images]" in caught.value.hint


def test_unknown_names_are_told_with_those_known() -> None:
    with pytest.raises(UsageError, match="there is no decoder named 'jpeg2000'; the decoders are pilraw, pil,"):
        decoders_of("jpeg2000")
    assert {"pil", "rgb8", "rgb", "torchrgb", "torchrgb8", "hf"} <= set(known_decoders())


def test_a_gzip_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoders, "_LIMIT_BYTES", 1 << 20)
    bomb = gzip.compress(bytes(1 << 18)) * 5
    with pytest.raises(ValueError, match="more than 1048576 bytes once decompressed"):
        decoded("txt.gz", bomb)
    with pytest.raises(ValueError, match="ends inside its gzip stream"):
        decoded("txt.gz", gzip.compress(json.dumps(list(range(999))).encode())[:-20])
