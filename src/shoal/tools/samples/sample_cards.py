"""The fields of samples as HTML: thumbnails, players, and the beginnings of texts and arrays; all text is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shoal.errors import UsageError
from shoal.figures import format_bytes
from shoal.tools.reports.page_document import paragraph
from shoal.tools.samples.preview import preview, printable, size_of
from shoal.tools.samples.shown_samples import ShownSample
from shoal.tools.samples.sounds import Sound, sound_of
from shoal.tools.samples.thumbnails import Thumbnail, is_image, thumbnail_of

_CELL_LETTERS = 600
_FLOATING_PIXELS = 104  # of the longer side of a thumbnail beside text

Card = tuple[str, str, list[str]]
"""The heading, soft text beside it, and paragraphs as HTML."""


def card_of(sample: ShownSample) -> Card:
    """Return a sample as a card: pictures first, then the other fields, then the class and the place."""
    parts = [field_html(name, value, sample.sample_id, side=0) for name, value in sample.fields.items()]
    parts.sort(key=lambda part: not part.startswith("<img"))
    if sample.error:
        parts.append(paragraph(printable(sample.error)))
    if sample.class_name:
        parts.append(paragraph(f"Class {printable(sample.class_name)}"))
    if sample.source:
        parts.append(paragraph(f"Source {printable(sample.source)}", kind="soft"))
    if sample.shard:
        size = unbroken(format_bytes(sample.end_byte - sample.first_byte))
        span = f"{printable(sample.shard)} [{sample.first_byte:,}, {sample.end_byte:,})"
        parts.append(paragraph(f"From {span}, {size}", kind="soft"))
    return f"Sample {sample.sample_id:,}", "" if sample.key is None else printable(sample.key), parts


def has_picture(card: Card) -> bool:
    """Return True if a card begins with a picture."""
    return any(part.startswith("<img") for part in card[2][:1])


def field_html(name: str, value: Any, sample_id: int, *, side: int = _FLOATING_PIXELS) -> str:
    """Return a field as HTML: a thumbnail, a player, or the beginning of a text, with its size.

    The longer side of a thumbnail has ``side`` pixels; 0 for its own size.
    """
    label = printable(name)
    try:
        picture = thumbnail_of(value)
    except UsageError as error:  # Pillow is missing
        return paragraph(f"{label}: image, {unbroken(size_of(value))}; to see it, {error.hint}", kind="soft")
    except Exception:  # noqa: BLE001  # damaged bytes raise any error
        return paragraph(f"{label}: image that cannot be shown, {unbroken(size_of(value))}", kind="soft")
    if picture is not None:
        size = f", {unbroken(size_of(value))}" if is_image(value) else ""
        described = f"{label}: {picture.words}{size}"
        image = _image(picture, f"{label} of sample {sample_id}, {picture.words}", side)
        return image + paragraph(described, kind="soft")
    if (sound := sound_of(value)) is not None:
        size = f", {unbroken(size_of(value))}" if isinstance(value, bytes) else ""
        player = _player(sound, f"{label} of sample {sample_id}")
        return player + paragraph(f"{label}: {sound.words}{size}", kind="soft")
    text = preview(name, value, columns=_CELL_LETTERS)
    if text in ("(binary)", "(image)"):
        return paragraph(f"{label}: {text[1:-1]}, {unbroken(size_of(value))}", kind="soft")
    return f'<p class="text"><span class="soft">{escape(label)}:</span> {escape(text)}</p>'


def unbroken(size: str) -> str:
    """Keep the number and the unit of a size on one line."""
    return size.replace(" ", "\N{NO-BREAK SPACE}")


def _image(picture: Thumbnail, description: str, side: int) -> str:
    scale = side / max(picture.width, picture.height, 1) if side else 1.0
    sides = [("width", round(picture.width * scale)), ("height", round(picture.height * scale))]
    # An image that is shown as stored has an unknown height.
    attributes = "".join(f' {name}="{max(1, pixels)}"' for name, pixels in sides if pixels)
    kind = ' class="fine"' if picture.is_enlarged else ""
    return f'<img{kind} src="{escape(picture.url)}" alt="{escape(description)}"{attributes}>'


def _player(sound: Sound, description: str) -> str:
    player = f'<audio controls preload="none" src="{escape(sound.url)}" aria-label="{escape(description)}"></audio>'
    return (_outline(sound.outline, description) if len(sound.outline) else "") + (player if sound.url else "")


def _outline(loudness: NDArray[np.float64], description: str) -> str:
    """Draw the loudness over time, mirrored, in a box of height 2."""
    upper: Sequence[str] = [f"{at},{1 - height:.2f}" for at, height in enumerate(loudness.tolist())]
    lower: Sequence[str] = [f"{at},{1 + height:.2f}" for at, height in enumerate(loudness.tolist())][::-1]
    label = f'role="img" aria-label="Loudness of {escape(description)}"'
    box = f'viewBox="0 0 {max(1, len(loudness) - 1)} 2" preserveAspectRatio="none"'
    return f'<svg class="outline" {box} {label}><path class="f-data" d="M{" ".join([*upper, *lower])}Z"/></svg>'
