"""Decoders of the columns of a Hugging Face dataset, by its features in Arrow's schema.

``save_to_disk``, cache files and ``to_parquet`` keep features as JSON under the key ``huggingface``. Values are decoded
as by ``datasets`` without a format, with two exceptions: audio stays the bytes of its file, and images must be in the
shard, since no other file is opened.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from shoal.errors import UsageError
from shoal.formats.decoding.images import open_image
from shoal.formats.decoding.json_text import parse_json

_KEY = b"huggingface"
_ORIENTATION = 0x0112
_LISTS = ("Sequence", "List", "LargeList")
_Decode = Callable[[Any], Any]


def features_in(metadata: Mapping[bytes, bytes] | None) -> dict[str, Any] | None:
    """Return the features in the metadata of a schema, by column; None if there are none.

    >>> features_in({b"huggingface": b'{"info": {"features": {"x": {"dtype": "int64", "_type": "Value"}}}}'})
    {'x': {'dtype': 'int64', '_type': 'Value'}}
    """
    try:
        features = json.loads((metadata or {})[_KEY])["info"]["features"]
    except (KeyError, TypeError, ValueError):
        return None
    return features if isinstance(features, dict) else None


def feature_decoders(features: Mapping[str, Any], *, names: bool) -> dict[str, _Decode]:
    """Return decoders of the columns that need one; with ``names``, class numbers become their names."""
    decoders = {name: _decoder(feature, names=names) for name, feature in features.items()}
    return {name: decode for name, decode in decoders.items() if decode is not None}


def _decoder(feature: Any, *, names: bool) -> _Decode | None:
    """Return the decoder of a feature's values; None if they stay as they are."""
    if isinstance(feature, list):
        return _list_decoder(_decoder(feature[0], names=names)) if feature else None
    if not isinstance(feature, dict):
        return None
    kind = feature.get("_type")
    if not isinstance(kind, str):  # a struct of features, which may have a field of that name
        return _struct_decoder({name: _decoder(inner, names=names) for name, inner in feature.items()})
    if kind in ("Image", "Audio", "Json") and not feature.get("decode", True):
        return None
    if kind == "Image":
        return partial(_image, feature.get("mode"))
    if kind == "Audio":
        return partial(_embedded, "audio")
    if kind == "Json":
        return parse_json
    if kind == "ClassLabel":
        return partial(_class_name, feature.get("names") or []) if names else None
    if kind in _LISTS:
        inner = feature.get("feature")
        # Before datasets 4 a sequence of structs was a struct of lists; newer versions declare such a struct.
        if kind == "Sequence" and isinstance(inner, dict) and not isinstance(inner.get("_type"), str):
            return _struct_decoder({name: _list_decoder(_decoder(part, names=names)) for name, part in inner.items()})
        return _list_decoder(_decoder(inner, names=names))
    return None


def _list_decoder(decode: _Decode | None) -> _Decode | None:
    return None if decode is None else lambda values: [None if value is None else decode(value) for value in values]


def _struct_decoder(decoders: Mapping[str, _Decode | None]) -> _Decode | None:
    if not any(decoders.values()):
        return None

    def decode(values: Any) -> Any:
        return {
            name: value if value is None or (decoder := decoders.get(name)) is None else decoder(value)
            for name, value in values.items()
        }

    return decode


def _image(mode: str | None, value: Any) -> Any:
    image = open_image(_embedded("image", value))
    image.load()
    if image.getexif().get(_ORIENTATION) is not None:
        from PIL import ImageOps  # noqa: PLC0415  # optional

        image = ImageOps.exif_transpose(image)
    return image.convert(mode) if mode and mode != image.mode else image


def _embedded(what: str, value: Any) -> bytes:
    data = value.get("bytes") if isinstance(value, dict) else value
    if not isinstance(data, bytes):
        path = value.get("path") if isinstance(value, dict) else None
        msg = f"the {what} is not in the shard, which has only the path {path!r}"
        raise UsageError(msg, hint="save the dataset with the files in it: save_to_disk() and push_to_hub() do that")
    return data


def _class_name(names: Sequence[str], value: Any) -> str | None:
    return names[value] if 0 <= value < len(names) else None  # -1 means that there is no label
