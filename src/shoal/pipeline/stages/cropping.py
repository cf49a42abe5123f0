"""The crops of the images of a sample, by the seed, the epoch and the sample id."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from shoal.formats.decoding.crops import NUM_NUMBERS, Crop, PartOf
from shoal.order.seeds import generator, key


@dataclass(frozen=True, slots=True)
class Cropping:
    """A rule for crops, the size of the results, and the words that key random numbers.

    All images of a sample get the same numbers, so an image and its mask of the same size get the same part. Ids are
    counted from ``first_id``; ``number`` tells apart several decoders that crop.
    """

    crop: Crop
    size: tuple[int, int]
    seed: int = 0
    epoch: int = 0
    first_id: int = 0
    number: int = 0

    def part_of(self, sample_id: int) -> PartOf:
        """Return the function from the height and width of an image of a sample to its part."""
        if self.crop.areas is None:
            return partial(self.crop.part, self.size, [])
        word = key(self.seed, self.epoch, "crop", sample_id - self.first_id, self.number)
        return partial(self.crop.part, self.size, generator(word).random(NUM_NUMBERS).tolist())
