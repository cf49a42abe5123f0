"""Decoders of fields by suffix, with the names of WebDataset.

By default no decoder runs code from a dataset: pickles and torch files stay bytes.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from shoal.errors import UsageError
from shoal.formats.decoding.array_decoder import ArrayDecoder
from shoal.formats.decoding.audio_and_video import (
    AUDIO_SPECS,
    AUDIO_SUFFIXES,
    VIDEO_SPECS,
    VIDEO_SUFFIXES,
    audio_decoder,
    video_decoder,
)
from shoal.formats.decoding.images import IMAGE_SPECS, IMAGE_SUFFIXES, image_decoder
from shoal.formats.decoding.json_text import parse_json
from shoal.formats.decoding.pickles import array_loader, torch_loader, unpickler
from shoal.hints import did_you_mean, pip_install
from shoal.plugins.doors import Door

Decoder = Callable[[bytes], Any]

_LIMIT_BYTES = 1 << 30  # of a field, once decompressed
_PICKLES = ("pkl", "pickle", "pyd")
_TORCH = ("pth", "pt")


def _npz(load: Decoder) -> Decoder:
    def decode(data: bytes) -> dict[str, Any]:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if sum(member.file_size for member in members) > _LIMIT_BYTES:
                raise _too_large(len(data))
            return {member.filename.removesuffix(".npy"): load(archive.read(member)) for member in members}

    return decode


def _msgpack(data: bytes) -> Any:
    try:
        import msgpack  # noqa: PLC0415  # optional
    except ImportError:
        msg = "fields of MessagePack need msgpack, which is not installed"
        raise UsageError(msg, hint=pip_install("msgpack")) from None
    return msgpack.unpackb(data, strict_map_key=False)


def _cbor(data: bytes) -> Any:
    try:
        import cbor2  # noqa: PLC0415  # optional
    except ImportError:
        raise UsageError("fields of CBOR need cbor2, which is not installed", hint=pip_install("cbor2")) from None
    return cbor2.loads(data)


_PLAIN: Mapping[str, Decoder] = {
    **dict.fromkeys(("txt", "text", "transcript"), bytes.decode),
    **dict.fromkeys(("cls", "cls2", "index", "count", "inx", "id"), int),
    **dict.fromkeys(("json", "jsn"), parse_json),
    **dict.fromkeys(("mp", "msg", "msgpack"), _msgpack),
    "cbor": _cbor,
}


def _media(
    suffixes: Sequence[str], decoder: Callable[..., Decoder], name: str, size: tuple[int, int] | None
) -> Mapping[str, Decoder]:
    return dict.fromkeys(suffixes, decoder(name, size) if name in IMAGE_SPECS else decoder(name))


DECODERS: Door[Mapping[str, Decoder]] = Door(
    "shoal.decoders",
    {
        **{name: partial(_media, IMAGE_SUFFIXES, image_decoder, name) for name in IMAGE_SPECS},
        **{name: partial(_media, AUDIO_SUFFIXES, audio_decoder, name) for name in AUDIO_SPECS},
        **{name: partial(_media, VIDEO_SUFFIXES, video_decoder, name) for name in VIDEO_SPECS},
    },
    members=("keys", "__getitem__"),
)
"""Functions from the size of images (height and width, or None) to decoders by suffix, by the name of ``decode``."""


def decoders_of(
    name: str | None, *, allow_pickle: bool = False, size: tuple[int, int] | None = None
) -> dict[str, Decoder]:
    """Return the decoders of a name in `DECODERS`, by suffix; for None, the decoders of unambiguous suffixes.

    Images are resized to ``size``, a height and a width, unless it is None. Raises `UsageError` if there is no decoder
    of this name, or a library is missing.
    """
    if name is not None:
        if name not in DECODERS:
            msg = f"there is no decoder named {name!r}; the decoders are {', '.join(known_decoders())}"
            hint = did_you_mean(name, known_decoders()) + "a mapping from suffix to function decodes anything else"
            raise UsageError(msg, hint=hint)
        return dict(DECODERS.make(name, size))
    load = array_loader(allow_pickle=allow_pickle)
    decoders: dict[str, Decoder] = {**_PLAIN, "npy": load, "npz": _npz(load)}
    if allow_pickle:
        unpickle = unpickler("a pickle", allow_pickle=True, how="")
        decoders |= dict.fromkeys(_PICKLES, unpickle) | dict.fromkeys(_TORCH, torch_loader())
    return decoders


def may_resize(name: str) -> bool:
    """Return True if the decoders of a name take a size: image decoders and decoders of other packages."""
    return name in IMAGE_SPECS or (name not in DECODERS.own and name in DECODERS)


def known_decoders() -> tuple[str, ...]:
    """Return the names that `shoal.stream.dataset.Dataset.decode` takes."""
    return (*DECODERS, "hf", "hf-names")


def decoder_for(field: str, decoders: Mapping[str, Decoder]) -> Decoder | None:
    """Return the decoder of a field by the suffix of its name; a final ``.gz`` is decompressed first.

    >>> decoder_for("name.txt.gz", {"txt": bytes.decode})(zlib.compress(b"shoal", wbits=31))
    'shoal'
    """
    stem, _, suffix = field.rpartition(".")
    decoder = decoders.get(suffix.lower())
    if decoder is not None or suffix.lower() != "gz" or not stem:
        return decoder
    inner = decoder_for(stem, decoders)
    if isinstance(inner, ArrayDecoder):
        into = inner.into
        return replace(inner, into=lambda data, memory, **how: into(list(map(_gunzipped, data)), memory, **how))
    return None if inner is None else lambda data: inner(_gunzipped(data))


def _gunzipped(data: bytes) -> bytes:
    """Decompress all members of gzip data, up to a gibibyte."""
    plain, rest = bytearray(), data
    while rest:
        member = zlib.decompressobj(wbits=31)
        plain += member.decompress(rest, _LIMIT_BYTES + 1 - len(plain))
        if len(plain) > _LIMIT_BYTES:
            raise _too_large(len(data))
        if not member.eof:
            raise ValueError(f"a field of {len(data)} bytes ends inside its gzip stream")
        rest = member.unused_data
    return bytes(plain)


def _too_large(num_bytes: int) -> ValueError:
    return ValueError(f"a field of {num_bytes} bytes has more than {_LIMIT_BYTES} bytes once decompressed")
