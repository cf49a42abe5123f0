"""The optional compiled module that cuts samples out of bytes; without it Python does the same.

Each compiled function has a twin in Python, which serves if the function returns None. Without the module the functions
are None. ``SHOAL_PURE_PYTHON=1`` in the environment disables the module.
"""

from __future__ import annotations

import os
from typing import Any

try:
    from shoal.formats import _cutting

    _module: Any = _cutting
except ImportError:  # no compiler was there, and no wheel for this platform
    _module = None
if os.environ.get("SHOAL_PURE_PYTHON", "0") not in ("", "0"):
    _module = None

is_compiled = _module is not None
"""True if the module is used."""

tar_sample: Any = getattr(_module, "tar_sample", None)
tar_front: Any = getattr(_module, "tar_front", None)
tar_borders: Any = getattr(_module, "tar_borders", None)
mds_sample: Any = getattr(_module, "mds_sample", None)
tar_samples: Any = getattr(_module, "tar_samples", None)
mds_samples: Any = getattr(_module, "mds_samples", None)
next_records: Any = getattr(_module, "next_records", None)
transposed: Any = getattr(_module, "transposed", None)
values_of_rows: Any = getattr(_module, "values_of_rows", None)
take_rows: Any = getattr(_module, "take_rows", None)
plain_example: Any = getattr(_module, "plain_example", None)
