"""Tools for tests of your own stores, formats and training scripts.

A server and a store with faults, damaged bytes, and a check of shard formats. `shoal.testing` needs no test framework,
and `import shoal` does not load this module.

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

from shoal.testing.faults import FAULT_KINDS, Fault, FaultKind
from shoal.testing.faulty_store import FaultyStore
from shoal.testing.format_checks import FormatReport, check_format
from shoal.testing.format_damage import DAMAGE_KINDS, Damage, DamageCount, DamageKind, damaged
from shoal.testing.range_server import Exchange, RangeServer

__all__ = [
    "DAMAGE_KINDS",
    "FAULT_KINDS",
    "Damage",
    "DamageCount",
    "DamageKind",
    "Exchange",
    "Fault",
    "FaultKind",
    "FaultyStore",
    "FormatReport",
    "RangeServer",
    "check_format",
    "damaged",
]
