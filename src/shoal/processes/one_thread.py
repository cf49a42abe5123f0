"""Settings of a fork server before it imports numpy: linear algebra in one thread, as in torch's workers.

numpy would start a thread for each processor, which takes a tenth of the start, and workers side by side would compete
for the processors. A setting of the user stands.
"""

from __future__ import annotations

import os

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")
