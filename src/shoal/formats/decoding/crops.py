"""The part of an image that is decoded to a size: the centre, or a random part of a random size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from shoal.arguments import with_type
from shoal.errors import UsageError

Part: TypeAlias = tuple[int, int, int, int]
"""The first row and column of a part of an image, and the row and column behind it."""
PartOf: TypeAlias = Callable[[int, int], Part]
"""A function from the height and width of an image to a part of it."""

_RANDOM_AREAS = (0.08, 1.0)
_LOG_RATIO = math.log(4 / 3)
_NUMBERS_A_TRY = 4
NUM_NUMBERS = 10 * _NUMBERS_A_TRY
"""How many random numbers `Crop.part` takes."""


@dataclass(frozen=True, slots=True)
class Crop:
    """A rule for crops. ``areas`` are the least and largest share of the area; None for the centre of the image."""

    areas: tuple[float, float] | None

    @classmethod
    def of(cls, crop: Any) -> Crop:
        """Return the rule for "center", "random", or two shares of the area; raises `UsageError`.

        >>> Crop.of("random"), Crop.of((0.25, 1))
        (Crop(areas=(0.08, 1.0)), Crop(areas=(0.25, 1.0)))
        """
        if isinstance(crop, str) and crop in ("center", "random"):
            return cls(_RANDOM_AREAS if crop == "random" else None)
        if isinstance(crop, tuple | list) and len(crop) == 2 and all(isinstance(one, int | float) for one in crop):
            least, most = map(float, crop)
            if 0 < least <= most <= 1:
                return cls((least, most))
        msg = f'decode(crop=) takes "center", "random", or two shares of the area; got {with_type(crop)}'
        raise UsageError(msg, hint='crop="random" takes 8 to 100 % of the area, as crop=(0.08, 1.0)')

    def part(self, size: tuple[int, int], numbers: list[float], height: int, width: int) -> Part:
        """Return the part of an image to resize to ``size``; ``numbers`` are `NUM_NUMBERS` from 0 to 1.

        A random part has the proportions of ``size`` times 3/4 to 4/3 (uniform logarithm) and a uniform share of the
        area, as torchvision's `RandomResizedCrop`. The centre of the image replaces it if ten of them do not fit.

        >>> Crop(None).part((10, 10), [], 40, 60)
        (0, 10, 40, 50)
        """
        proportions = size[1] / size[0]
        for at in range(0, NUM_NUMBERS if self.areas else 0, _NUMBERS_A_TRY):
            share, ratio, down, right = numbers[at : at + _NUMBERS_A_TRY]
            least, most = self.areas or _RANDOM_AREAS
            area = height * width * (least + (most - least) * share)
            relative = proportions * math.exp(_LOG_RATIO * (2 * ratio - 1))
            rows, columns = round(math.sqrt(area / relative)), round(math.sqrt(area * relative))
            if 0 < rows <= height and 0 < columns <= width:
                top, left = int(down * (height - rows + 1)), int(right * (width - columns + 1))
                return top, left, top + rows, left + columns
        rows = max(1, min(height, round(width / proportions)))
        columns = max(1, min(width, round(height * proportions)))
        top, left = (height - rows) // 2, (width - columns) // 2
        return top, left, top + rows, left + columns
