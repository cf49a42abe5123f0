"""HOW DO I PROVE MINE? Parts for tests of anything that reads from far away: a server with faults, a store with faults.

Public, for the tests of whoever writes a store, a format or a training script; it needs no test framework, and
`import shoal` does not load it.

>>> from urllib.request import Request, urlopen
>>> with RangeServer({"train/a.bin": b"0123456789"}) as server:
...     request = Request(server.url_of("train/a.bin"), headers={"Range": "bytes=2-4"})
...     with urlopen(request) as answer:
...         print(answer.status, answer.read())
206 b'234'
>>> server.num_requests(), server.num_bytes()
(1, 3)
"""

from __future__ import annotations

from shoal.testing.delivery import Exchange
from shoal.testing.faults import FAULT_KINDS, Fault, FaultKind
from shoal.testing.faulty_store import FaultyStore
from shoal.testing.range_server import RangeServer

__all__ = ["FAULT_KINDS", "Exchange", "Fault", "FaultKind", "FaultyStore", "RangeServer"]
