"""JPEGs decoded on an accelerator, a batch at a time, by torchvision."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from shoal.errors import UsageError
from shoal.hints import did_you_mean


class JpegDecoder:
    """A function for `map` after `batch` that decodes the JPEGs of a field on an accelerator, a batch at a time.

    The field becomes a uint8 tensor of shape (batch, 3, height, width) in the memory of the device, or a list of
    tensors (3, height, width) if the images differ in size. Colours are RGB, and EXIF orientation is ignored, as in
    `decode`. The device's decoder gives pixels that differ a little from `decode`, whose pixels are the same on every
    machine. A damaged image raises an error even with ``reading(on_error="skip")``, because the batch is already made.

    ``ds.batch(64).map(shoal.torch.JpegDecoder("jpg"))`` in a `DataLoader` without workers: a thread decodes ahead.

    Parameters
    ----------
    field
        The name of the field that holds the bytes of the files.
    device
        "cuda" for the current device at the time of this call, or a device with its number, "cuda:1".

    Raises
    ------
    UsageError
        The device is not an accelerator or is missing, or torchvision is not installed or does not fit this torch.

    Examples
    --------
    >>> shoal.torch.JpegDecoder("jpg", device="cpu")
    Traceback (most recent call last):
    ...
    shoal.errors.UsageError: JpegDecoder decodes on "cuda"; got device='cpu'
      hint: decode("torchrgb8") decodes on processors
    """

    def __init__(self, field: str = "jpg", *, device: str = "cuda") -> None:
        requested = torch.device(device)
        if requested.type != "cuda":
            msg = f'JpegDecoder decodes on "cuda"; got device={device!r}'
            raise UsageError(msg, hint='decode("torchrgb8") decodes on processors')
        self._decode = _decoder()
        if not torch.cuda.is_available():
            msg = f"JpegDecoder(device={device!r}) needs a GPU; this torch ({torch.__version__}) finds none"
            raise UsageError(msg, hint='decode("torchrgb8") decodes on processors')
        self._field = field
        # A thread makes the batches, and a new thread starts with device 0.
        self._device = requested if ":" in str(requested) else torch.device("cuda", torch.cuda.current_device())

    def __repr__(self) -> str:
        """Return the call that makes this object."""
        return f"JpegDecoder({self._field!r}, device={str(self._device)!r})"

    def __reduce__(self) -> tuple[object, ...]:
        """Refuse to be sent to another process."""
        raise TypeError("JpegDecoder decodes in the process that has the GPU")

    def __call__(self, batch: Any) -> dict[str, Any]:
        """Return the batch with decoded images."""
        fields = batch if isinstance(batch, Mapping) else {}
        files = fields.get(self._field)
        if not isinstance(files, list) or not all(isinstance(file, bytes | memoryview) for file in files):
            kinds = ", ".join(f"{name!r} ({type(value).__name__})" for name, value in fields.items())
            msg = f"{self!r} wants a batch with a list of bytes in {self._field!r}; got {kinds or type(batch).__name__}"
            hint = did_you_mean(self._field, fields.keys() - {self._field})
            raise UsageError(msg, hint=f"{hint}call JpegDecoder after batch(), without decoding these images before")
        stored = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in files]
        images = self._decode(stored, self._device)
        is_even = all(image.shape == images[0].shape for image in images)
        return {**fields, self._field: torch.stack(images) if is_even else images}


def _decoder() -> Callable[[list[torch.Tensor], torch.device], list[torch.Tensor]]:
    """Return torchvision's decoder of files to RGB images on a device."""
    try:
        from torchvision.io import ImageReadMode, decode_jpeg  # type: ignore[import-not-found]  # noqa: PLC0415
    except (ImportError, OSError, RuntimeError) as error:  # the last two: it was built for another torch
        msg = f"JpegDecoder needs torchvision, which cannot be imported here: {error}"
        raise UsageError(msg, hint="install the one for your torch as pytorch.org says") from error
    return lambda files, device: list(decode_jpeg(files, mode=ImageReadMode.RGB, device=device))
