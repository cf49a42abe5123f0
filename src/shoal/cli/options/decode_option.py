"""The option ``--decode`` of verbs that read samples as a trainer would."""

from __future__ import annotations

import argparse

from shoal.formats.decoding.images import IMAGE_SPECS
from shoal.hints import did_you_mean
from shoal.stream.dataset import Dataset


def add_decode_argument(parser: argparse.ArgumentParser) -> None:
    """Declare ``--decode``, with or without the type that images become."""
    text = f"decode fields as Dataset.decode() does; images too with one of {', '.join(IMAGE_SPECS)}"
    parser.add_argument("--decode", nargs="?", const="", metavar="SPEC", type=_image_spec, help=text)


def decoded(dataset: Dataset, arguments: argparse.Namespace) -> Dataset:
    """Return the dataset, decoded as requested."""
    spec: str | None = arguments.decode
    return dataset if spec is None else dataset.decode(*[spec] * bool(spec))


def _image_spec(text: str) -> str:
    if text and text not in IMAGE_SPECS:
        msg = f"{text!r} is not what images become: {', '.join(IMAGE_SPECS)}; {did_you_mean(text, IMAGE_SPECS)}"
        msg += "a dataset stands before --decode"
        raise argparse.ArgumentTypeError(msg)
    return text
