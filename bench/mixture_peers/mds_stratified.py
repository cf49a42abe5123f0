"""MosaicML Streaming with `batching_method="stratified"`, otherwise as in `mds_mixture`."""

from __future__ import annotations

import mds_mixture
from job import main


class Reader(mds_mixture.Reader):
    """Each global batch has the shares of all streams, rounded; an epoch ends with the shortest stream."""

    method = "stratified"


if __name__ == "__main__":
    main(Reader, mds_mixture.write)
